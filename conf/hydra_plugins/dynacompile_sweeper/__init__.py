"""A sweeper like Hydra's own, in which every job fails alone: `hydra/sweeper=each_alone`.

Hydra imports this module at the start of every app: it must not import torch, hence not the package `dynacompile` either, before a sweep begins.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

RUNS = "dynacompile.callbacks.sweep_runs"
PROCESSES_OF_THEIR_OWN = ("LocalLauncher",)
"""Launchers that wait for one job after the other, each in a process of its own, and end where one has died: each job is launched by itself."""
AT_ONCE = 64

Overrides = Sequence[str]


CONFIG = {"_target_": "hydra_plugins.dynacompile_sweeper.EachAlone", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/sweeper", name="each_alone", node=CONFIG, provider="dynacompile")


class End:
    """A block that an error or exit ends, which `error` tells and which goes no further: it is a row of the sweep. Interrupts pass through, and exits that
    Lightning makes of them."""

    error: Exception | SystemExit

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, Exception | SystemExit) and not is_interrupt(error):
            self.error = error
            return True
        return False


def is_interrupt(error: BaseException) -> bool:
    """Whether Lightning ended the program with it after Ctrl-C or SIGTERM."""
    return isinstance(error.__context__, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException"


class EachAlone(BasicSweeper):
    """Runs the product of all choices. A job whose config can't be composed, that raises, that exits, or whose process dies, is told to Hydra's callbacks
    as a failed job, and the others run. Returns the jobs' returns in their order; none of the failed is raised."""

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        returns: dict[int, JobReturn] = {}
        for first, jobs in self.batches(arguments):
            for start, part in self.composed(first, jobs, returns):
                returns |= self.launched(start, part)
        if "comparison" not in (OmegaConf.select(self.config, "hydra.callbacks") or {}):  # which tells of each failed job as it ends
            for number, ended in sorted(returns.items()):
                if ended.status == JobStatus.FAILED:
                    print(f"job {number} failed: {ended._return_value}", file=sys.stderr)
        return [returns[number] for number in sorted(returns)]

    def batches(self, arguments: list[str]) -> Iterator[tuple[int, Sequence[Overrides]]]:
        """The jobs in the batches that `max_batch_size` asks for, each with the number of its first job. Writes the sweep's config as Hydra's own does."""
        assert self.config is not None and self.hydra_context is not None
        parser = self.parser()
        self.overrides = self.split_arguments(parser.parse_overrides([*self._parse_config(), *arguments]), self.max_batch_size)
        folder = self.folder()
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        first = 0
        for batch in self.overrides:
            yield first, batch
            first += len(batch)

    def parser(self) -> Any:
        return importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create(config_loader=self.hydra_context.config_loader)

    def folder(self) -> Path:
        return Path(self.config.hydra.sweep.dir)

    def composed(self, first: int, jobs: Sequence[Overrides], returns: dict[int, JobReturn]) -> Iterator[tuple[int, Sequence[Overrides]]]:
        """Runs of neighbouring jobs whose configs can be composed, each with the number of its first; the other jobs are failed ones in `returns`."""
        part: list[Overrides] = []
        for number, job in enumerate(jobs, first):
            try:
                self.hydra_context.config_loader.load_sweep_config(self.config, list(job))
            except (HydraException, OmegaConfBaseException, OSError, ValueError) as refused:
                returns[number] = self.failed(number, job, refused)
                if part:
                    yield number - len(part), part
                part = []
            else:
                part.append(job)
        if part:
            yield first + len(jobs) - len(part), part

    def launched(self, first: int, jobs: Sequence[Overrides]) -> dict[int, JobReturn]:
        """What became of the jobs, by number. Where a launcher ends early, each job without an end is launched again by itself."""
        numbers = range(first, first + len(jobs))
        if len(jobs) == 1:
            return {first: self.alone(first, jobs[0])}
        if type(self.launcher).__name__ in PROCESSES_OF_THEIR_OWN:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                return dict(zip(numbers, threads.map(self.alone, numbers, jobs)))
        end = End()
        with end:
            return dict(zip(numbers, self.launcher.launch(jobs, initial_job_idx=first)))
        exited = self.in_this_process(numbers) if isinstance(end.error, SystemExit) else None
        if exited is None:
            print(f"the launcher ended with {type(end.error).__name__}; jobs that have not ended run one by one", file=sys.stderr)
            return {number: self.ended(number) or self.alone(number, job) for number, job in zip(numbers, jobs)}
        done = {number: ended for number in numbers if number < exited and (ended := self.ended(number)) is not None}
        done[exited] = self.failed(exited, jobs[exited - first], end.error)
        rest = jobs[exited - first + 1 :]
        return done | (self.launched(exited + 1, rest) if rest else {})

    def in_this_process(self, numbers: range) -> int | None:
        """The job that ran in this process and told of no end, of a launcher that runs one after the other."""
        runs = importlib.import_module(RUNS).saved_runs(self.folder())
        return next((run.number for run in runs if run.number in numbers and run.owner and run.owner[1] == os.getpid()), None)

    def alone(self, number: int, job: Overrides) -> JobReturn:
        """What became of one job."""
        end = End()
        with end:
            return self.launcher.launch([job], initial_job_idx=number)[0]
        return self.failed(number, job, end.error)

    def ended(self, number: int) -> JobReturn | None:
        """The return of a job that told of its end before the launcher ended; of one that goes on, once it has ended. None where it told of none."""
        runs = importlib.import_module(RUNS)
        while True:
            found = next((run for run in runs.saved_runs(self.folder()) if run.number == number), None)
            if found is None or not (found.owner and found.owner[1] != os.getpid() and found.goes_on):
                break
            time.sleep(0.2)
        if found is None or found.owner:
            return None
        ended = JobReturn(overrides=list(found.overrides), status=JobStatus.FAILED if found.failed else JobStatus.COMPLETED)
        ended.return_value = RuntimeError(found.failed) if found.failed else runs.Result(found.numbers)
        return ended

    def failed(self, number: int, job: Overrides, error: BaseException) -> JobReturn:
        """Tells Hydra's callbacks of a job that Hydra itself did not get to the end of."""
        config = deepcopy(self.config)
        folder = self.folder() / str(number)
        with read_write(config), open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
            config.hydra.runtime.output_dir = str(folder.absolute())
        folder.mkdir(parents=True, exist_ok=True)
        told = JobReturn(overrides=list(job), cfg=None, hydra_cfg=config, status=JobStatus.FAILED)
        told.return_value = error
        self.hydra_context.callbacks.on_job_end(config=config, job_return=told)
        return told
