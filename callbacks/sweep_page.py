"""The HTML page of a sweep: its table and plot, which job was the fastest, why jobs failed, and links to the reports of single jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from dynacompile.callbacks.charts import drawn
from dynacompile.callbacks.pages import rendered
from dynacompile.callbacks.sweep_plot import bars
from dynacompile.callbacks.sweep_runs import ERROR_FILE, Run
from dynacompile.callbacks.sweep_table import cells, heading, rows_of, shared_overrides
from dynacompile.quoting import printable
from dynacompile.run_files import write_whole

PLOTTED = "Milliseconds of a training step of each job, eager and compiled; the bar is the median, the line the quartiles."
JOBS = (
    "Step times are medians, with quartiles below. How many times as fast a job's steps are: over compile=none, as those of the job that trains the same "
    "and compiles nothing; over eager, as eager steps of the job itself, which were measured in turn with them."
)


@dataclass(frozen=True)
class Job:
    """A row of the table. links: what to read about the job, and where it lies from the sweep's folder."""

    cells: Sequence[str]
    links: Sequence[tuple[str, str]]


FAILED_SHOWN = 3  # above the table, which has all


def best_job(runs: Sequence[Run]) -> list[str]:
    """The job that gains most over compile=none, or, in a sweep without that, over its own eager steps."""
    rows, told = rows_of(runs), []
    compiled = [row for row in rows if row.speedup_over_eager is not None]
    against_none = [row for row in compiled if row.speedup_over_none is not None]
    if compiled:
        field, of = ("speedup_over_none", "those of compile=none") if against_none else ("speedup_over_eager", "its eager ones")
        rivals = against_none or compiled
        sure = [row for row in rivals if (getattr(row, f"{field}_low") or 0) > 1]  # beyond the noise of the machine
        best = max(sure or rivals, key=lambda row: getattr(row, field))
        factor, low, high = (getattr(best, field + end) for end in ("", "_low", "_high"))
        with_what = printable(" ".join(o for o in best.overrides if o not in shared_overrides(runs))) or "defaults"
        place = "gains most" if factor > 1 else "loses least"
        told.append(f"Job {best.job} ({with_what}) {place}: its compiled steps are {factor:.2f} times as fast as {of}.")
        if low is not None and high is not None:
            noise = ", which is within the noise of this machine" if low <= 1 <= high else ""
            sure_by = "By the quartiles that are farthest apart" if against_none else "With 90 % confidence"
            told.append(f"{sure_by} the factor lies between {low:.2f} and {high:.2f}{noise}.")
    elif rows:
        told.append("No job has measured a compiled step.")
    return told


def headline(runs: Sequence[Run]) -> list[str]:
    """What a person reads first: the job that gains most, and how many failed."""
    rows, told = rows_of(runs), best_job(runs)
    failed = [row for row in rows if row.failed and row.failed != "not finished"]
    if failed:
        told.append(f"{len(failed)} of {len(rows)} jobs failed; their reasons stand under outcome in the table.")
        told += [printable(f"Job {row.job}: {row.failed}") for row in failed[:FAILED_SHOWN]]
    return told


def links_of(run: Run, folder: Path) -> list[tuple[str, str]]:
    """The reports of a job, and the trace of its error."""
    place = folder / run.folder
    found = [("report", path) for path in sorted(place.rglob("compile_report*.html"))]
    found += [("error", place / ERROR_FILE)] if (place / ERROR_FILE).is_file() else []
    return [(name, quote(str(path.relative_to(folder)))) for name, path in found]


def page_of_sweep(runs: Sequence[Run], folder: Path) -> str:
    names, rows = cells(runs)
    return rendered(
        "sweep.html.j2",
        heading=heading(runs),
        headline=headline(runs),
        about=PLOTTED,
        plot=Markup(drawn(lambda width: bars(runs, width))) if bars(runs, 0)["data"]["values"] else "",
        about_jobs=JOBS,
        names=names,
        jobs=[Job(row, links_of(run, folder)) for row, run in zip(rows, runs, strict=True)],
    )


def write_page(runs: Sequence[Run], folder: Path) -> str:
    """Writes sweep.html into the sweep's folder, and gives its name. Raises OSError."""
    write_whole(folder / "sweep.html", page_of_sweep(runs, folder))
    return "sweep.html"
