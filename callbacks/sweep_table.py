"""The comparison of a sweep's jobs: one row a job, for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from dynacompile.callbacks.sweep_runs import Run
from dynacompile.quoting import printable

LOSSES = ("val/loss", "test/loss", "train/loss")
Number = float | None


@dataclass(frozen=True)
class Row:
    """What a job came to. Times are milliseconds, memory bytes; low and high are quartiles of a time, and the ends of the interval of a ratio. failed: why
    there are none."""

    job: str
    overrides: tuple[str, ...]
    failed: str
    step_ms: Number = None
    step_ms_low: Number = None
    step_ms_high: Number = None
    samples_per_sec: Number = None
    speedup_over_none: Number = None
    speedup_over_none_low: Number = None
    speedup_over_none_high: Number = None
    speedup_over_eager: Number = None
    speedup_over_eager_low: Number = None
    speedup_over_eager_high: Number = None
    compile_seconds: Number = None
    recompiles: Number = None
    peak_bytes: Number = None
    loss: Number = None


@dataclass(frozen=True)
class Column:
    """heading: of the table. shown: a row's cell, None where there is none. names: the fields of a row that it is made of, as CSV has them."""

    heading: str
    shown: Callable[[Row], str | None]
    names: tuple[str, ...]


def number(name: str, shape: str, scale: float = 1.0) -> Callable[[Row], str | None]:
    return lambda row: None if (value := getattr(row, name)) is None else shape.format(value * scale)


def spread(name: str, shape: str, unit: str = "") -> Callable[[Row], str | None]:
    """A value with the ends of its spread, where it is known."""

    def shown(row: Row) -> str | None:
        value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
        if value is None:
            return None
        told = f"{shape.format(value)}{unit}"
        return told if low is None or high is None else f"{told} ({shape.format(low)} to {shape.format(high)})"

    return shown


def with_spread(name: str) -> tuple[str, ...]:
    return name, f"{name}_low", f"{name}_high"


COLUMNS = (
    Column("step ms", spread("step_ms", "{:.4g}"), with_spread("step_ms")),
    Column("samples/s", number("samples_per_sec", "{:,.4g}"), ("samples_per_sec",)),
    Column("over compile=none", spread("speedup_over_none", "{:.2f}", "x"), with_spread("speedup_over_none")),
    Column("over eager", spread("speedup_over_eager", "{:.2f}", "x"), with_spread("speedup_over_eager")),
    Column("compile s", number("compile_seconds", "{:.1f}"), ("compile_seconds",)),
    Column("recompiles", number("recompiles", "{:.0f}"), ("recompiles",)),
    Column("peak GiB", number("peak_bytes", "{:.2f}", 2.0**-30), ("peak_bytes",)),
    Column("loss", number("loss", "{:.4f}"), ("loss",)),
)


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """The jobs as rows, in their order."""
    baselines = {setting(run): run for run in reversed(runs) if run.is_baseline and not run.reason}
    loss = loss_name(runs)
    return [row_of(run, baselines.get(setting(run)), loss) for run in runs]


def setting(run: Run) -> frozenset[str]:
    """What a job trains: its overrides but for those of how it is compiled."""
    return frozenset(o for o in run.overrides if not o.lstrip("+~").startswith(("compile=", "compile.", "compile@")))


def loss_name(runs: Sequence[Run]) -> str:
    """The loss that is compared: the first of LOSSES that a job has, else the first name with "loss" in it."""
    names = {name for run in runs for name in run.numbers if not name.startswith(run.prefix)}
    return next((name for name in (*LOSSES, *sorted(name for name in names if "loss" in name)) if name in names), "")


def kind_of_step(run: Run) -> str:
    """Whether the job's own steps are compiled ones, as far as it was measured."""
    return "eager" if run.value("step_ms_compiled") is None else "compiled"


