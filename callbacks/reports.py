"""What one run of a trainer tells, while it goes and when it ends: numbers to loggers and callbacks, files in its folder, tables to Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from dynacompile.callbacks import numbers
from dynacompile.callbacks.ledger import Ledger, open_trace
from dynacompile.callbacks.outcome import Outcome, measured
from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.run_folder import RunFiles, files_of_run, from_here
from dynacompile.callbacks.screen import show
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.texts import CONFIG_KEY, as_code, as_markdown, in_force, versions
from dynacompile.callbacks.times import StepTimes
from dynacompile.complaints import Reporting
from dynacompile.config import CompileConfig
from dynacompile.run_files import write_whole

WANDB = "dynacompile.callbacks.wandb_run"  # it imports wandb, and so is imported where a WandbLogger is among the loggers


class Reports:
    """The reports of one run of `stage` ("fit", "validate", "test", "predict").

    parts: names of the modules and steps that are compiled. times: what was measured, once it was. known: the numbers as they were last offered.
    """

    def __init__(self, settings: CompileSettings, ledger: Ledger, stage: str = "fit"):
        self.settings, self.ledger, self.stage = settings, ledger, stage
        self.parts: Sequence[str] = ()
        self.times: StepTimes | None = None
        self.files = RunFiles(None, stage)
        self.known: dict[str, float] = {}
        self.known_news = -1
        self.logged: dict[str, float] = {}
        self.versions: Mapping[str, str] = {}
        self.chosen: Path | None = None
        self.resolved: Mapping[str, Any] = {}

    def begin(self, trainer: L.Trainer) -> None:
        """Opens the trace: from here on events are lines of it."""
        if trainer.is_global_zero:
            self.files = files_of_run(trainer, self.stage)
            if self.settings.trace and self.files.folder is not None:
                with Reporting("opening compile_events.jsonl"):
                    self.ledger.lines = self.files.make("compile_events.jsonl", open_trace)

    def offer(self, trainer: L.Trainer) -> None:
        """Gives callbacks the numbers as of now. Every rank calls this: as a run begins, after each of Lightning's resets, and where callbacks look."""
        self.known_news = self.news
        self.share(trainer, self.ledger.metrics() | measured(self.times, self.ledger))

    def batch_ended(self, trainer: L.Trainer) -> None:
        """Costs nothing where nothing happened since the last batch. Among several ranks, numbers change at steps that are logged, for all at once."""
        due, several = numbers.is_due(trainer), trainer.world_size > 1
        if due if several else self.news != self.known_news:
            self.offer(trainer)
        if due and self.known != self.logged:
            self.log(trainer, in_batch=True)

    @property
    def news(self) -> int:
        return len(self.ledger.seen) + (self.times is not None)

    def share(self, trainer: L.Trainer, found: Mapping[str, float]) -> None:
        prefix = self.settings.log_prefix
        whole = numbers.prefixed({**found, **numbers.of_parts(self.ledger, self.parts)}, prefix, self.stage)
        self.known = numbers.over_ranks(trainer, whole, prefix)
        numbers.offer(trainer, self.known, [f"{prefix}{name}" for name in numbers.MEASURED] if self.stage == "fit" else [])

    def log(self, trainer: L.Trainer, in_batch: bool) -> None:
        self.logged = self.known
        if trainer.is_global_zero:
            numbers.log(trainer, self.known, numbers.axis(trainer, in_batch))

    def finish(self, trainer: L.Trainer, outcome: Outcome, together: bool = True) -> None:
        """Writes and sends what the run came to. together: all ranks call this; else, as after an error on one of them, each tells its own numbers."""
        if together:
            self.share(trainer, outcome.metrics())
        else:
            self.known = numbers.prefixed(outcome.metrics(), self.settings.log_prefix, self.stage)
        if not trainer.is_global_zero:
            return
        self.log(trainer, in_batch=False)
        if self.files.folder is not None:
            trace = self.files.written[0].name if self.ledger.lines is not None else ""
            record = outcome.record(self.resolved, trace)
            with Reporting(f"writing the summary in {self.files.folder}"):
                self.files.make("summary.json", record.write)
            if self.settings.trace:
                with Reporting(f"writing the compile report in {self.files.folder}"):
                    self.files.make("compile_report.html", lambda path: write_report(record, path))
        self.publish(trainer, outcome)

    def configure(self, trainer: L.Trainer, options: Mapping[str, CompileConfig]) -> None:
        """Tells loggers, once it is known what is compiled, the settings in force and the versions. options: of each part."""
        self.parts = tuple(options)
        if trainer.is_global_zero:
            self.versions = self.versions or versions()
            resolved = self.resolved = in_force(self.settings, options, self.versions)
            for logger in trainer.loggers:
                with Reporting(f"the settings to {type(logger).__qualname__}"):
                    if isinstance(logger, WandbLogger):
                        wandb_run().configure(logger, resolved)
                    elif isinstance(logger, CSVLogger):
                        logger.log_hyperparams({CONFIG_KEY: resolved})
                    elif isinstance(logger, TensorBoardLogger):
                        logger.experiment.add_text(f"{self.settings.log_prefix}settings", as_code(resolved))

    def write_chosen(self, trainer: L.Trainer, text: Callable[[Path], str]) -> None:
        """Writes what compile=auto has chosen into the run's folder, as a config of the group `compile`. text: of the file with a path."""
        if trainer.is_global_zero and self.files.folder is not None:
            with Reporting(f"writing the chosen settings in {self.files.folder}"):
                self.chosen = self.files.make("compile/chosen.yaml", lambda path: write_whole(path, text(path), new=True))

    def publish(self, trainer: L.Trainer, outcome: Outcome) -> None:
        """The tables and files that a logger can take beyond numbers."""
        step, prefix = numbers.axis(trainer, in_batch=False), self.settings.log_prefix
        for logger in trainer.loggers:
            with Reporting(f"the report to {type(logger).__qualname__}"):
                if isinstance(logger, WandbLogger):
                    wandb_run().send(logger, outcome, self.known, prefix, step, self.files.written)
                elif isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_text(f"{prefix}events", as_markdown(outcome.ledger.told()), step)

    def end(self, trainer: L.Trainer, outcome: Outcome | None) -> None:
        """The closing screen, after Lightning's own last lines."""
        self.ledger.lines = None
        if outcome is not None and trainer.is_global_zero:
            with Reporting("showing the outcome"):
                show(outcome, self.files.told("compile_report"))

    def places(self, trainer: L.Trainer) -> tuple[str, ...]:
        """The folder of the run's files, then one place for each logger, relative to the working folder where they lie below it."""
        own = [self.files.folder] if self.files.folder is not None else []
        places = [*own, *(Path(place) for logger in trainer.loggers if (place := logger.log_dir or logger.save_dir))]
        return tuple(dict.fromkeys(([f"no files of ours: {self.files.reason}"] if self.files.reason else []) + [from_here(place) for place in places]))


def wandb_run() -> Any:
    """The module that speaks to Weights & Biases."""
    return importlib.import_module(WANDB)
