"""Regions, and what happens when the hook meets a frame in one that no entry serves.

A region is a native callable around the user's function. Its `RegionInfo` holds the options and the bucket of entries.
"""

from __future__ import annotations

import dataclasses
import linecache
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FrameType
from typing import Any

from torch.fx import graph_module

from dynacompile import backends, native
from dynacompile.config import CompileConfig
from dynacompile.entries import BucketView, bucket_view, estimated_bytes
from dynacompile.env import Env, cache_dir, log_topics
from dynacompile.errors import RecompileLimitError, Unsupported, VerifyError
from dynacompile.events import (
    Compiled,
    Event,
    Evicted,
    FrameSkipped,
    GraphBroke,
    Guarded,
    GuardFailed,
    LimitHit,
    Recompiled,
    StageFinished,
    SymbolsRefused,
)
from dynacompile.guards.changes import policy_after
from dynacompile.guards.program import Failure, described, failures
from dynacompile.ir.captured import Captured
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.ir.wording import revealed, shown_name
from dynacompile.markers import DISABLED
from dynacompile.observe.log import show_on_screen
from dynacompile.pipeline import compile_frame
from dynacompile.quoting import printable, without_values
from dynacompile.recompiles import done_about, frame_name, nearest_failures, override, shape_option, texts
from dynacompile.session import LIBRARIES, SESSION, Ticket

OF_THE_CALL = frozenset({"aliased-mutation", "would-raise", "raise", "op-failed", "unknown-object", "lazy-conjugate", "aliased-outputs", "overlapping-inputs"})
"""Reasons that lie in what a call was given."""
WITHOUT_WARNING = frozenset({"active-mode", "op-failed", "raise", "would-raise"})
"""Reasons for which eager is likely to raise, or that the user's own modes are."""
UNBOUNDED = frozenset({"too-long", "too-many-operations"})
"""Reasons that hold with constants, too: the frame is not traced again."""
MOST_REFUSALS = 4
MEASURED_CHECKS = 8
PATIENCE = 5.0  # seconds for which a thread that compiles may stand still before another one that waits for it goes on


@dataclass(eq=False)
class RegionInfo:
    """One compile: its options, its bucket, what it has warned about, how often capture refused a frame for what was special about the call, and
    which sizes of a frame have changed from call to call."""

    name: str
    config: CompileConfig
    bucket: int
    warned: set[CodeType | None] = field(default_factory=set)
    refused: Counter[CodeType] = field(default_factory=Counter)
    shapes: dict[CodeType, ShapePolicy] = field(default_factory=dict)
    made: Counter[CodeType] = field(default_factory=Counter)
    target: CodeType | None = None  # the code that the compile was asked for, which is compiled wherever it lies
    stands_for: bool = False  # that code only calls what the compile was asked for, whose own call is no frame that is compiled
    key: tuple[Any, ...] = ()  # of the user's dispatch, for whose bucket this is

    def views(self, region: Any) -> tuple[BucketView, ...]:
        """The buckets of `region`: one, or one for each key of its dispatch."""
        return buckets_of(region)

    def nothing_met(self) -> None:
        """Called by the region after a call in which no frame was one that is compiled: tells of it once. Raises Unsupported under fullgraph."""
        self.left_alone(Unsupported("not-compiled", f"{self.name}: {why_not_met(self.target)}", "compile the function that it calls"))

    def nothing_called(self) -> None:
        """For a module of which whoever compiled it knows that no call came through the region. Raises Unsupported under fullgraph."""
        reason = f"no call of {self.name} came through its region: its forward is called instead of the module, or nothing is"
        self.left_alone(Unsupported("not-compiled", reason, "call the module, not its forward; or compile the function that calls it"))

    def left_alone(self, reason: Unsupported) -> None:
        """The target runs as Python, which an event tells, and one warning."""
        if self.config.fullgraph:
            raise reason
        site = reason.site or (frame_name(self.target) if self.target is not None else self.name)
        SESSION.bus.emit(FrameSkipped(region=self.name, bucket=self.bucket, site=site, reason=f"[{reason.code}] {reason.reason}"))
        self.warn_of_python(reason)

    def warn_of_python(self, reason: Unsupported) -> None:
        if self.target not in self.warned:
            self.warned.add(self.target)
            warnings.warn(f"{self.name} is compiled in name only, and runs as Python: [{reason.code}] {reason.reason}", RuntimeWarning, stacklevel=3)

    def override(self, option: str) -> str:
        """Valid config that sets `option` for this region."""
        return override(self.name, self.key, option)


@dataclass(frozen=True)
class EntryInfo:
    """What the compiler knows of an entry: for explanations, never for running it. config keeps a callable backend alive, whose id tells kinds apart."""

    captured: Captured
    config: CompileConfig
    region: str
    bucket: int
    seconds: float
    graph: int
    lookup_ns: tuple[float, float]
    bytes: int


