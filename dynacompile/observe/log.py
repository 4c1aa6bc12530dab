"""DYNACOMPILE_LOGS=recompiles,graph_breaks,...: one line for each event of the chosen topics, through the `dynacompile` logger."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from dynacompile.complaints import COMPLAINTS, Reporting
from dynacompile.env import log_topics
from dynacompile.errors import nearest
from dynacompile.events import (
    AttentionFound,
    BuiltInBackground,
    CacheLooked,
    Compiled,
    Drawn,
    Event,
    Evicted,
    FirstStepLeft,
    FrameSkipped,
    FusionDecided,
    Generated,
    GraphBroke,
    GraphRecorded,
    Guarded,
    GuardFailed,
    KernelRefused,
    KernelTuned,
    LimitHit,
    LossChunked,
    MaskRead,
    ProductDecided,
    ProgramTimed,
    Recompiled,
    Resumed,
    Scheduled,
    StageFinished,
    Subscriber,
    SymbolsRefused,
)
from dynacompile.quoting import printable_lines

TOPICS: dict[str, tuple[type[Event], ...]] = {
    "recompiles": (Recompiled, LimitHit, Evicted, SymbolsRefused),
    "graph_breaks": (GraphBroke,),
    "skips": (FrameSkipped, FirstStepLeft),
    "guards": (Guarded, GuardFailed),
    "verbose_guards": (Guarded, GuardFailed),
    "compiles": (Compiled, BuiltInBackground, Resumed),
    "stages": (StageFinished,),
    "schedules": (Scheduled,),
    "code": (Generated,),
    "times": (ProgramTimed,),
    "fusion": (FusionDecided,),
    "products": (ProductDecided,),
    "masks": (MaskRead,),
    "attention": (AttentionFound, MaskRead),
    "losses": (LossChunked,),
    "draws": (Drawn,),
    "autotune": (KernelTuned, KernelRefused),
    "cache": (CacheLooked,),
    "cudagraphs": (GraphRecorded,),
}


def log_subscriber() -> Subscriber | None:
    """A subscriber for the topics of DYNACOMPILE_LOGS, or None where it names none. An unknown topic is a warning that names the nearest ones."""
    chosen = log_topics()
    for topic in sorted(chosen - {"all", *TOPICS}):
        COMPLAINTS.warn(("DYNACOMPILE_LOGS", topic), f"DYNACOMPILE_LOGS: there is no topic {topic!r}, which is left out: {nearest(topic, [*TOPICS, 'all'])}")
    if not chosen & {"all", *TOPICS}:
        return None
    wanted = tuple(t for name, types in TOPICS.items() if name in chosen or "all" in chosen for t in types)
    logger = logging.getLogger("dynacompile")
    logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[dynacompile] %(message)s"))
        logger.addHandler(handler)

    def log(event: Event) -> None:
        if isinstance(event, wanted):
            logger.info("%s", printable_lines(line(event)))

    return log


def show_on_screen(frame: str, guards: Sequence[str], differences: Sequence[str]) -> None:
    """What verbose_guards tells with values, which are for the user's screen: no event, log or report has them."""
    lines = [f"[dynacompile] values in the guards of {frame}:", *(f"    {text}" for text in guards)]
    lines += ["[dynacompile] and what differs:", *(f"    {text}" for text in differences)] if differences else []
    with Reporting("DYNACOMPILE_LOGS=verbose_guards"):
        print("\n".join(map(printable_lines, lines)), file=sys.stderr, flush=True)


def product_line(who: str, event: ProductDecided) -> str:
    known = "measured" if event.measured else "expected"
    times = f" ({known}: {event.fused_us:.1f} us as one, {event.apart_us:.1f} us apart)" if event.apart_us else ""
    where = f" is {'one kernel with' if event.fused else 'apart from'} {', '.join(event.members)}" if event.members else ""
    text = f"product {who} {event.product}{where}: {event.reason}{times}"
    return text + (f"\n    at {event.site}" if event.site else "")


