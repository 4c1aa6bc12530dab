"""The HTML report of one run: one page that needs no network and no scripts but the filters of its tables, made of what the run's folder keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from dynacompile.callbacks import run_charts, work_charts
from dynacompile.callbacks.charts import Spec, drawn
from dynacompile.callbacks.headline import bars, headline, tiles, to_gain
from dynacompile.callbacks.kernel_rows import KernelRow, kernel_rows, timed_programs, why_apart, with_code
from dynacompile.callbacks.pages import rendered
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.report_rows import anchor, entry_rows, happened, parts_of
from dynacompile.callbacks.texts import counted
from dynacompile.quoting import printable_lines
from dynacompile.run_files import write_whole

SHOWN_KERNELS = 200
SHOWN_ENTRIES = 100
SHOWN_EVENTS = 400
SHOWN_ADVICE = 12


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    svg: Markup


def charts_of(record: RunRecord, rows: Sequence[KernelRow]) -> dict[str, list[Chart]]:
    """The charts of each section of the page."""
    summary, ledger = record.summary, record.ledger
    sections: dict[str, list[tuple[str, str, Callable[[int], Spec | None]]]] = {
        "run": [
            ("What the run did when", TIMELINE, lambda width: run_charts.timeline(summary, ledger, width)),
            ("How long batches took", DISTRIBUTION, lambda width: run_charts.distribution(summary, ledger, width)),
        ],
        "time": [
            ("Steps that were measured", ROUNDS, lambda width: run_charts.rounds(summary.get("times"), width)),
            ("A compiled step", STEP, lambda width: work_charts.step(summary, ledger, width)),
            ("Kernels that take longest", ROOFS, lambda width: work_charts.roofs(rows, width)),
            ("Kernels that move most", "Megabytes that the launches of a kernel read and write in a call.", lambda width: work_charts.moving(rows, width)),
            ("The compiler", STAGES, lambda width: work_charts.stages(ledger, width)),
        ],
    }
    made = {name: [Chart(title, about, Markup(drawn(make))) for title, about, make in charts] for name, charts in sections.items()}
    return {name: [chart for chart in charts if chart.svg] for name, charts in made.items()}


TIMELINE = (
    "Above, what it was doing, with marks where something was compiled again, broke, or reached a limit; below, the milliseconds of its batches "
    "(upright lines reach to the slowest of those that share a point) and the memory that the process holds, on GPUs that of its tensors."
)
DISTRIBUTION = "Without batches in which something was compiled, and without the slowest hundredth. A second hump is a second kind of batch."
ROUNDS = "Eager and compiled steps of the same batch, in turn, from forward to optimizer. "
ROUNDS += "The bar is the median. The more the two overlap, the less certain is the speed-up."
STEP = "One compiled step, the programs that it runs, and their kernels and calls of libraries, as they were measured in it."
ROOFS = (
    "Light: the time that all launches of a step take. Dark: what the machine would need to move their bytes and to compute their operations, "
    "by the bandwidth of a copy and the speed of a large matrix product, both measured here."
)
STAGES = (
    "All seconds in the compiler, below them those of each module or step, and below those the stages'. "
    "What the stage build takes goes away in the next run, which finds the kernels built."
)


def about_kernels(record: RunRecord, rows: Sequence[KernelRow]) -> str:
    """What the numbers of the kernels are, in words."""
    timed = timed_programs(record.ledger)
    order = "those that take longest first, then" if timed else ""
    told = f"Kernels and calls of libraries: {order} those that move most{'' if timed else ' first'}."
    if timed:
        bandwidth, flops = timed[0].bandwidth / 1e9, timed[0].flops / 1e9
        told += (
            f" Times are those of one measured step, all launches together. The roof is {bandwidth:,.0f} GB/s and {flops:,.0f} GFLOP/s, which a copy "
            "and a large product reach on this machine; more than 100 % is data that a cache held."
        )
    elif any(row.microseconds for row in rows):
        told += " Microseconds are those that max-autotune measured."
    return told


def page_of(record: RunRecord) -> str:
    """The page. It says the same whether it is made as the run ends or later of the run's files."""
    parts, kernels, rows, advice = parts_of(record), kernel_rows(record.ledger), happened(record.ledger), to_gain(record)
    known: dict[str, Any] = record.summary.get("settings", {})
    started = record.summary.get("started")
    titles = {"settings": "Settings", "versions": "Versions", "hardware": "Hardware"}
    return rendered(
        "report.html.j2",
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if started else "",
        headline=headline(record),
        bars=bars(record),
        tiles=tiles(record),
        to_gain=advice[:SHOWN_ADVICE],
        more_to_gain=max(0, len(advice) - SHOWN_ADVICE),
        facts=[(name, printable_lines(value)) for name, value in record.summary["facts"]],
        charts=charts_of(record, kernels),
        parts=parts,
        entries=entry_rows(record.ledger),
        shown_entries=SHOWN_ENTRIES,
        places={anchor(part.name) for part in parts},
        anchor=anchor,
        breakable=breakable,
        counted_in_words=counted,
        rows=rows[:SHOWN_EVENTS],
        rows_left_out=max(0, len(rows) - SHOWN_EVENTS),
        kernels=list(with_code(kernels[:SHOWN_KERNELS])),
        about_kernels=about_kernels(record, kernels),
        is_timed=any(kernel.microseconds for kernel in kernels),
        is_measured=any(kernel.is_measured for kernel in kernels),
        apart=why_apart(record.ledger),
        left_out=max(0, len(kernels) - SHOWN_KERNELS),
        known=[(title, sorted(known[name].items())) for name, title in titles.items() if known.get(name)],
        trace=record.trace,
    )


def breakable(name: str) -> Markup:
    """A module's name, in which a line may end behind each dot. For links: screen readers stop at such places in other text."""
    return Markup(str(escape(name)).replace(".", ".<wbr>"))


def write_report(record: RunRecord, target: Path) -> Path:
    """Writes the page into the new file `target`. Raises OSError."""
    return write_whole(target, page_of(record), new=True)


def report_again(run: Path, target: Path) -> Path:
    """The page of a run whose folder, or a file of it, is `run`. Raises ConfigError where that holds no run, OSError where `target` is there already."""
    return write_report(RunRecord.read(run), target)
