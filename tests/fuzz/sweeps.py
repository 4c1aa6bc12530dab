"""Random sweeps under random launchers: jobs do not compose, raise, exit or die; launchers run jobs in turn, in threads, or end in the midst of a batch.

Each job is to have one row, with its own outcome, in the order of the sweep; jobs that can finish do, and the table, Markdown and CSV hold all of them.
No process is started, and no config composed: `python -m tests.fuzz.sweeps FIRST LAST`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra_plugins import dynacompile_sweeper
from omegaconf import DictConfig, OmegaConf, open_dict

from dynacompile.callbacks.sweep import Comparison
from dynacompile.callbacks.sweep_runs import Result, saved_runs
from dynacompile.callbacks.sweep_table import as_csv, as_markdown, cells

ENDS = ("finishes", "finishes", "finishes", "refused", "raises", "exits", "dies", "memory", "plain")
FAILURES = {
    "refused": "Could not find",
    "raises": "ValueError: a wrong | value",
    "exits": "SystemExit",
    "dies": "RuntimeError: a worker died",
    "memory": "MemoryError",
}
LAUNCHERS = ("in turn", "together")


@dataclass
class Launcher:
    """in turn: as Hydra's own, a SystemExit goes through. together: as joblib's, a job that dies ends the launcher, with others done, begun or not begun."""

    kind: str
    config: DictConfig
    callback: Comparison
    choose: random.Random
    ends: dict[str, str]

    def launch(self, jobs: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        numbered = list(enumerate(jobs, initial_job_idx))
        dying = [number for number, job in numbered if self.ends[job[0]] == "dies" or (self.kind == "together" and self.ends[job[0]] == "exits")]
        order = numbered if self.kind == "in turn" else self.choose.sample(numbered, len(numbered))
        done: dict[int, JobReturn] = {}
        for number, job in order:
            if number in dying and not (self.kind == "in turn" and self.ends[job[0]] == "exits"):
                if self.choose.random() < 0.5:
                    self.begin(number, job)
                raise RuntimeError("a worker died")
            if dying and self.kind == "together" and self.choose.random() < 0.2:
                self.begin(number, job)  # it is ended with the others
                continue
            done[number] = self.run(number, job)
        return [done[number] for number, _ in numbered]

    def of_job(self, number: int, job: Sequence[str]) -> DictConfig:
        config = self.config.copy()
        folder = Path(config.hydra.sweep.dir) / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        with open_dict(config):
            config.hydra.job.num = number
            config.hydra.runtime.output_dir = str(folder)
            config.hydra.overrides.task = list(job)
        return config

    def begin(self, number: int, job: Sequence[str]) -> DictConfig:
        config = self.of_job(number, job)
        self.callback.on_job_start(config)
        return config

    def run(self, number: int, job: Sequence[str]) -> JobReturn:
        config = self.begin(number, job)
        told = JobReturn(overrides=list(job), status=JobStatus.FAILED)
        match self.ends[job[0]]:
            case "exits":
                raise SystemExit("gave up")
            case "raises":
                told.return_value = ValueError("a wrong | value\nand more")
            case "memory":
                told.return_value = MemoryError()
            case "plain":
                told.return_value, told.status = 1.5, JobStatus.COMPLETED
            case _:
                told.return_value, told.status = Result({"val/loss": float(number), "compile/step_ms_eager": 2.0}), JobStatus.COMPLETED
        self.callback.on_job_end(config, told)
        return told


@dataclass
class Loader:
    ends: dict[str, str]

    def load_sweep_config(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        if self.ends[overrides[0]] == "refused":
            raise HydraException("In 'train': Could not find 'model/missing'")
        return master


@contextlib.contextmanager
def sweep_of(seed: int) -> Iterator[tuple[dynacompile_sweeper.EachAlone, list[str], dict[str, str], Path]]:
    """The sweeper, its arguments, the end of each job by its first override, and the folder."""
    choose = random.Random(seed)
    count = choose.randint(1, 8)
    ends = {f"job={number}": choose.choice(ENDS) for number in range(count)}
    with tempfile.TemporaryDirectory() as folder:
        hydra = {"sweep": {"dir": folder}, "job": {"num": None, "id": None}, "runtime": {"output_dir": None}, "overrides": {"task": []}, "mode": "MULTIRUN"}
        config = OmegaConf.create({"hydra": hydra, "compile": {"log_prefix": "compile/"}})
        callback = Comparison()
        Plugins.instance()  # which executes all modules of plugins anew, once: what was imported before has other classes
        sweeper = dynacompile_sweeper.EachAlone(max_batch_size=choose.choice([None, None, 1, 3]))
        sweeper.config = config
        sweeper.hydra_context = SimpleNamespace(config_loader=Loader(ends), callbacks=SimpleNamespace(on_job_end=callback.on_job_end))  # type: ignore[assignment]
        sweeper.parser = OverridesParser.create  # type: ignore[method-assign]
        sweeper.launcher = Launcher(choose.choice(LAUNCHERS), config, callback, choose, ends)  # type: ignore[assignment]
        yield sweeper, [f"job={','.join(str(number) for number in range(count))}", "x=1"], ends, Path(folder)


def difference(seed: int) -> str | None:
    """What is wrong, as text."""
    with sweep_of(seed) as (sweeper, arguments, ends, folder), contextlib.redirect_stderr(io.StringIO()):
        returns = sweeper.sweep(arguments)
        runs = list(saved_runs(folder))
        if [run.overrides for run in runs] != [(name, "x=1") for name in ends] or [run.number for run in runs] != list(range(len(ends))):
            return f"rows {[(run.number, run.overrides) for run in runs]} for {ends}"
        if len(returns) != len(ends):
            return f"{len(returns)} returns for {ends}"
        for run, told, (name, end) in zip(runs, returns, ends.items()):
            if wrong := wrong_outcome(run, told, end):
                return f"{name}, which {end}: {wrong}"
        return wrong_tables(runs)


def wrong_outcome(run: Any, told: JobReturn, end: str) -> str | None:
    finished = end in ("finishes", "plain")
    if finished != (not run.reason) or finished != (told.status == JobStatus.COMPLETED):
        return f"row {run.reason!r} {dict(run.numbers)}, return {told.status}"
    if finished:
        wanted = {"returned": 1.5} if end == "plain" else {"val/loss": float(run.number), "compile/step_ms_eager": 2.0}
        return None if dict(run.numbers) == wanted else f"numbers {dict(run.numbers)}"
    known = (FAILURES[end], "a worker died") if end == "exits" else (FAILURES[end],)
    return None if any(reason in run.reason for reason in known) else f"reason {run.reason!r}"


def wrong_tables(runs: list[Any]) -> str | None:
    names, rows = cells(runs)
    if len(rows) != len(runs) or any(len(row) != len(names) for row in rows):
        return f"a table of {names} and {rows}"
    if as_markdown(runs).count("\n| ") != len(runs) + 2:
        return f"Markdown:\n{as_markdown(runs)}"
    read = list(csv.DictReader(io.StringIO(as_csv(runs))))
    if [row["failed"] for row in read] != [run.reason for run in runs]:
        return f"CSV:\n{as_csv(runs)}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.first, arguments.last):
        if told := difference(seed):
            wrong += 1
            print(f"seed {seed}: {told}", flush=True)
    HydraConfig.instance().cfg = None
    print(f"{arguments.last - arguments.first} sweeps, {wrong} differed")


if __name__ == "__main__":
    main()