def line(event: Event) -> str:
    """One readable text for an event; several lines where there are several facts."""
    who = f"{event.region}[{event.bucket}]" if event.region else ""
    match event:
        case Recompiled():
            failed = "".join(f"\n    {f}" for f in event.failed)
            entry = f"recompile {who} {event.frame}, entry {event.entries} of {event.limit}, {event.seconds:.2f} s"
            known = f"to prevent it: {event.override}" if event.override else f"expected: {event.expected}"
            return f"{entry}, because{failed}\n    done: {event.done}; {known}"
        case LimitHit():
            failed = "".join(f"\n    {f}" for f in event.failed or (event.guard,))
            reached = f"limit {who} {event.frame}, {event.entries} of {event.limit} entries"
            return f"{reached}, because{failed}\n    done: {event.done}; to allow more: {event.override}"
        case GraphBroke():
            places = "".join(f"\n    called at {caller}" for caller in event.callers)
            return f"graph break {who} [{event.code}] {event.reason}\n    at {event.site}{places}" + (f"\n    hint: {event.hint}" if event.hint else "")
        case FrameSkipped():
            return f"skip {who} {event.site}: {event.reason}"
        case FirstStepLeft():
            return f"first step {who} {event.frame} runs as Python: {event.reason}"
        case SymbolsRefused():
            return f"constants {who} {event.frame}: {event.refused} are not symbolic: [{event.code}] {event.reason}"
        case GuardFailed():
            return f"guard {who} {event.kind} {event.source}: {event.was} -> {event.now}"
        case Guarded():
            head = f"guards {who} {event.frame}: {event.guards}, checked in {event.lookup_ns:.0f} ns ({event.cold_ns:.0f} ns with cold caches)"
            return head + "".join(f"\n    {text}" for text in event.texts)
        case Evicted():
            return f"evicted {who} an entry of {event.frame}: {event.hits} hits, {event.bytes} bytes"
        case Compiled():
            return f"compiled {who} {event.frame}: graph {event.graph}, {event.ops} ops, {event.guards} guards, {event.seconds:.2f} s"
        case BuiltInBackground():
            return f"in the background {who} {event.frame}: {event.seconds:.2f} s, calls ran eagerly for {event.eager_seconds:.2f} s"
        case StageFinished():
            facts = ", ".join(f"{name} {value}" for name, value in event.facts)
            return f"stage {who} {event.stage} {event.seconds * 1e3:.1f} ms" + (f" ({facts})" if facts else "")
        case Scheduled():
            shown = ", ".join(f"{name} ({launches} x, {moved} bytes)" for name, launches, moved, _, _ in event.kernels)
            called = ", ".join(f"{op} ({count} x)" for op, count in event.calls)
            return f"schedule {who} on {event.device}: kernels {shown or 'none'}; calls {called or 'none'}"
        case Generated():
            return f"code {who}" + "".join(f"\n{text}" for _, _, text in event.kernels)
        case ProgramTimed():
            took = "".join(f"\n    {us:9.1f} us  {name} ({launches} x)" for name, launches, us, _, _ in sorted(event.steps, key=lambda s: -s[2]))
            return f"times {who} {event.part} on {event.device}, means of {event.runs} runs:{took}"
        case FusionDecided():
            return f"{'fused' if event.fused else 'not fused'} {event.kernel}: {', '.join(event.members)}, saves {event.bytes_saved} bytes {event.reason}"
        case ProductDecided():
            return product_line(who, event)
        case MaskRead():
            return f"attention {who} at {event.site}: mask {event.found}"
        case AttentionFound():
            how = "as written" if not event.kernel else "by kernels of ours" if event.ours else "by the operator of torch"
            return f"attention {who} at {event.site}: {how}, {event.reason}"
        case Drawn():
            return f"random numbers {who} of {event.op} at {event.site}: {'drawn by kernels of ours' if event.kernel else f'a call of ATen, {event.reason}'}"
        case LossChunked():
            return f"loss {who} at {event.site}: {'in chunks' if event.chunked else 'whole'}, {event.reason}"
        case KernelTuned():
            return f"tuned {event.kernel}: {event.winner} of " + ", ".join(f"{name} {us:.1f} us" for name, us in event.candidates)
        case KernelRefused():
            return f"refused {event.kernel}: {event.candidate}, {event.error}"
        case CacheLooked():
            return f"cache {event.tier} {event.key} {'hit' if event.hit else 'miss'}"
        case GraphRecorded():
            return f"CUDA graph {who} {'recorded' if event.recorded else 'not recorded'} {event.reason}"
        case Resumed():
            before = f"; the run of {event.after} was killed, or still goes on" if event.after else ""
            return f"the fit was resumed from {f'{event.checkpoint} at step {event.step}' if event.checkpoint else 'the start'}{before}"
        case _:
            return f"{type(event).__name__} {who}"
