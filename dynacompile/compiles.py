"""One compile: the frame of a call becomes an entry, with as many symbols as its stages can have, and what is told of it."""

from __future__ import annotations

import dataclasses
import linecache
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch.fx import graph_module

from dynacompile.backends import resolve
from dynacompile.capture.breaks import FIRST_STEP, WHOLE
from dynacompile.capture.tensors.entry_conditions import may_ask
from dynacompile.entries import estimated_bytes
from dynacompile.env import Env, cache_dir, log_topics
from dynacompile.errors import Unsupported, VerifyError
from dynacompile.events import (
    Compiled,
    Event,
    Evicted,
    FirstStepLeft,
    FrameSkipped,
    GraphBroke,
    Guarded,
    GuardFailed,
    Recompiled,
    StageFinished,
    SymbolsRefused,
)
from dynacompile.guards.changes import policy_after
from dynacompile.guards.facts import FrameCopy, Outdated, SetsProcess
from dynacompile.guards.program import Failure, described, failures
from dynacompile.ir.captured import Captured
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.ir.wording import revealed
from dynacompile.native import core as native_core
from dynacompile.observe.log import show_on_screen
from dynacompile.pipeline import compile_frame
from dynacompile.quoting import without_values
from dynacompile.recompiles import advice, done_about, frame_name, nearest_failures, texts
from dynacompile.region_info import EntryInfo, RegionInfo
from dynacompile.session import SESSION
from dynacompile.watchdog import watched

OF_THE_CALL = frozenset({"aliased-mutation", "would-raise", "raise", "op-failed", "unknown-object", "lazy-conjugate", "aliased-outputs", "overlapping-inputs"})
"""Reasons that lie in what a call was given."""
WITHOUT_WARNING = frozenset({"active-mode", "op-failed", "raise", "would-raise", "wrapper"})
"""Reasons for which eager is likely to raise, that the user's own modes are, or for which what the frame calls is compiled."""
MOST_REFUSALS = 4
MOST_FIRST_STEPS = 4
"""Calls of one frame that are left to Python as optimizers make their state: one that makes it in each call is compiled as it is."""
MOST_OUTDATED = 6
"""Captures of one frame in the background that the program overtakes, each of which makes symbols of the numbers that changed; then it is left to Python."""
MEASURED_CHECKS = 8


def new_entry(frame: Any, info: RegionInfo, own: list[Any]) -> Any:
    """Compiles the frame, a FrameProxy or, in the background, a FrameCopy."""
    core, code = native_core(), frame.code
    stages: list[Event] = []

    def emit(event: Event) -> None:
        stages.append(event)
        SESSION.bus.emit(event)

    env = Env(config=info.config, emit=emit, region=info.name, bucket=info.bucket, cache=cache_dir(), hand_off=SESSION.bus.hand_off)
    asks_inputs = may_ask([[f.guard for f in failures(entry.info.captured.guards, frame)] for entry in own])
    env = dataclasses.replace(env, leaves_first_steps=info.first_steps[code] < MOST_FIRST_STEPS, asks_inputs=asks_inputs, restarts=all(map(has_served, own)))
    start = time.perf_counter()
    texts_before = frozenset(graph_module._loader.eval_cache)  # texts of dropped graphs go meanwhile, so counting them would not do
    differences = nearest_failures(frame, own) if own else []
    try:
        with failures_forgotten(), watched("compiling", info.name):
            captured, bound, guards = with_shapes(frame, env, shape_policy(frame, info, own))
    except Outdated as reason:
        return overtaken(reason, frame, info)
    except SetsProcess:
        info.waited_for.add(code)
        return core.RUN_ONCE
    except Unsupported as reason:
        if reason.code == FIRST_STEP:
            return first_step_left(reason, info, code)
        if reason.code == "internal" and isinstance(frame, FrameCopy) and not info.races[code]:
            return raced(reason, info, code)
        if info.config.fullgraph:
            raise
        is_known = code in info.met_modes if reason.code == "active-mode" else is_of_named_tuple(frame)  # every call of frames in a mode comes here
        if not is_known:
            site = reason.site or frame_name(code)
            SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=site, reason=f"[{reason.code}] {reason.reason}"))
        if code is info.target and reason.code not in WITHOUT_WARNING:
            info.warn_of_python(reason)
        return left_to_python(reason, info, code)
    seconds = time.perf_counter() - start
    if captured.break_ is not None:
        report_break(captured, info)
        if info.stands_for and code is info.target:
            info.warn_of_python(Unsupported(captured.break_.code, captured.break_.reason))
    elif code is info.target and not own:
        info.tell_unmet(captured)
    hot, cold, held = guards.measure(tuple(frame.slots), frame.closure, frame.globals, frame.builtins, MEASURED_CHECKS)
    if info.config.verify and held < MEASURED_CHECKS + 2 and not isinstance(frame, FrameCopy):
        raise VerifyError("guards", f"the entry does not hold for the call that made it: {refused(captured, guards, frame)}")
    made = Compiled(
        region=info.name,
        bucket=info.bucket,
        frame=frame_name(code),
        graph=SESSION.next_graph(),
        ops=captured.ops,
        guards=len(captured.guards),
        kernels=launches(stages),
        seconds=seconds,
        lookup_ns=hot,
        cold_ns=cold,
        kinds=tuple(Counter(guard.kind for guard in captured.guards).most_common()),
    )
    announce(made, captured, differences, own, info, frame)
    described_entry = EntryInfo(captured, info.config, info.name, info.bucket, seconds, made.graph, (hot, cold), estimated_bytes(captured, bound))
    weakref.finalize(described_entry, forget_texts, texts_since(texts_before)).atexit = False
    info.made[code] += 1
    make_room(code, info, described_entry.bytes)
    return core.Entry(bound, guards, described_entry, captured.whole, captured.restarts is not None or captured.repeats is not None)


