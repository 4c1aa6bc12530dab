"""The comparison of a sweep's runs: `python train.py -m compile=none,default` ends with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynacompile.complaints import Reporting
from dynacompile.quoting import printable
from dynacompile.run_files import write_whole

Numbers = Mapping[str, float]

# row, key of a run's numbers, format
ROWS = (
    ("validation loss", "val/loss", "{:.4f}"),
    ("unigram loss", "val/unigram_loss", "{:.4f}"),
    ("compile seconds", "compile/seconds", "{:.2f}"),
    ("graphs", "compile/graphs", "{:.0f}"),
    ("kernels", "compile/kernels", "{:.0f}"),
    ("graph breaks", "compile/graph_breaks", "{:.0f}"),
    ("recompiles", "compile/recompiles", "{:.0f}"),
    ("step ms, eager", "compile/step_ms_eager", "{:.1f}"),
    ("step ms, compiled", "compile/step_ms_compiled", "{:.1f}"),
    ("speed-up", "compile/speedup", "{:.2f}x"),
    ("paid off at step", "compile/payoff_step", "{:.0f}"),
    ("training ms a batch", "compile/train_step_ms", "{:.1f}"),
    ("seconds in all", "compile/fit_seconds", "{:.0f}"),
)


@dataclass(frozen=True)
class Run:
    """One run of a sweep. numbers: its metrics by name, those that are known; empty where it failed."""

    overrides: tuple[str, ...]
    numbers: Numbers


def comparison(runs: Sequence[Run]) -> Table:
    """One column a run, headed by the overrides that not all runs share; a number that a run does not have is a dash."""
    shared = set.intersection(*({*run.overrides} for run in runs)) if len(runs) > 1 else set()
    title = f"comparison of {len(runs)} runs" + (f", all with {' '.join(sorted(shared))}" if shared else "")
    table = Table(title=Text(printable(title)), title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(Text("\n".join(printable(o) for o in run.overrides if o not in shared) or "defaults"), justify="right", overflow="fold")
    table.add_row("finished", *("yes" if run.numbers else "failed" for run in runs))
    for heading, key, shape in ROWS:
        found = [run.numbers.get(key, math.nan) for run in runs]
        table.add_row(heading, *("-" if math.isnan(number) else shape.format(number) for number in found))
    return table


def saved_runs(folder: Path) -> Iterator[Run]:
    """The runs below a sweep's folder, in the order of their numbers."""
    for place in sorted(folder.glob("*/run.json"), key=lambda p: (len(p.parent.name), p.parent.name)):
        saved = json.loads(place.read_text(encoding="utf-8"))
        yield Run(tuple(saved["overrides"]), saved["numbers"])


class Comparison(Callback):
    """Hydra callback: keeps each job's returned numbers, and prints the table when the sweep is over."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        done = job_return.status == JobStatus.COMPLETED
        numbers = job_return.return_value if done and isinstance(job_return.return_value, Mapping) else {}
        known = {name: value for name, value in numbers.items() if not math.isnan(value)}
        run = Run(tuple(job_return.overrides or ()), known)
        self.runs.append(run)
        folder = Path(config.hydra.runtime.output_dir)
        if folder.is_dir():
            with Reporting(f"writing {folder / 'run.json'}"):
                write_whole(folder / "run.json", json.dumps({"overrides": run.overrides, "numbers": run.numbers}, indent=2) + "\n")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        Console().print(comparison(self.runs))