def row_of(run: Run, baseline: Run | None, loss: str) -> Row:
    """baseline: the job that trains the same and compiles nothing."""
    kind = kind_of_step(run)
    step, low, high = (run.value(f"step_ms_{kind}{end}") for end in ("", "_low", "_high"))
    numbers = {
        **dict(zip(with_spread("step_ms"), (step, low, high))),
        **dict(zip(with_spread("speedup_over_none"), over(baseline, step, low, high))),
        **dict(zip(with_spread("speedup_over_eager"), (run.value(f"speedup{end}") for end in ("", "_low", "_high")))),
        "samples_per_sec": run.value(f"samples_per_sec_{kind}"),
        "compile_seconds": run.value("seconds"),
        "recompiles": run.value("recompiles"),
        "peak_bytes": next((peak for name in (f"step_peak_bytes_{kind}", "peak_bytes") if (peak := run.value(name)) is not None), None),
        "loss": run.numbers.get(loss),
    }
    return Row(run.name, run.overrides, run.reason or ("not finished" if run.goes_on else ""), **numbers)


def over(baseline: Run | None, step: Number, low: Number, high: Number) -> tuple[Number, Number, Number]:
    """How many times as fast as the steps of `baseline`: by the medians, and by the quartiles that are farthest apart."""
    if baseline is None or not step:
        return None, None, None
    eager, first, third = (baseline.value(f"step_ms_eager{end}") for end in ("", "_low", "_high"))
    if eager is None:
        return None, None, None
    if first is None or third is None or not low or not high:
        return eager / step, None, None
    return eager / step, first / high, third / low


def shared_overrides(runs: Sequence[Run]) -> tuple[str, ...]:
    """Those of all jobs, in the order of the first one's."""
    if len(runs) < 2:
        return ()
    everywhere = set.intersection(*({*run.overrides} for run in runs))
    return tuple(o for o in runs[0].overrides if o in everywhere)


def heading(runs: Sequence[Run]) -> str:
    shared = shared_overrides(runs)
    return printable(f"comparison of {len(runs)} runs" + (f", all with {' '.join(shared)}" if shared else ""), longest=2000)


def cells(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows. A column that no job has a number for is left out; a number that a job does not have is a dash."""
    shared = {*shared_overrides(runs)}
    rows = rows_of(runs)
    columns = [column for column in COLUMNS if any(column.shown(row) is not None for row in rows)]
    failures = any(row.failed for row in rows)
    names = ["job", "", *(loss_name(runs) if column.heading == "loss" else column.heading for column in columns), *(["outcome"] if failures else [])]
    table = []
    for row in rows:
        differs = " ".join(printable(o) for o in row.overrides if o not in shared) or "defaults"
        outcome = [printable(row.failed) or "finished"] if failures else []
        table.append([row.job, differs, *(column.shown(row) or "-" for column in columns), *outcome])
    return names, table


def comparison(runs: Sequence[Run]) -> Table:
    """The table for a terminal."""
    names, rows = cells(runs)
    table = Table(title=Text(heading(runs)), title_justify="left")
    for at, name in enumerate(names):
        table.add_column(Text(name), justify="left" if at == 1 or name == "outcome" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def as_markdown(runs: Sequence[Run]) -> str:
    names, rows = cells(runs)
    lines = [names, ["---", "---", *["---:"] * (len(names) - 2)], *rows]
    escaped = (" | ".join(cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in line) for line in lines)
    return f"{heading(runs)}\n\n" + "".join(f"| {line} |\n" for line in escaped)


def as_csv(runs: Sequence[Run]) -> str:
    """Every number as it is, under a heading of its own; an empty cell where a job does not have it."""
    shared = {*shared_overrides(runs)}
    names = [name for column in COLUMNS for name in column.names]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["job", "overrides", "shared", *names, "failed"])
    for row in rows_of(runs):
        values = [getattr(row, name) for name in names]
        known = ["" if value is None or math.isnan(value) else value for value in values]
        differs = " ".join(o for o in row.overrides if o not in shared)
        out.writerow([row.job, differs, " ".join(shared_overrides(runs)), *known, row.failed])
    return text.getvalue()