def has_served(entry: Any) -> bool:
    """Whether an entry's graph has not raised, time and again, what a clause may take."""
    restarts = entry.info.captured.restarts
    return restarts is None or restarts.serves()


def with_shapes(frame: Any, env: Env, policy: ShapePolicy | None) -> tuple[Captured, Any, Any]:
    """The frame, compiled with the symbols that the policy asks for; without those for values, and then with constants in their place, where some
    stage can't have symbols. What is given up is told."""
    make_call = resolve(env.config.backend)
    attempts = [] if policy is None else [("sizes and numbers", policy)]
    if policy is not None and policy.values:
        attempts = [("values", policy), ("sizes and numbers", dataclasses.replace(policy, values=False))]
    refused: list[SymbolsRefused] = []
    for what, tried in attempts:
        try:
            made = compile_frame(frame, make_call, env, SESSION.code_cache, tried)
        except Unsupported as reason:
            if not tried or reason.code in WHOLE or reason.code == "internal" and env.config.verify:
                raise
            told = SymbolsRefused(region=env.region, bucket=env.bucket, frame=frame_name(frame.code), refused=what, code=reason.code, reason=reason.reason)
            refused.append(told)
        else:
            break
    else:
        made = compile_frame(frame, make_call, env, SESSION.code_cache, None)
    for event in refused:
        env.emit(event)
    return made


def shape_policy(frame: Any, info: RegionInfo, own: list[Any]) -> ShapePolicy | None:
    """Which sizes, ints and floats of the frame the next entry takes as symbols; None where the region has none."""
    config = info.config
    if config.dynamic is False:
        return ShapePolicy(values=True) if config.capture_values else None
    first = ShapePolicy(
        everything=config.dynamic is True,
        declared=config.declared_shapes(),
        ints=not config.specialize_int,
        floats=config.float_symbols,
        ones=not config.specialize_zero_one,
        values=config.capture_values,
        loops=not config.specialize_int,
        varying=config.varying,
    )
    known = info.shapes.get(frame.code, first) if own or frame.code in info.changes else first
    most = None if config.fullgraph else max(1, config.recompile_limit - 2)  # the first entry took a number for a constant
    info.shapes[frame.code] = known = policy_after(known, [entry.info.captured.guards for entry in own], frame, most)
    return known


def is_of_named_tuple(frame: Any) -> bool:
    """Whether a frame is of the code that `namedtuple` writes for each class. It is no function of the user's, which a report would tell of."""
    return str(frame.globals.get("__name__")).startswith("namedtuple_")


def first_step_left(reason: Unsupported, info: RegionInfo, code: CodeType) -> Any:
    """The answer for a call in which an optimizer makes its state: it runs as Python, whole, and is no failure."""
    info.first_steps[code] += 1
    SESSION.bus.emit(FirstStepLeft(region=info.name, bucket=info.bucket, frame=frame_name(code), reason=reason.reason))
    return native_core().RUN_PLAINLY


def overtaken(reason: Outdated, frame: FrameCopy, info: RegionInfo) -> Any:
    """The answer where the program has changed what a capture in the background had read. The next call asks again."""
    code = frame.code
    info.outdated[code] += 1
    failed = texts(failures(reason.guards, frame))
    told = f"[changing] the program changed meanwhile: {'; '.join(failed) or 'what the capture has read'}"
    SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=frame_name(code), reason=told))
    if info.outdated[code] >= MOST_OUTDATED:
        what = f"{frame_name(code)} relies on what the program changes faster than it is captured in the background ({'; '.join(failed)})"
        last = Unsupported("changing", what, "compile it with background=False, or pass such values in")
        if info.config.fullgraph:
            raise last
        if code is info.target:
            info.warn_of_python(last)
        return native_core().SKIP
    if (known := info.shapes.get(code)) is not None:
        info.shapes[code] = policy_after(known, [reason.guards], frame)
        info.changes.add(code)
    return native_core().RUN_ONCE


def raced(reason: Unsupported, info: RegionInfo, code: CodeType) -> Any:
    """The answer where a capture in the background failed, as it may where the program changes what is captured. The next call asks again, once."""
    info.races[code] += 1
    told = f"[changing] a capture failed beside the program, and the next call asks again: {reason.reason}"
    SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=frame_name(code), reason=told))
    return native_core().RUN_ONCE


