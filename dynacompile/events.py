"""What happened, as typed facts. Stages emit them; the log, the trace, explain() and the callback subscribe.

An event holds plain data only (str, int, float, tuples), so that it can be written as JSON as it is. Of strings, environment variables and attributes of
the user it tells types, lengths and digests, never values: events are written to files and sent to other hosts.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dynacompile.complaints import Reporting


@dataclass(frozen=True, kw_only=True)
class Event:
    """region: name of the compiled function or module; bucket: its bucket id (-1 is the shared default)."""

    region: str = ""
    bucket: int = -1
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class StageFinished(Event):
    stage: str
    seconds: float
    facts: tuple[tuple[str, int], ...] = ()  # counts of this stage's output: ops, kernels, bytes, ...


@dataclass(frozen=True, kw_only=True)
class GraphBroke(Event):
    code: str
    reason: str
    hint: str
    site: str  # "file:line in function"
    callers: tuple[str, ...] = ()  # the places that it was inlined at, innermost first


@dataclass(frozen=True, kw_only=True)
class FrameSkipped(Event):
    """A frame that the compiler leaves to Python, with the reason."""

    site: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FirstStepLeft(Event):
    """A call in which an optimizer makes its state: it runs as Python, and what later calls do is compiled."""

    frame: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SymbolsRefused(Event):
    """A frame whose sizes or numbers are constants, or whose values stay in their tensors, since a stage has no symbolic form for it."""

    frame: str
    refused: str  # what should have been symbols: "sizes and numbers", or "values"
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class GuardFailed(Event):
    """One guard of an existing entry that did not hold for a call."""

    kind: str
    source: str
    was: str
    now: str
    site: str = ""


@dataclass(frozen=True, kw_only=True)
class Guarded(Event):
    """The guards of a new entry. texts: each of them, without values of strings, where DYNACOMPILE_LOGS=verbose_guards asks for it."""

    frame: str
    guards: int
    lookup_ns: float  # nanoseconds of a check of all, with hot caches
    cold_ns: float  # with cold ones
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evicted(Event):
    """An entry that gave way to a new one, by max_entries or max_bytes."""

    frame: str
    hits: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Compiled(Event):
    """A new entry: one frame captured and built."""

    frame: str  # "function (file:line)"
    graph: int  # serial number of the graph in this process
    ops: int
    guards: int
    kernels: int
    seconds: float
    lookup_ns: float = 0.0  # what a check of its guards takes
    cold_ns: float = 0.0  # and takes with cold caches
    kinds: tuple[tuple[str, int], ...] = ()  # of its guards, and how many there are of each, most first


@dataclass(frozen=True, kw_only=True)
class BuiltInBackground(Event):
    """An entry that no call has waited for. seconds: what its compile took on a thread of its own; eager_seconds: for how long calls of the frame ran
    eagerly, from the one that asked for the entry until it was there."""

    frame: str
    seconds: float
    eager_seconds: float


@dataclass(frozen=True, kw_only=True)
class Recompiled(Event):
    """An entry made for code that already had one. `failed` are the nearest entry's failing guards. done: "new entry", or "made x.size(0) dynamic".
    override: settings that would have prevented it; empty where none would, and `expected` says why."""

    frame: str
    entries: int
    limit: int
    failed: tuple[str, ...]  # "L['x'].size(0): 4 -> 8"
    site: str
    seconds: float
    override: str
    done: str = "new entry"
    expected: str = ""


@dataclass(frozen=True, kw_only=True)
class LimitHit(Event):
    """A region that runs a frame eagerly from now on. guard: the first of `failed`, the nearest entry's failing guards."""

    frame: str
    limit: int
    guard: str
    override: str
    failed: tuple[str, ...] = ()
    entries: int = 0
    done: str = "eager"


