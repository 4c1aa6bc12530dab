"""What happened while compiling, counted from the compiler's events."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dynacompile import events
from dynacompile.callbacks.paths import with_names, with_setting
from dynacompile.complaints import COMPLAINTS, Reporting
from dynacompile.events import Event
from dynacompile.quoting import printable
from dynacompile.run_files import Lines

Kind = TypeVar("Kind", bound=Event)
Row = tuple[int, str, str, str]  # batch, event, region, what
COLUMNS = ("module", "step", "trigger", "old -> new", "line", "seconds", "action", "advice")


class Told(NamedTuple):
    """An event as a user reads it, in the order of COLUMNS. step: the training batch. line: of the user. action: what was done. advice: what to do."""

    module: str
    step: int
    trigger: str
    change: str
    line: str
    seconds: float
    action: str
    advice: str


@dataclass
class Ledger:
    """Keeps the events of one fit. `batch` is the training batch that they fell into; `lines` takes each as a line of JSON."""

    batch: int = 0
    lines: Lines | None = None
    seen: list[tuple[int, Event]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        event = with_setting(with_names(event))
        self.seen.append((self.batch, event))
        if self.lines is not None:
            with Reporting(f"writing {self.lines.path}"):
                self.lines.append(json.dumps({"batch": self.batch, **events.to_json(event)}))

    @property
    def resumed(self) -> str:
        """What the fit went on from; empty where it began."""
        return "; ".join(map(resumed, self.of(events.Resumed)))

    def of(self, kind: type[Kind]) -> Iterator[Kind]:
        return (event for _, event in self.seen if isinstance(event, kind))

    def count(self, kind: type[Event]) -> int:
        return sum(1 for _ in self.of(kind))

    @property
    def compile_seconds(self) -> float:
        """Seconds in the compiler's stages, backward graphs (compiled at their first use) included."""
        return sum(event.seconds for event in self.of(events.StageFinished))

    @property
    def kernels(self) -> int:
        return sum(dict(event.facts).get("launches", 0) for event in self.of(events.StageFinished) if event.stage == "schedule")

    @property
    def graphs(self) -> int:
        """Entries that hold a graph; a frame without tensor work makes none."""
        return sum(event.ops > 0 for event in self.of(events.Compiled))

    @property
    def recompiles(self) -> list[events.Recompiled]:
        return list(self.of(events.Recompiled))

    @property
    def breaks(self) -> list[events.GraphBroke]:
        return list(self.of(events.GraphBroke))

    def metrics(self) -> dict[str, float]:
        """The counts that go to the loggers, by name without prefix."""
        looked = list(self.of(events.CacheLooked))
        return {
            "seconds": self.compile_seconds,
            "entries": self.count(events.Compiled),
            "graphs": self.graphs,
            "kernels": self.kernels,
            "graph_breaks": self.count(events.GraphBroke),
            "recompiles": self.count(events.Recompiled),
            "limits_hit": self.count(events.LimitHit),
            "cache_hits": sum(event.hit for event in looked),
            "cache_misses": sum(not event.hit for event in looked),
        }

    @property
    def from_cache(self) -> str:
        """How many of the libraries and kernels that this run needed were there already; empty where none was."""
        looked = list(self.of(events.CacheLooked))
        hits = sum(event.hit for event in looked)
        return f"{hits} of {len(looked)} builds from the cache" if hits else ""

    def per_region(self) -> dict[str, dict[str, float]]:
        """Graphs, recompiles, breaks and seconds of each compiled function or module."""
        table: dict[str, dict[str, float]] = {}
        for _, event in self.seen:
            counts = table.setdefault(event.region, defaultdict(float))
            match event:
                case events.Compiled():
                    counts["graphs"] += event.ops > 0
                case events.StageFinished():
                    counts["seconds"] += event.seconds
                case events.Recompiled():
                    counts["recompiles"] += 1
                case events.GraphBroke():
                    counts["graph_breaks"] += 1
        return {region: dict(counts) for region, counts in sorted(table.items()) if counts}

    def has_graph(self, region: str) -> bool:
        """Whether something is compiled of a module or step that was called. One without an event of its own runs with entries that a like one made."""
        is_served = all(event.region != region for _, event in self.seen)
        return any((event.region == region or is_served) and event.ops > 0 for event in self.of(events.Compiled))

    def has_made(self, region: str) -> bool:
        """Whether an entry was made for a module or step itself."""
        return any(event.region == region for event in self.of(events.Compiled))

    def why_eager(self, region: str) -> str:
        """Why nothing is compiled of a module or step that was called."""
        reasons = [event.reason for event in self.of(events.FrameSkipped) if event.region == region]
        reasons += [f"[{event.code}] {event.reason}" for event in self.of(events.GraphBroke) if event.region == region]
        if not reasons and not self.has_made(region):
            return "the run ended before it was compiled"
        return reasons[0] if reasons else "it has no operations on tensors"

    def told(self) -> list[Told]:
        """The events that a user wants to know of, in order. A recompile stands for the entry that it made."""
        made: dict[int, Told] = {}
        entries: dict[tuple[str, int, str], list[int]] = {}  # those that no recompile stands for, by what recompiles tell of them
        for at, (batch, event) in enumerate(self.seen):
            if (row := row_of(batch, event)) is None:
                continue
            made[at] = row
            if isinstance(event, events.Compiled):
                entries.setdefault((event.region, event.bucket, event.frame), []).append(at)
            elif isinstance(event, events.Recompiled) and (known := entries.get((event.region, event.bucket, event.frame))):
                del made[known.pop()]
        return list(made.values())

    def rows(self) -> list[Row]:
        """The events worth a table row."""
        told = [(batch, event, describe(event)) for batch, event in self.seen]
        return [(batch, type(event).__name__, printable(event.region), printable(line, longest=4000)) for batch, event, line in told if line]


