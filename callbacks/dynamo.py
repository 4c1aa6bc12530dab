"""DynamoCallback: compiles modules of a LightningModule in place and reports what that cost and brought."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

import dynacompile
from dynacompile.callbacks.globs import resolve
from dynacompile.callbacks.ledger import Ledger, open_trace
from dynacompile.callbacks.measure import StepMeasurement, StepTimes, eager
from dynacompile.callbacks.outcome import Outcome, show
from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.settings import CompileSettings, call_arguments
from dynacompile.callbacks.wandb_run import publish
from dynacompile.complaints import Reporting
from dynacompile.targets import nothing_compiled, tell_nothing_compiled


class DynamoCallback(Callback):
    """Compiles what `compile.modules` names when a fit starts, and gives the modules back as they were when it ends.

    settings: a CompileSettings, or the flat mapping of the config group `compile`. `outcome` is the last fit's Outcome.
    Wrong keys raise ConfigError here; globs that match nothing raise it when the fit starts.
    """

    def __init__(self, settings: CompileSettings | Mapping[str, Any] | None = None):
        self.settings = settings if isinstance(settings, CompileSettings) else CompileSettings.of(settings or {})
        self.outcome: Outcome | None = None
        self.forget()

    def forget(self) -> None:
        """The state of no fit."""
        self.ledger = Ledger()
        self.compiled: list[nn.Module] = []
        self.names: tuple[str, ...] = ()
        self.modes: tuple[str, ...] = ()
        self.idle: tuple[str, ...] = ()
        self.measurement: StepMeasurement | None = None
        self.durations: list[float] = []
        self.started = self.batch_started = 0.0
        self.logged: dict[str, float] = {}
        self.end_subscription: Callable[[], None] | None = None
        self.laid_aside = ExitStack()

    # the fit

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.forget()
        self.outcome = None
        targets = resolve(self.settings, pl_module) if self.settings.enabled else []
        self.started = time.perf_counter()
        if self.settings.trace and trainer.is_global_zero:
            with Reporting("opening compile_events.jsonl"):
                self.ledger.lines = open_trace(log_folder(trainer))
        self.end_subscription = dynacompile.subscribe(self.ledger)
        for target in targets:
            dynacompile.compile(target.module, inplace=True, name=target.name, **call_arguments(target.options))
            self.compiled.append(target.module)
        self.names = tuple(target.name for target in targets)
        self.modes = tuple(sorted({target.options.mode for target in targets}))
        if self.settings.measure_steps:
            laid_aside = partial(eager, self.compiled) if self.compiled else None
            idle = partial(all_idle, self.compiled)
            self.measurement = StepMeasurement(self.settings.measure_steps, laid_aside, lambda: self.ledger.compile_seconds, idle)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The sanity check runs uncompiled, so that its grad mode and batch don't seed the first entry."""
        self.laid_aside.enter_context(eager(self.compiled))

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.laid_aside.close()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self.measurement is not None and self.ledger.batch >= self.settings.measure_after and not self.measurement.is_done:
            self.measurement.arm(trainer, pl_module)
        self.batch_started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        measuring = self.measurement.taken() if self.measurement else 0.0
        self.durations.append((time.perf_counter() - self.batch_started - measuring) * 1e3)
        self.ledger.batch += 1
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.ledger.batch % every == 0:
            self.log_changes(trainer.loggers, trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tells, once, of modules that are compiled by name alone: the epoch's steps called none of them, or their forward. Raises under fullgraph."""
        for name, module in zip(self.names, self.compiled):
            if name not in self.idle and nothing_compiled(module):
                self.idle += (name,)
                tell_nothing_compiled(module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.outcome = self.made_outcome(trainer, pl_module)
        if not trainer.is_global_zero:
            return
        self.log_changes(trainer.loggers, trainer.global_step)
        folder = log_folder(trainer)
        files: list[Path] = []
        with Reporting(f"writing the summary in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            self.outcome.write(folder)
        with Reporting(f"writing the compile report in {folder}"):
            files += [self.ledger.lines.path, write_report(self.outcome, folder / "compile_report.html")] if self.ledger.lines else []
        publish(trainer.loggers, self.outcome, files)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.release()
        if stage == "fit" and self.outcome is not None and trainer.is_global_zero:
            with Reporting("showing the outcome"):
                show(self.outcome)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.release()

    def release(self) -> None:
        """Gives the modules back uncompiled, ends the subscription and the trace. Safe to repeat."""
        self.laid_aside.close()
        if self.measurement is not None:
            self.measurement.disarm()
        if self.end_subscription is not None:
            self.end_subscription()
            self.end_subscription = None
        for module in self.compiled:
            dynacompile.restore(module)
        self.compiled = []
        self.ledger.lines = None

    # what it reports

    @property
    def times(self) -> StepTimes | None:
        return self.measurement.times if self.measurement else None

    @property
    def unmeasured(self) -> str:
        if self.measurement is None:
            return "not measured: compile.measure_steps=0"
        return self.measurement.reason or f"not measured: the fit had no {self.settings.measure_after + 1} batches"

    def metrics(self) -> dict[str, float]:
        """The numbers so far, as the loggers take them."""
        named = self.ledger.metrics()
        if self.times is not None:
            named["step_ms_eager"] = self.times.eager
            if self.times.compiled is not None and self.times.speedup is not None:
                named |= {"step_ms_compiled": self.times.compiled, "speedup": self.times.speedup}
        return {f"compile/{name}": float(value) for name, value in named.items()}

    def log_changes(self, loggers: list[Logger], step: int) -> None:
        """Sends the metrics to every logger when one of them changed since the last time."""
        metrics = {f"compile/{name}": float(value) for name, value in self.outcome.metrics().items()} if self.outcome else self.metrics()
        if metrics != self.logged:
            self.logged = metrics
            for logger in loggers:
                with Reporting(f"logging of compile metrics by {type(logger).__qualname__}"):
                    logger.log_metrics(metrics, step=step)

    def made_outcome(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Outcome:
        losses = {name: float(value) for name, value in trainer.callback_metrics.items() if "loss" in name}
        on_gpu = pl_module.device.type == "cuda"
        return Outcome(
            modes=self.modes,
            modules=tuple(name for name, module in zip(self.names, self.compiled) if not nothing_compiled(module)),
            idle=tuple(name for name, module in zip(self.names, self.compiled) if nothing_compiled(module)),
            losses=losses,
            steps=len(self.durations),
            fit_seconds=time.perf_counter() - self.started,
            train_step_ms=statistics.median(self.durations) if self.durations else None,
            times=self.times,
            unmeasured=self.unmeasured,
            ledger=self.ledger,
            peak_bytes=max(torch.cuda.max_memory_allocated(pl_module.device), self.measurement.peak_before if self.measurement else 0) if on_gpu else None,
            logs=log_places(trainer),
        )


def all_idle(modules: Sequence[nn.Module]) -> bool:
    """Whether no call came through any of the compiled `modules`."""
    return all(map(nothing_compiled, modules))


def log_folder(trainer: L.Trainer) -> Path:
    """Where the files of this fit go: the first logger's folder that is one, else the trainer's root."""
    return Path(next((place for logger in trainer.loggers if (place := logger.log_dir)), trainer.default_root_dir))


def log_places(trainer: L.Trainer) -> tuple[str, ...]:
    """Folder of the callback's own files, then one place per logger, each relative to the working folder where it lies below."""
    places = [log_folder(trainer), *(Path(p) for logger in trainer.loggers if (p := logger.log_dir or logger.save_dir))]
    here = Path.cwd()
    return tuple(dict.fromkeys(str(p.absolute().relative_to(here) if p.absolute().is_relative_to(here) else p) for p in places))