@dataclass(frozen=True, kw_only=True)
class MaskRead(Event):
    """What the mask of one attention is. found: "all", which hides nothing and is left out; "causal", in whose place is_causal is set; or "kept"."""

    site: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Drawn(Event):
    """Random numbers of one operation on a GPU, and whether kernels of ours draw them where they are used. reason: why it is a call of ATen."""

    site: str
    op: str
    kernel: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class AttentionFound(Event):
    """Hand-written attention or flex_attention, and whether an attention kernel computes it: torch's, or ours."""

    site: str
    kernel: bool
    reason: str
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Scheduled(Event):
    """A program as it will run. number: serial in this process. part: of a graph, "forward" or "backward". kernels: name, launches, bytes that they move,
    names of their operations, and the user's lines. calls: the operation, and how often it is called. call_sites: the user's lines of each called operation."""

    device: str
    kernels: tuple[tuple[str, int, int, tuple[str, ...], tuple[str, ...]], ...]
    calls: tuple[tuple[str, int], ...]
    number: int = 0
    part: str = ""
    call_sites: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Generated(Event):
    """The text of a program's kernels: name, language ("cpp", "triton" or "reference") and text. number: of the program."""

    number: int
    kernels: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ProgramTimed(Event):
    """What a program does with its time, as measured. number, part: as of Scheduled. steps: of each kernel and called operation its name, launches of one run,
    and of all these the microseconds, the bytes that they move at the least, and the operations that they compute. rest_us: microseconds in which memory is
    taken and given back. bandwidth, flops: bytes and operations a second that the machine reaches."""

    number: int
    part: str
    device: str
    runs: int
    steps: tuple[tuple[str, int, float, int, int], ...]
    rest_us: float
    bandwidth: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class FusionDecided(Event):
    kernel: str
    members: tuple[str, ...]
    bytes_saved: int
    fused: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ProductDecided(Event):
    """Whether a product of matrices is one kernel with what is computed of its results, on CPUs whether it is a kernel at all. Microseconds: as one, and as
    a call of the library and a kernel (on CPUs of the loops and of the call); measured, or as the model of the device has them; 0 where neither was asked."""

    product: str
    members: tuple[str, ...]
    fused: bool
    reason: str
    measured: bool = False
    fused_us: float = 0.0
    apart_us: float = 0.0
    site: str = ""


@dataclass(frozen=True, kw_only=True)
class LossChunked(Event):
    """A cross entropy of a linear layer with many classes, or what is picked of its softmax, and whether it is computed in chunks of rows. bytes: of the
    layer's results."""

    chunked: bool
    reason: str
    bytes: int
    site: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelTuned(Event):
    kernel: str
    winner: str
    candidates: tuple[tuple[str, float], ...]  # (configuration, microseconds)


@dataclass(frozen=True, kw_only=True)
class KernelRefused(Event):
    """A candidate that the compiler of its language does not compile; another one takes its place."""

    kernel: str
    candidate: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheLooked(Event):
    tier: str  # captured | differentiated | sources | binaries
    key: str
    hit: bool


@dataclass(frozen=True, kw_only=True)
class GraphRecorded(Event):
    """A CUDA graph was captured, or why it could not be."""

    recorded: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """A fit that goes on from a checkpoint, or begins again in the folder of a run that left no summary. What it compiles, another process has compiled."""

    checkpoint: str = ""  # its path
    step: int = 0  # steps of optimizers that were done before
    after: str = ""  # name of the trace that has no summary: its run was killed, or goes on


def to_json(event: Event) -> dict:
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


Subscriber = Callable[[Event], None]
Observer = Callable[[str, object], None]  # a stage's name, and what it handed on


class Bus:
    """Delivers events to subscribers and hand-offs to observers, in the order in which they came, on the emitting thread."""

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._subscribers: dict[int, Subscriber] = {}
        self._observers: dict[int, Observer] = {}

    def emit(self, event: Event) -> None:
        """A subscriber that raises is warned of once; the others, and the work, go on."""
        for subscriber in tuple(self._subscribers.values()):
            with Reporting(f"the subscriber {getattr(subscriber, '__qualname__', type(subscriber).__qualname__)}"):
                subscriber(event)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Returns the function that ends the subscription."""
        key = next(self._keys)
        self._subscribers[key] = subscriber
        return lambda: self._subscribers.pop(key, None) and None

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        events: list[Event] = []
        end = self.subscribe(events.append)
        try:
            yield events
        finally:
            end()

    def hand_off(self, stage: str, result: object) -> None:
        for observer in tuple(self._observers.values()):
            with Reporting(f"the observer {getattr(observer, '__qualname__', type(observer).__qualname__)}"):
                observer(stage, result)

    @contextmanager
    def observing(self, observer: Observer | None) -> Iterator[None]:
        """Inside it, `observer` gets what each stage hands on; None: nothing does."""
        key = next(self._keys)
        if observer is not None:
            self._observers[key] = observer
        try:
            yield
        finally:
            self._observers.pop(key, None)
