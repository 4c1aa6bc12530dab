"""DynamoCallback: compiles modules of a LightningModule in place and reports what that cost and brought."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

import dynacompile
from dynacompile.callbacks.globs import resolve
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.measure import StepTimes, can_measure, eager, measure
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.reports import Reports
from dynacompile.callbacks.settings import CompileSettings, call_arguments
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
        self.reports = Reports(self.settings, self.ledger)
        self.compiled: list[nn.Module] = []
        self.names: tuple[str, ...] = ()
        self.modes: tuple[str, ...] = ()
        self.idle: tuple[str, ...] = ()
        self.times: StepTimes | None = None
        self.unmeasured = ""
        self.durations: list[float] = []
        self.started = self.batch_started = 0.0
        self.end_subscription: Callable[[], None] | None = None
        self.laid_aside = ExitStack()

    # the fit

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.forget()
        self.outcome = None
        targets = resolve(self.settings, pl_module) if self.settings.enabled else []
        self.started = time.perf_counter()
        self.reports.begin(trainer)
        self.end_subscription = dynacompile.subscribe(self.ledger)
        for target in targets:
            dynacompile.compile(target.module, inplace=True, name=target.name, **call_arguments(target.options))
            self.compiled.append(target.module)
        self.names = tuple(target.name for target in targets)
        self.modes = tuple(sorted({target.options.mode for target in targets}))
        self.reports.parts = self.names

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The sanity check runs uncompiled, so that its grad mode and batch don't seed the first entry."""
        self.laid_aside.enter_context(eager(self.compiled))

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.laid_aside.close()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.reports.offer(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self.settings.measure_steps and self.ledger.batch == self.settings.measure_after:
            self.unmeasured = can_measure(pl_module)
            if not self.unmeasured:
                self.times = self.reports.times = measure(trainer, pl_module, self.compiled, batch, batch_idx, self.settings.measure_steps)
        self.batch_started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.durations.append((time.perf_counter() - self.batch_started) * 1e3)
        self.ledger.batch += 1
        self.reports.batch_ended(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tells, once, of modules that are compiled by name alone: the epoch's steps called none of them, or their forward. Raises under fullgraph."""
        for name, module in zip(self.names, self.compiled):
            if name not in self.idle and nothing_compiled(module):
                self.idle += (name,)
                tell_nothing_compiled(module)
        self.reports.offer(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.reports.offer(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.outcome = self.made_outcome(trainer, pl_module)
        self.reports.finish(trainer, self.outcome)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.release()
        self.reports.end(trainer, self.outcome if stage == "fit" else None)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.release()

    def release(self) -> None:
        """Gives the modules back uncompiled, ends the subscription and the trace. Safe to repeat."""
        self.laid_aside.close()
        if self.end_subscription is not None:
            self.end_subscription()
            self.end_subscription = None
        for module in self.compiled:
            dynacompile.restore(module)
        self.compiled = []
        self.ledger.lines = None

    # what it reports

    def made_outcome(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Outcome:
        known = trainer.callback_metrics.items()
        losses = {name: float(value) for name, value in known if "loss" in name and name not in self.reports.known}
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
            unmeasured=self.unmeasured or f"not measured: the fit had no {self.settings.measure_after + 1} batches",
            ledger=self.ledger,
            peak_bytes=torch.cuda.max_memory_allocated(pl_module.device) if on_gpu else None,
            logs=self.reports.places(trainer),
        )

