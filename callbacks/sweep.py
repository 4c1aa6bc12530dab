"""What Hydra's jobs leave behind, and the comparison of a sweep's jobs: `python train.py -m compile=none,default` ends with it."""

from __future__ import annotations

import atexit
import dataclasses
import math
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from dynacompile.callbacks.sweep_page import best_job, write_page
from dynacompile.callbacks.sweep_plot import write_plot
from dynacompile.callbacks.sweep_runs import ERROR_FILE, EXITED, FILE, Run, first_line, saved_runs
from dynacompile.callbacks.sweep_table import as_csv, as_markdown, comparison
from dynacompile.complaints import Reporting
from dynacompile.errors import ConfigError
from dynacompile.run_files import write_whole

GROUP_VARIABLE = "WANDB_RUN_GROUP"
WIDTH_OF_FILES = 180  # columns of the table where it goes into a file or pipe


class Comparison(Callback):
    """Hydra callback. Each job writes what it came to into its own folder, also in processes and on machines of a launcher's own. When the sweep is over,
    however it ended, the table is printed and written. The runs of a sweep are one group in Weights & Biases."""

    def __init__(self) -> None:
        self.shown = True

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir).absolute()
        os.environ.setdefault(GROUP_VARIABLE, "/".join(folder.parts[-2:]))
        self.shown = False
        atexit.register(self.show, folder)  # where a sweeper raises, Hydra does not tell of the end

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        owner = (socket.gethostname(), os.getpid())
        keep(config, started := Run(tuple(config.hydra.overrides.task), owner=owner))
        atexit.unregister(self.note_exit)
        atexit.register(self.note_exit, config, started)

    def note_exit(self, config: DictConfig, started: Run) -> None:
        """At the exit of a process whose job has told of no end: Hydra tells of none where a job exits, as Lightning does after Ctrl-C."""
        keep(config, dataclasses.replace(started, owner=None, failed=EXITED))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        atexit.unregister(self.note_exit)
        overrides = tuple(job_return.overrides or ())
        if job_return.status != JobStatus.COMPLETED:
            error = job_return._return_value
            if (number := number_of(config)) is not None:
                print(f"job {number} failed: {first_line(error)}", file=sys.stderr)
            keep(config, Run(overrides, failed=first_line(error)), "".join(traceback.format_exception(error)))
            return
        result = job_return.return_value
        numbers = result if isinstance(result, Mapping) else {"returned": result} if isinstance(result, (int, float)) else {}
        keep(config, Run(overrides, {name: value for name, value in numbers.items() if not math.isnan(value)}))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if self.show(Path(config.hydra.sweep.dir).absolute()):
            raise SystemExit(1)

    def show(self, folder: Path) -> int:
        """Prints and writes the comparison, once. Returns how many jobs failed."""
        if self.shown:
            return 0
        self.shown = True
        atexit.unregister(self.show)
        return show_sweep(folder)


def number_of(config: DictConfig) -> int | None:
    """The job's number in its sweep; None for a run of its own."""
    return OmegaConf.select(config, "hydra.job.num", throw_on_missing=False)


def keep(config: DictConfig, run: Run, trace: str = "") -> None:
    """Writes what is known of the job that `config` is of."""
    folder = Path(config.hydra.runtime.output_dir)
    prefix = OmegaConf.select(config, "compile.log_prefix") or run.prefix
    if folder.is_dir():
        with Reporting(f"writing what became of the job in {folder}"):
            dataclasses.replace(run, number=number_of(config) or 0, prefix=prefix).write(folder)
            if trace:
                write_whole(folder / ERROR_FILE, trace)


def show_again(folder: Path) -> None:
    """As `show_sweep`, of a folder that a user names. Raises ConfigError where it holds no sweep."""
    if not any(folder.rglob(FILE)):
        raise ConfigError(f"no jobs in {folder}: it should hold 0/{FILE}, 1/{FILE}, ...")
    show_sweep(folder.absolute())


def show_sweep(folder: Path) -> int:
    """Prints the comparison of the jobs in a sweep's folder, and writes it there as Markdown, CSV, a plot and a page. Returns how many jobs failed. Raises
    OSError and ValueError for files that are no sweep's."""
    runs = list(saved_runs(folder))
    if not runs:
        print(f"no jobs in {folder}")
        return 0
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDTH_OF_FILES)
    console.print(comparison(runs))
    console.print(" ".join(best_job(runs)), soft_wrap=True, highlight=False, markup=False)
    with Reporting(f"writing the comparison in {folder}"):
        write_whole(folder / "sweep.md", as_markdown(runs))
        write_whole(folder / "sweep.csv", as_csv(runs))
        places = ["sweep.md", "sweep.csv", *write_plot(runs, folder), write_page(runs, folder)]
        console.print(f"{folder}: {', '.join(places)}", soft_wrap=True, highlight=False, markup=False)
    failed = [run for run in runs if run.reason]
    if failed:
        traces = sum((folder / run.folder / ERROR_FILE).exists() for run in failed)
        where = "" if not traces else f"; {'the trace of each' if traces == len(failed) else 'where there is a trace, it'} is in its {ERROR_FILE}"
        console.print(f"{len(failed)} of {len(runs)} jobs failed{where}", highlight=False)
    return len(failed)