@dataclass(frozen=True)
class Dispatch:
    """A user's choice of a sub-bucket. choose: (*args, **kwargs) -> hashable key. settings: key, or "*" for the rest -> options of compile()."""

    choose: Callable[..., Any]
    settings: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)

    def config(self, key: Any, base: CompileConfig) -> CompileConfig:
        return dataclasses.replace(base, **self.settings.get(key, self.settings.get("*", {})))


def make_region(
    fn: Callable[..., Any],
    config: CompileConfig,
    owner: object,
    name: str,
    dispatch: Dispatch | None = None,
    target: CodeType | None = None,
    stands_for: bool = False,
) -> Any:
    """A native callable that runs `fn` with compiled frames; `fn` itself where the native core does not work here.

    target: the code that the compile is about, which is compiled also where its folder is left to Python. stands_for: that code only calls what
    the compile was asked for.
    """
    if not SESSION.start():
        return fn
    state = new_state(config, SESSION.bucket(config.isolate_recompiles, owner), name, target=target, stands_for=stands_for)
    named = {} if target is None else {"target": target}
    if dispatch is None:
        return native.core().Region(fn, on_miss, state, **named)

    def state_of_key(key: Any) -> Any:
        return new_state(dispatch.config(key, config), SESSION.bucket(True, owner), f"{name}[{shown_name(key)}]", (key,), target, stands_for)

    return native.core().Region(fn, on_miss, state, dispatch.choose, state_of_key, **named)


def new_state(config: CompileConfig, bucket: int, name: str, key: tuple[Any, ...] = (), target: CodeType | None = None, stands_for: bool = False) -> Any:
    name = printable(name)
    info = RegionInfo(name=name, config=config, bucket=bucket, key=key, target=target, stands_for=stands_for)
    return native.core().RegionState(
        bucket, config.fallback == "default", config.recompile_limit, config.accumulated_recompile_limit, name, info, config.kind()
    )


def buckets_of(region: Any) -> tuple[BucketView, ...]:
    """Views of a native Region's buckets."""
    states = [region._region_state] if region._region_states is None else list(region._region_states.values())
    codes = SESSION.known_codes()
    return tuple(bucket_view(codes, state) for state in states)


def on_miss(frame: Any, state: Any) -> Any:
    """Called by the hook for a frame of a region that no entry serves. Gives an Entry, or says how the frame is to run."""
    core, info = native.core(), state.owner
    code = frame.code
    function = frame.function
    if function is not None and getattr(function, DISABLED, None) is not None or getattr(function, "_torchdynamo_disable", False):
        if code is info.target:
            info.left_alone(Unsupported("disabled", f"{info.name} is marked to run as plain Python", "remove the mark, or the compile"))
        return core.SKIP_RECURSIVE
    while (other := SESSION.claim(code, info.bucket, frame)) is not None:
        if not ends_soon(other):
            text = "[being-compiled] another thread compiles it, and may wait for this one: this call runs as Python"
            SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=frame_name(code), reason=text))
            return core.RUN_PLAINLY
    existing = core.entries(code)
    own = [entry for bucket, entry in existing if bucket == info.bucket and entry.kind == state.kind]
    for entry in own:  # another thread may have made it while this one waited
        if entry.guards.check(tuple(frame.slots), frame.closure, frame.globals, frame.builtins):
            return entry
    same = [entry for entry in own if of_same_objects(entry, frame)]
    if len(same) >= info.config.recompile_limit:
        return over_limit(frame, info, same, "recompile_limit", alone=len(same) == len(own))
    if max(len(existing), info.made[code]) >= info.config.accumulated_recompile_limit:
        return over_limit(frame, info, own or [entry for _, entry in existing], "accumulated_recompile_limit", alone=True)
    if own and info.config.error_on_recompile:
        raise RecompileLimitError(f"{frame_name(code)} needs another entry, and error_on_recompile is set: {'; '.join(texts(nearest_failures(frame, own)))}")
    return new_entry(frame, info, own)


def ends_soon(other: weakref.ref[Ticket]) -> bool:
    """Waits for the end of another thread's compile. False where it may never come while this thread waits: that thread runs the program's code, which
    may wait for this one, or does not move for long, as where it waits for what this one holds."""
    before: tuple[int, int] | None = None
    moved = time.monotonic()
    pause = 0.0005
    while (ticket := other()) is not None:
        owner = ticket.owner
        del ticket  # it would live on here
        if owner == threading.get_ident():
            return False
        innermost = sys._current_frames().get(owner)
        if innermost is not None:
            if runs_program(innermost):
                return False
            place = id(innermost), innermost.f_lasti
            if place != before:
                before, moved = place, time.monotonic()
        if time.monotonic() - moved > PATIENCE:
            return False
        del innermost
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


