"""The HTML report of one run: one page that needs no network and no scripts but the filter of its tables, made of what the run's folder keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dynacompile import events
from dynacompile.callbacks import charts
from dynacompile.callbacks.ledger import COLUMNS, Ledger, Told
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.source_lines import source
from dynacompile.quoting import printable, printable_lines
from dynacompile.run_files import write_whole

SHOWN_KERNELS = 200
CHARTED_KERNELS = 12


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


@dataclass(frozen=True)
class KernelRow:
    region: str
    name: str
    launches: int
    megabytes: float
    ops: str
    sites: tuple[str, ...]
    decisions: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    svg: Markup


def parts_of(record: RunRecord) -> list[Part]:
    summary, ledger = record.summary, record.ledger
    counts = ledger.per_region()
    states = dict.fromkeys(summary["modules"], "compiled") | {name: f"as Python: {reason}" for name, reason in summary["eager"].items()}
    others = [name for name in counts if name not in states]
    own = summary.get("settings", {}).get("parts", {})
    limits = {event.region: event.limit for event in ledger.of(events.Recompiled)} | {event.region: event.limit for event in ledger.of(events.LimitHit)}
    made = [event.region for event in ledger.of(events.Compiled)]
    lookups = {name: max((e.lookup_ns for e in ledger.of(events.Compiled) if e.region == name), default=0.0) for name in counts}
    return [
        Part(
            name,
            states.get(name, "compiled, by itself"),
            counts.get(name, {}),
            ", ".join(f"{key}={value}" for key, value in own.get(name, {}).items()),
            made.count(name),
            limits.get(name, 0),
            lookups.get(name, 0.0),
        )
        for name in (*states, *others)
    ]


def headline(record: RunRecord) -> list[str]:
    """What a person reads first: the speed-up, when compiling paid off, what went wrong."""
    summary, known = record.summary, record.summary["compile"]
    told = []
    if "speedup" in known:
        times = summary.get("times") or {}
        interval = times.get("interval")
        spread = f", between {interval[0]:.2f} and {interval[1]:.2f} with 90 %" if interval else ""
        compiled, eager, times_as_fast = known["step_ms_compiled"], known["step_ms_eager"], known["speedup"]
        told.append(f"A compiled step takes {compiled:.1f} ms, an eager one {eager:.1f}: {times_as_fast:.2f} times as fast{spread}.")
        if times.get("within_noise"):
            told.append("That is within the noise of this machine: the measured rounds do not tell them apart.")
        if "payoff_step" in known:
            paid = known["payoff_step"] <= summary["steps"]
            when = (
                f"paid off at batch {known['payoff_step']:.0f}"
                if paid
                else f"would pay off at batch {known['payoff_step']:.0f}; this run had {summary['steps']}"
            )
            told.append(f"Compiling took {known['seconds']:.1f} s and {when}.")
        else:
            told.append(f"Compiling took {known['seconds']:.1f} s, which the time saved does not pay back.")
    elif known["graphs"]:
        told.append(f"Compiling took {known['seconds']:.1f} s; what a step gains was not measured.")
    else:
        told.append("Nothing was compiled.")
    if summary.get("ended"):
        told.append(f"The run was ended by {summary['ended']} after {summary['steps']} batches.")
    return told


def to_gain(record: RunRecord) -> list[str]:
    """What to change to gain more: each advice once, with how often it was given, and what it was given for."""
    found: dict[str, list[str]] = {}
    for event in record.ledger.of(events.LimitHit):
        found.setdefault(event.override, []).append(f"{event.frame} runs as Python since its entries reached the limit of {event.limit}")
    for event in record.ledger.recompiles:
        if event.override:
            found.setdefault(event.override, []).append(f"recompiles of {event.frame}")
    for event in record.ledger.breaks:
        if event.hint:
            found.setdefault(event.hint, []).append(f"graph break at {event.site}")
    for name, reason in record.summary["eager"].items():
        found.setdefault(f"{name} runs as Python: {reason}", []).append("")
    return [f"{printable(advice, longest=2000)}{because(reasons)}" for advice, reasons in found.items() if advice]


def because(reasons: list[str]) -> str:
    known = [printable(reason) for reason in dict.fromkeys(reasons) if reason]
    if not known:
        return ""
    more = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return f" ({known[0]}{more}; {len(reasons)} times)" if len(reasons) > 1 else f" ({known[0]})"


def kernel_rows(ledger: Ledger) -> list[KernelRow]:
    """Kernels and calls of all programs, those that move most first."""
    decided: dict[tuple[str, str], list[str]] = {}
    for event in ledger.of(events.FusionDecided):
        verb = "fuses" if event.fused else "stays apart from"
        saved = f", which saves {event.bytes_saved / 1e6:.2f} MB" if event.fused and event.bytes_saved else ""
        decided.setdefault((event.region, event.kernel), []).append(f"{verb} {', '.join(event.members)}{saved}{': ' if event.reason else ''}{event.reason}")
    for tuned in ledger.of(events.KernelTuned):
        best = ", ".join(f"{name} {us:.1f} us" for name, us in sorted(tuned.candidates, key=lambda c: c[1])[:4])
        decided.setdefault((tuned.region, tuned.kernel), []).append(f"tuned: {tuned.winner} of {len(tuned.candidates)} ({best})")
    rows = []
    for event in ledger.of(events.Scheduled):
        for name, launches, moved, ops, sites in event.kernels:
            told = decided.get((event.region, name), ()) or decided.get(("", name), ())
            rows.append(KernelRow(event.region, name, launches, moved / 1e6, ", ".join(ops), tuple(sites), tuple(printable(t, longest=2000) for t in told)))
        rows += [KernelRow(event.region, f"{op} (a library's)", count, 0.0, op, (), ()) for op, count in event.calls]
    return sorted(rows, key=lambda row: -row.megabytes)


def charts_of(record: RunRecord, kernels: Iterable[KernelRow]) -> list[Chart]:
    summary, ledger = record.summary, record.ledger
    known = summary.get("times") or {}
    largest = [(f"{row.name} ({row.region})", row.megabytes) for row in kernels if row.megabytes][:CHARTED_KERNELS]
    wanted = (
        ("Steps that were measured", "Milliseconds of eager and compiled steps, in turn; the bar is the median.", charts.rounds(known)),
        ("The run", "Milliseconds of each training batch, and the batches in which something was compiled.", charts.batches(summary, ledger)),
        ("Where the compiler's seconds went", "Seconds of each stage of the compiler, by module or step.", charts.stages(ledger)),
        ("Kernels that move most", "Megabytes that the launches of a kernel read and write in a call.", charts.kernels(largest)),
    )
    return [
        Chart(title, about, Markup(charts.drawn(spec, about)))
        for title, about, spec in wanted
        if spec is not None and len(summary.get("timeline", ())) >= charts.FEWEST
    ]


def page_of(record: RunRecord) -> str:
    """The page. It says the same whether it is made as the run ends or later of the run's files."""
    environment = Environment(loader=PackageLoader("dynacompile.callbacks"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    kernels = kernel_rows(record.ledger)
    rows: list[tuple[Told, str]] = [(row, source(row.line)) for row in record.ledger.told()]
    settings = record.summary.get("settings", {})
    values: dict[str, Any] = {
        "headline": headline(record),
        "to_gain": to_gain(record),
        "facts": [(name, printable_lines(value)) for name, value in record.summary["facts"]],
        "charts": charts_of(record, kernels),
        "parts": parts_of(record),
        "columns": COLUMNS,
        "rows": rows,
        "kernels": kernels[:SHOWN_KERNELS],
        "left_out": max(0, len(kernels) - SHOWN_KERNELS),
        "settings": sorted(settings.get("settings", {}).items()),
        "versions": sorted(settings.get("versions", {}).items()),
        "trace": record.trace,
    }
    return environment.get_template("report.html.j2").render(values)


def write_report(record: RunRecord, target: Path) -> Path:
    """Writes the page into the new file `target`. Raises OSError."""
    return write_whole(target, page_of(record), new=True)


def report_again(run: Path, target: Path) -> Path:
    """The page of a run whose folder, or a file of it, is `run`. Raises ConfigError where that holds no run, OSError where `target` is there already."""
    return write_report(RunRecord.read(run), target)
