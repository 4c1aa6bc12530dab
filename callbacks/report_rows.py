"""What the tables of a report hold: modules and steps, their entries, and what happened to them. Rows that say the same are one row: pages stay short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger, Told
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.source_lines import source

SHOWN_CHANGES = 4  # of the recompiles that one row stands for


@dataclass(frozen=True)
class Part:
    """A module or step that was to be compiled, or another compiled function of the program. runs: "compiled", or "as Python" and why. options: those in
    which it differs from the settings of the run. entries: the most that one function of it has, of those that the limit allows. lookup: nanoseconds of a check
    of its guards, of the slowest entry."""

    name: str
    runs: str
    counts: Mapping[str, float]
    options: str
    entries: int
    limit: int
    lookup: float


@dataclass(frozen=True)
class EntryRow:
    """A compiled entry. kinds: of its guards, and how many there are of each. hot, cold: nanoseconds of a check of all, with hot and with cold caches."""

    region: str
    frame: str
    graph: int
    ops: int
    kernels: int
    guards: int
    kinds: str
    hot: float
    cold: float
    seconds: float


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


def anchor(name: str) -> str:
    """The name of a place in the page for a module or step."""
    return "part-" + re.sub(r"[^\w.-]", "_", name)


def parts_of(record: RunRecord) -> list[Part]:
    summary, ledger = record.summary, record.ledger
    counts = ledger.per_region()
    states = dict.fromkeys(summary["modules"], "compiled") | {name: f"as Python: {reason}" for name, reason in summary["eager"].items()}
    others = [name for name in counts if name not in states]
    known = summary.get("settings", {})
    own, everywhere = known.get("parts", {}), known.get("settings", {}).get("recompile_limit", 0)
    limits = {name: options["recompile_limit"] for name, options in own.items() if "recompile_limit" in options}
    limits |= {event.region: event.limit for kind in (events.Recompiled, events.LimitHit) for event in ledger.of(kind)}
    made = most_entries(ledger)
    lookups: dict[str, float] = {}
    for event in ledger.of(events.Compiled):
        lookups[event.region] = max(lookups.get(event.region, 0.0), event.lookup_ns)
    return [
        Part(
            name,
            states.get(name, "compiled, by itself"),
            counts.get(name, {}),
            ", ".join(f"{key}={value}" for key, value in own.get(name, {}).items()),
            made.get(name, 0),
            limits.get(name, everywhere),
            lookups.get(name, 0.0),
        )
        for name in (*states, *others)
    ]


def most_entries(ledger: Ledger) -> dict[str, int]:
    """Of each region the entries of the function that has most of them in one bucket, as limits count them."""
    counts = Counter((event.region, event.bucket, event.frame) for event in ledger.of(events.Compiled))
    most: dict[str, int] = {}
    for (region, _, _), count in counts.items():
        most[region] = max(most.get(region, 0), count)
    return most


def entry_rows(ledger: Ledger) -> list[EntryRow]:
    """The entries that hold a graph, those whose guards take longest first."""
    rows = [
        EntryRow(
            region=event.region,
            frame=event.frame,
            graph=event.graph,
            ops=event.ops,
            kernels=event.kernels,
            guards=event.guards,
            kinds=", ".join(f"{count} {kind}" for kind, count in event.kinds),
            hot=event.lookup_ns,
            cold=event.cold_ns,
            seconds=event.seconds,
        )
        for event in ledger.of(events.Compiled)
        if event.ops
    ]
    return sorted(rows, key=lambda row: -row.hot)


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