def runs_program(frame: FrameType | None) -> bool:
    """Whether a thread that compiles, in this frame, runs code of the program's: a backend, a subscriber, a function that capture calls."""
    while frame is not None and frame.f_code is not on_miss.__code__:
        if frame.f_code in backends.CALLS_PROGRAM or not is_library(frame):
            return True
        frame = frame.f_back
    return False


def is_library(frame: FrameType) -> bool:
    """Whether a compile calls such code by itself. Code without a file is that of the module whose globals it has, if that has a name: torch makes some."""
    module = str(frame.f_globals.get("__name__", "torch")).partition(".")[0]
    return module in LIBRARIES or (module in ("torch", "dynacompile") if frame.f_code.co_filename[:1] == "<" else native.core().is_skipped(frame.f_code))


def why_not_met(target: CodeType | None) -> str:
    """Why a call of a region showed the compiler no frame. target: the code that the region is about."""
    if target is None:
        return "its code is not Python's"
    if runs_later(target):
        return "it is a generator or coroutine, whose frame runs after the call"
    match native.core().left_to_python(target):
        case "recursive":
            return "it is marked to run as Python with all that it calls, or lies in a folder that does"
        case "alone":
            return "capture has refused it before"
    return "it was not called"


def runs_later(code: CodeType) -> bool:
    """Whether a call makes a generator or coroutine, and runs none of the code."""
    return bool(code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))


def of_same_objects(entry: Any, frame: Any) -> bool:
    """Whether the objects that the entry knows by identity are this call's: entries for other objects don't count against the limit."""
    return not failures([guard for guard in entry.info.captured.guards if guard.kind == "ID"], frame)


def new_entry(frame: Any, info: RegionInfo, own: list[Any]) -> Any:
    """Compiles the frame."""
    core, code = native.core(), frame.code
    stages: list[Event] = []

    def emit(event: Event) -> None:
        stages.append(event)
        SESSION.bus.emit(event)

    env = Env(config=info.config, emit=emit, region=info.name, bucket=info.bucket, cache=cache_dir(), hand_off=SESSION.bus.hand_off)
    start = time.perf_counter()
    texts_before = frozenset(graph_module._loader.eval_cache)  # texts of dropped graphs go meanwhile, so counting them would not do
    differences = nearest_failures(frame, own) if own else []
    try:
        with failures_forgotten():
            captured, bound, guards = with_shapes(frame, env, shape_policy(frame, info, own))
    except Unsupported as reason:
        if info.config.fullgraph:
            raise
        SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=reason.site or frame_name(code), reason=f"[{reason.code}] {reason.reason}"))
        if code is info.target and reason.code not in WITHOUT_WARNING:
            info.warn_of_python(reason)
        return left_to_python(reason, info, code)
    seconds = time.perf_counter() - start
    if captured.break_ is not None:
        report_break(captured, info)
        if info.stands_for and code is info.target:
            info.warn_of_python(Unsupported(captured.break_.code, captured.break_.reason))
    hot, cold, held = guards.measure(tuple(frame.slots), frame.closure, frame.globals, frame.builtins, MEASURED_CHECKS)
    if info.config.verify and held < MEASURED_CHECKS + 2:
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
    )
    announce(made, captured, differences, own, info)
    described_entry = EntryInfo(captured, info.config, info.name, info.bucket, seconds, made.graph, (hot, cold), estimated_bytes(captured, bound))
    weakref.finalize(described_entry, forget_texts, texts_since(texts_before)).atexit = False
    info.made[code] += 1
    make_room(code, info, described_entry.bytes)
    return core.Entry(bound, guards, described_entry, captured.whole)


def announce(made: Compiled, captured: Captured, differences: list[Failure], own: list[Any], info: RegionInfo) -> None:
    """Tells of a new entry, its guards, and, where there were entries before, why none of them served."""
    SESSION.bus.emit(made)
    verbose = log_topics() & {"verbose_guards", "all"}
    listed = tuple(str(described(guard)) for guard in captured.guards) if verbose else ()
    if "verbose_guards" in verbose:
        show_on_screen(made.frame, [revealed(described(guard)) for guard in captured.guards], [f.revealing for f in differences])
    guarded = Guarded(region=info.name, bucket=info.bucket, frame=made.frame, guards=made.guards, lookup_ns=made.lookup_ns, cold_ns=made.cold_ns, texts=listed)
    SESSION.bus.emit(guarded)
    for f in differences:
        source = without_values(f.guard.source.text()) if f.guard.source is not None else f.subject
        gone = GuardFailed(region=info.name, bucket=info.bucket, kind=f.guard.kind, source=source, was=str(f.was), now=str(f.now), site=made.frame)
        SESSION.bus.emit(gone)
    if own:
        again = Recompiled(
            region=info.name,
            bucket=info.bucket,
            frame=made.frame,
            entries=len(own) + 1,
            limit=info.config.recompile_limit,
            failed=texts(differences),
            site=str(captured.site),
            seconds=made.seconds,
            override=info.override(shape_option(differences) or f"recompile_limit: {info.config.recompile_limit * 2}"),
            done=done_about(captured.guards, [entry.info.captured.guards for entry in own]),
        )
        SESSION.bus.emit(again)