def row_of(batch: int, event: Event) -> Told | None:
    """One event as a row; None for those that only a trace needs."""
    match event:
        case events.Compiled():
            found = ("first call", "", event.frame, event.seconds, f"compiled: {event.ops} ops, {event.kernels} kernels", "")
        case events.Recompiled():
            known = event.override or (f"expected: {event.expected}" if event.expected else "")
            found = (*changes(event.failed), event.site or event.frame, event.seconds, event.done, known)
        case events.GraphBroke():
            found = (f"[{event.code}] {event.reason}", "", event.site, 0.0, "the graph ends here, and Python goes on", event.hint)
        case events.LimitHit():
            subject, change = changes(event.failed or (event.guard,))
            entries = "entry" if event.limit == 1 else "entries"
            found = (f"limit of {event.limit} {entries}: {subject}", change, event.frame, 0.0, "runs as Python from now on", event.override)
        case events.FrameSkipped():
            found = (event.reason, "", event.site, 0.0, "runs as Python", "")
        case events.Evicted():
            found = ("max_entries or max_bytes", "", event.frame, 0.0, f"an entry with {event.hits} hits is dropped", "")
        case events.Resumed():
            found = ("the fit was resumed", "", "", 0.0, resumed(event), "")
        case events.GraphRecorded() if not event.recorded:
            found = (event.reason, "", "", 0.0, "no CUDA graph", "")
        case _:
            return None
    trigger, change, line, seconds, action, known = found
    shown = [printable(text, longest=4000) for text in (trigger, change, line)]
    return Told(printable(event.region), batch, shown[0], shown[1], shown[2], seconds, printable(action), printable(known))


def changes(failed: Sequence[str]) -> tuple[str, str]:
    """What differed, and from what to what: the first, and how many there are."""
    if not failed:
        return "unknown", ""
    subject, _, change = failed[0].partition(": ")
    return subject + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""), change


def describe(event: Event) -> str:
    """One line on an event; empty for those that only a trace needs."""
    match event:
        case events.Compiled():
            return f"graph {event.graph} of {event.frame}: {event.ops} ops, {event.guards} guards in {event.seconds:.2f} s"
        case events.Recompiled():
            known = advice("to prevent", event.override) or advice("expected", event.expected)
            return f"entry {event.entries} of {event.limit} for {event.frame}: {'; '.join(event.failed)}{known}"
        case events.GraphBroke():
            return f"[{event.code}] {event.reason} at {event.site}{advice('hint', event.hint)}"
        case events.LimitHit():
            return f"{event.frame} is at its limit of {event.limit}: {event.guard}{advice('to allow more', event.override)}"
        case events.FrameSkipped():
            return f"{event.site} is left to Python: {event.reason}"
        case events.Resumed():
            return resumed(event)
        case events.GraphRecorded():
            return "CUDA graph recorded" if event.recorded else f"no CUDA graph: {event.reason}"
        case _:
            return ""


def resumed(event: events.Resumed) -> str:
    """What a fit goes on from."""
    told = f"from {event.checkpoint} at step {event.step}" if event.checkpoint else "from the start"
    return told + (f"; the run of {event.after} was killed, or still goes on" if event.after else "")


def read_trace(path: Path) -> Ledger:
    """The ledger of a trace: a `compile_events.jsonl`, or a file that DYNACOMPILE_TRACE named (which knows no batches). A line that a full disk has torn
    is left out."""
    ledger = Ledger()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line:  # it ends one that another thread or process was still writing
            continue
        try:
            values = json.loads(line)
            kind = KINDS[values.pop("event")]
        except (ValueError, LookupError, AttributeError, TypeError):
            COMPLAINTS.warn(("trace", str(path)), f"{path} has lines that are no events: they are left out")
            continue
        ledger.batch = values.pop("batch", 0)
        ledger.seen.append((ledger.batch, with_names(kind(**{name: hashable(value) for name, value in values.items()}))))
    return ledger


KINDS = {kind.__name__: kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}


def hashable(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(hashable(item) for item in value) if isinstance(value, list) else value


def advice(kind: str, text: str) -> str:
    return f" ({kind}: {text})" if text else ""


def open_trace(path: Path) -> Lines:
    """A new file for lines. Raises OSError, a FileExistsError where it is there already."""
    lines = Lines(path)
    lines.begin()
    return lines