def left_to_python(reason: Unsupported, info: RegionInfo, code: CodeType) -> Any:
    """The answer for a frame that can't be captured: this call alone, where another call may be captured, else every call."""
    if reason.code == "active-mode":
        info.met_modes.add(code)
        return native_core().RUN_ONCE
    info.refused[code] += 1
    return native_core().RUN_ONCE if reason.code in OF_THE_CALL and info.refused[code] < MOST_REFUSALS else native_core().SKIP


def announce(made: Compiled, captured: Captured, differences: list[Failure], own: list[Any], info: RegionInfo, frame: Any) -> None:
    """Tells of a new entry, its guards, and, where there were entries before, why none of them served."""
    SESSION.bus.emit(made)
    verbose = log_topics() & {"verbose_guards", "all"}
    listed = tuple(str(described(guard)) for guard in captured.guards) if verbose else ()
    if "verbose_guards" in verbose:
        show_on_screen(made.frame, [revealed(described(guard)) for guard in captured.guards], [f.revealing for f in differences])
    guarded = Guarded(region=info.name, bucket=info.bucket, frame=made.frame, guards=made.guards, lookup_ns=made.lookup_ns, cold_ns=made.cold_ns, texts=listed)
    SESSION.bus.emit(guarded)
    tell_failures(differences, info, frame.code)
    if own:
        known = advice(differences, captured.guards, frame, info.config, all(entry.info.region != info.name for entry in own))
        again = Recompiled(
            region=info.name,
            bucket=info.bucket,
            frame=made.frame,
            entries=len(own) + 1,
            limit=info.config.recompile_limit,
            failed=texts(differences),
            site=str(captured.site),
            seconds=made.seconds,
            override=info.override(known.options),
            expected=known.expected,
            done=done_about(captured.guards, [entry.info.captured.guards for entry in own]),
        )
        SESSION.bus.emit(again)


def tell_failures(differences: list[Failure], info: RegionInfo, code: CodeType) -> None:
    """One event for each guard that does not hold: texts for users sum them up."""
    for f in differences:
        source = without_values(f.guard.source.text()) if f.guard.source is not None else f.subject
        SESSION.bus.emit(
            GuardFailed(region=info.name, bucket=info.bucket, kind=f.guard.kind, source=source, was=str(f.was), now=str(f.now), site=frame_name(code))
        )


def report_break(captured: Captured, info: RegionInfo) -> None:
    b = captured.break_
    assert b is not None
    *outer, site = map(str, b.stack or (captured.site,))
    broke = GraphBroke(region=info.name, bucket=info.bucket, code=b.code, reason=b.reason, hint=b.hint, site=site, callers=tuple(reversed(outer)))
    SESSION.bus.emit(broke)


def launches(events: list[Event]) -> int:
    """Kernel launches of the programs that were scheduled; a backward that is compiled at its first use isn't among them."""
    return sum(value for e in events if isinstance(e, StageFinished) and e.stage == "schedule" for name, value in e.facts if name == "launches")


def refused(captured: Captured, guards: Any, frame: Any) -> str:
    """Which guard the machine stopped at, and what the Python twin says of all."""
    stopped = "none" if guards.last_failed < 0 else described(captured.guards[guards.last_failed])
    return f"{frame_name(frame.code)}: {stopped}; {'; '.join(texts(failures(captured.guards, frame))) or 'the Python twin finds that all hold'}"


def make_room(code: CodeType, info: RegionInfo, wanted: int) -> None:
    """Drops the least recently used entries of the region's bucket, where max_entries or max_bytes leaves no room for one more of `code`."""
    config, core = info.config, native_core()
    if not config.max_entries and not config.max_bytes:
        return
    mine = [(c, entry) for c in SESSION.known_codes() for bucket, entry in core.entries(c) if bucket == info.bucket and entry.kind == config.kind()]
    mine.sort(key=lambda pair: pair[1].used)
    total = wanted + sum(entry.info.bytes for _, entry in mine)
    count = 1 + sum(c is code for c, _ in mine)
    for c, entry in mine:
        too_many = config.max_entries and count > config.max_entries and c is code
        too_large = config.max_bytes and total > config.max_bytes
        if (too_many or too_large) and core.remove_entry(c, entry):
            count -= c is code
            total -= entry.info.bytes
            SESSION.bus.emit(Evicted(region=info.name, bucket=info.bucket, frame=frame_name(c), hits=entry.hits, bytes=entry.info.bytes))


@contextmanager
def failures_forgotten() -> Iterator[None]:
    """A compile that fails leaves no texts of its graphs."""
    before = frozenset(graph_module._loader.eval_cache)
    try:
        yield
    except BaseException:
        forget_texts(texts_since(before))
        raise


def texts_since(before: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in list(graph_module._loader.eval_cache) if name not in before)


def forget_texts(names: tuple[str, ...]) -> None:
    """Lets go of the texts of graphs, which torch.fx keeps for tracebacks for ever."""
    for name in names:
        graph_module._loader.eval_cache.pop(name, None)
        linecache.cache.pop(name, None)