def refused(captured: Captured, guards: Any, frame: Any) -> str:
    """Which guard the machine stopped at, and what the Python twin says of all."""
    stopped = "none" if guards.last_failed < 0 else described(captured.guards[guards.last_failed])
    return f"{frame_name(frame.code)}: {stopped}; {'; '.join(texts(failures(captured.guards, frame))) or 'the Python twin finds that all hold'}"


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


def make_room(code: CodeType, info: RegionInfo, wanted: int) -> None:
    """Drops the least recently used entries of the region's bucket, where max_entries or max_bytes leaves no room for one more of `code`."""
    config, core = info.config, native.core()
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


def with_shapes(frame: Any, env: Env, policy: ShapePolicy | None) -> tuple[Captured, Any, Any]:
    """The frame, compiled with the symbols that the policy asks for; without those for values, and then with constants in their place, where some
    stage can't have symbols. What is given up is told."""
    make_call = backends.resolve(env.config.backend)
    attempts = [] if policy is None else [("sizes and numbers", policy)]
    if policy is not None and policy.values:
        attempts = [("values", policy), ("sizes and numbers", dataclasses.replace(policy, values=False))]
    refused: list[SymbolsRefused] = []
    for what, tried in attempts:
        try:
            made = compile_frame(frame, make_call, env, SESSION.code_cache, tried)
        except Unsupported as reason:
            if not tried or reason.code in UNBOUNDED or reason.code == "internal" and env.config.verify:
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
        floats=not config.specialize_float,
        ones=not config.specialize_zero_one,
        values=config.capture_values,
        loops=not config.specialize_int,
    )
    known = info.shapes.get(frame.code, first) if own else first
    info.shapes[frame.code] = known = policy_after(known, [entry.info.captured.guards for entry in own], frame)
    return known


def left_to_python(reason: Unsupported, info: RegionInfo, code: CodeType) -> Any:
    """The answer for a frame that can't be captured: this call alone, where another call may be captured, else every call."""
    if reason.code == "active-mode":
        return native.core().RUN_ONCE
    info.refused[code] += 1
    return native.core().RUN_ONCE if reason.code in OF_THE_CALL and info.refused[code] < MOST_REFUSALS else native.core().SKIP


def launches(events: list[Event]) -> int:
    """Kernel launches of the programs that were scheduled; a backward that is compiled at its first use isn't among them."""
    return sum(value for e in events if isinstance(e, StageFinished) and e.stage == "schedule" for name, value in e.facts if name == "launches")


def report_break(captured: Captured, info: RegionInfo) -> None:
    b = captured.break_
    assert b is not None
    *outer, site = map(str, b.stack or (captured.site,))
    broke = GraphBroke(region=info.name, bucket=info.bucket, code=b.code, reason=b.reason, hint=b.hint, site=site, callers=tuple(reversed(outer)))
    SESSION.bus.emit(broke)


def over_limit(frame: Any, info: RegionInfo, entries: list[Any], option: str, *, alone: bool) -> Any:
    """The bucket is full: this region runs the frame eagerly, says so once, or raises. alone: it is full for every object."""
    config = info.config
    limit = getattr(config, option)
    failed = texts(nearest_failures(frame, entries))
    guard = failed[0] if failed else "unknown"
    more = info.override(f"{option}: {limit * 2}")
    text = (
        f"{frame_name(frame.code)} in region {info.name!r} reached {option}={limit} of bucket {info.bucket}; "
        f"the guard that keeps failing: {guard}. This region runs it eagerly from now on. To allow more: {more}"
    )
    if config.fullgraph or config.error_on_recompile or config.fail_on_recompile_limit_hit:
        raise RecompileLimitError(text)
    if frame.code not in info.warned:
        info.warned.add(frame.code)
        hit = LimitHit(
            region=info.name,
            bucket=info.bucket,
            frame=frame_name(frame.code),
            limit=limit,
            guard=guard,
            override=more,
            failed=failed,
            entries=len(entries),
        )
        SESSION.bus.emit(hit)
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return native.core().RUN_ONCE if alone else native.core().RUN_PLAINLY
