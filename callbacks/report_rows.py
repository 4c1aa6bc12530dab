"""What the tables of a report hold: modules and steps, what happened to them, and kernels. Rows that say the same are one row, so that pages stay short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger, Told
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.source_lines import source
from dynacompile.quoting import printable

SHOWN_CHANGES = 4  # of the recompiles that one row stands for
SHOWN_TEXTS = 12  # lines of the user, and decisions, of one kernel
LONGEST = 300  # of a decision's text


@dataclass(frozen=True)
class Part:
    """A module or step that was to be compiled, or another compiled function of the program. runs: "compiled", or "as Python" and why. options: those in
    which it differs from the settings of the run. lookup: nanoseconds of a check of its guards, of the slowest entry."""

    name: str
    runs: str
    counts: Mapping[str, float]
    options: str
    entries: int
    limit: int
    lookup: float


@dataclass
class Happened:
    """Events that say the same of one module. steps: the batches that they fell into. changes: what they had before -> after. source: the user's lines."""

    told: Told
    source: str
    steps: list[int] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def when(self) -> str:
        first, last = min(self.steps), max(self.steps)
        return str(first) if first == last else f"{first} to {last}"

    @property
    def change(self) -> str:
        known = list(dict.fromkeys(change for change in self.changes if change))
        more = f" and {len(known) - SHOWN_CHANGES} more" if len(known) > SHOWN_CHANGES else ""
        return "; ".join(known[:SHOWN_CHANGES]) + more


@dataclass(frozen=True)
class KernelRow:
    """A kernel, or calls of a library. microseconds: of a launch, where it was measured by max-autotune, else 0."""

    region: str
    name: str
    launches: int
    megabytes: float
    ops: str
    sites: tuple[str, ...]
    decisions: tuple[str, ...]
    microseconds: float = 0.0

    @property
    def rate(self) -> float:
        """Gigabytes a second; 0 where the time is not known."""
        return self.megabytes * 1e3 / (self.microseconds * self.launches) if self.microseconds and self.launches else 0.0


def anchor(name: str) -> str:
    """The name of a place in the page for a module or step."""
    return "part-" + re.sub(r"[^\w.-]", "_", name)


def parts_of(record: RunRecord) -> list[Part]:
    summary, ledger = record.summary, record.ledger
    counts = ledger.per_region()
    states = dict.fromkeys(summary["modules"], "compiled") | {name: f"as Python: {reason}" for name, reason in summary["eager"].items()}
    others = [name for name in counts if name not in states]
    own = summary.get("settings", {}).get("parts", {})
    limits = {event.region: event.limit for event in ledger.of(events.Recompiled)} | {event.region: event.limit for event in ledger.of(events.LimitHit)}
    made = Counter(event.region for event in ledger.of(events.Compiled))
    lookups: dict[str, float] = {}
    for event in ledger.of(events.Compiled):
        lookups[event.region] = max(lookups.get(event.region, 0.0), event.lookup_ns)
    return [
        Part(
            name,
            states.get(name, "compiled, by itself"),
            counts.get(name, {}),
            ", ".join(f"{key}={value}" for key, value in own.get(name, {}).items()),
            made[name],
            limits.get(name, 0),
            lookups.get(name, 0.0),
        )
        for name in (*states, *others)
    ]


def happened(ledger: Ledger) -> list[Happened]:
    """What happened, in order; the events that differ in batch, seconds and values alone are one row."""
    rows: dict[tuple[str, ...], Happened] = {}
    for told in ledger.told():
        row = rows.setdefault((told.module, told.trigger, told.line, told.action, told.advice), Happened(told, ""))
        row.steps.append(told.step)
        row.changes.append(told.change)
        row.seconds += told.seconds
    files: dict[str, list[str]] = {}
    for row in rows.values():
        row.source = source(row.told.line, files)
    return list(rows.values())


def kernel_rows(ledger: Ledger) -> list[KernelRow]:
    """Kernels and calls of all programs, those that move most first."""
    decided: dict[tuple[str, str], list[str]] = {}
    times: dict[tuple[str, str], float] = {}
    for event in ledger.of(events.FusionDecided):
        verb = "fuses" if event.fused else "stays apart from"
        saved = f", which saves {event.bytes_saved / 1e6:.2f} MB" if event.fused and event.bytes_saved else ""
        decided.setdefault((event.region, event.kernel), []).append(f"{verb} {', '.join(event.members)}{saved}{': ' if event.reason else ''}{event.reason}")
    for tuned in ledger.of(events.KernelTuned):
        best = ", ".join(f"{name} {us:.1f} us" for name, us in sorted(tuned.candidates, key=lambda c: c[1])[:4])
        decided.setdefault((tuned.region, tuned.kernel), []).append(f"tuned: {tuned.winner} of {len(tuned.candidates)} ({best})")
        times[tuned.region, tuned.kernel] = dict(tuned.candidates).get(tuned.winner, 0.0)
    rows = []
    for event in ledger.of(events.Scheduled):
        for name, launches, moved, ops, sites in event.kernels:
            told = decided.get((event.region, name), ()) or decided.get(("", name), ())
            took = times.get((event.region, name), times.get(("", name), 0.0))
            rows.append(KernelRow(event.region, name, launches, moved / 1e6, ", ".join(ops), few(sites), few(told), took))
        rows += [KernelRow(event.region, f"{op} (a library's)", count, 0.0, op, (), ()) for op, count in event.calls]
    return sorted(rows, key=lambda row: -row.megabytes)


def few(texts: Sequence[str]) -> tuple[str, ...]:
    """The first of them, and how many more there are."""
    more = (f"and {len(texts) - SHOWN_TEXTS} more",) if len(texts) > SHOWN_TEXTS else ()
    return (*(printable(text, longest=LONGEST) for text in texts[:SHOWN_TEXTS]), *more)


def why_apart(ledger: Ledger) -> list[tuple[str, int]]:
    """Why kernels were not fused, and how often each reason was given."""
    return Counter(event.reason for event in ledger.of(events.FusionDecided) if not event.fused and event.reason).most_common()
