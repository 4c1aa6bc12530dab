"""The HTML report of one run: one page that needs no network and no scripts but the filters of its tables, made of what the run's folder keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from dynacompile.callbacks import charts
from dynacompile.callbacks.pages import rendered
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.report_rows import KernelRow, anchor, happened, kernel_rows, parts_of, why_apart
from dynacompile.events import LimitHit
from dynacompile.quoting import printable, printable_lines
from dynacompile.run_files import write_whole

SHOWN_KERNELS = 200
SHOWN_EVENTS = 400
SHOWN_ADVICE = 12
CHARTED_KERNELS = 12


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    svg: Markup


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
    if known["graphs"] and not to_gain(record):
        told.append("Nothing was in the way: no graph break, no limit, and no recompile that a setting would have prevented.")
    if summary.get("ended"):
        told.append(f"The run was ended by {summary['ended']} after {summary['steps']} batches.")
    return told


def to_gain(record: RunRecord) -> list[str]:
    """What to change to gain more: each advice once, with what it was given for, how often, and the seconds that this cost."""
    found: dict[str, list[tuple[str, float]]] = {}
    for event in record.ledger.of(LimitHit):
        found.setdefault(f"Set {event.override}", []).append((f"{event.frame} runs as Python since its entries reached the limit of {event.limit}", 0.0))
    for event in record.ledger.recompiles:
        if event.override:
            found.setdefault(f"Set {event.override}", []).append((f"recompiles of {event.frame}", event.seconds))
    for event in record.ledger.breaks:
        if event.hint:
            found.setdefault(event.hint[:1].upper() + event.hint[1:], []).append((f"graph break at {event.site}", 0.0))
    for name, reason in record.summary["eager"].items():
        found.setdefault(f"{name} runs as Python: {reason}", []).append(("", 0.0))
    return [f"{printable(advice, longest=2000)}{because(reasons)}" for advice, reasons in found.items()]


def because(reasons: list[tuple[str, float]]) -> str:
    known = [printable(reason) for reason in dict.fromkeys(reason for reason, _ in reasons) if reason]
    if not known:
        return ""
    seconds = sum(seconds for _, seconds in reasons)
    told = [known[0] + (f" and {len(known) - 1} more" if len(known) > 1 else "")]
    told += [f"{len(reasons)} times"] if len(reasons) > 1 else []
    told += [f"{seconds:.1f} s"] if seconds >= 0.05 else []
    return f" ({'; '.join(told)})"


def charts_of(record: RunRecord, kernels: Iterable[KernelRow]) -> list[Chart]:
    summary, ledger = record.summary, record.ledger
    known = summary.get("times") or {}
    largest = [(f"{row.name} ({row.region})", row.megabytes) for row in kernels if row.megabytes][:CHARTED_KERNELS]
    wanted = (
        ("Steps that were measured", "Milliseconds of eager and compiled steps, in turn; the bar is the median.", charts.rounds(known)),
        ("The run", "Milliseconds of each training batch, and the batches in which something was compiled.", charts.batches(summary, ledger)),
        ("How long batches took", "Those aside in which something was compiled, and the slowest hundredth.", charts.distribution(summary, ledger)),
        ("Memory over the run", "GiB that the process holds at the ends of batches; on GPUs, those of its tensors.", charts.memory(summary)),
        ("Where the compiler's seconds went", "All of them, below them each module's or step's, and below those the stages'.", charts.stages(ledger)),
        ("Kernels that move most", "Megabytes that the launches of a kernel read and write in a call.", charts.kernels(largest)),
    )
    return [
        Chart(title, about, Markup(charts.drawn(spec, about)))
        for title, about, spec in wanted
        if spec is not None and len(summary.get("timeline", ())) >= charts.FEWEST
    ]


def page_of(record: RunRecord) -> str:
    """The page. It says the same whether it is made as the run ends or later of the run's files."""
    parts, kernels, rows, advice = parts_of(record), kernel_rows(record.ledger), happened(record.ledger), to_gain(record)
    settings = record.summary.get("settings", {})
    return rendered(
        "report.html.j2",
        headline=headline(record),
        to_gain=advice[:SHOWN_ADVICE],
        more_to_gain=max(0, len(advice) - SHOWN_ADVICE),
        facts=[(name, printable_lines(value)) for name, value in record.summary["facts"]],
        charts=charts_of(record, kernels),
        parts=parts,
        places={anchor(part.name) for part in parts},
        anchor=anchor,
        rows=rows[:SHOWN_EVENTS],
        rows_left_out=max(0, len(rows) - SHOWN_EVENTS),
        kernels=kernels[:SHOWN_KERNELS],
        is_timed=any(kernel.microseconds for kernel in kernels),
        apart=why_apart(record.ledger),
        left_out=max(0, len(kernels) - SHOWN_KERNELS),
        settings=sorted(settings.get("settings", {}).items()),
        versions=sorted(settings.get("versions", {}).items()),
        trace=record.trace,
    )


def write_report(record: RunRecord, target: Path) -> Path:
    """Writes the page into the new file `target`. Raises OSError."""
    return write_whole(target, page_of(record), new=True)


def report_again(run: Path, target: Path) -> Path:
    """The page of a run whose folder, or a file of it, is `run`. Raises ConfigError where that holds no run, OSError where `target` is there already."""
    return write_report(RunRecord.read(run), target)
