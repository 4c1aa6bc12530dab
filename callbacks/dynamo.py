"""DynamoCallback: compiles the steps of a LightningModule for each run of a Trainer, and reports what that cost and brought."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import _TunerExitException
from rich.console import Console

import dynacompile
from dynacompile.background import BACKGROUND
from dynacompile.callbacks.auto import Search, as_config
from dynacompile.callbacks.communication import Communication
from dynacompile.callbacks.globs import check_module, resolve
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.measure import StepMeasurement
from dynacompile.callbacks.numbers import metrics_now
from dynacompile.callbacks.origins import origins
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.plan import planned, table
from dynacompile.callbacks.record import Held, timeline
from dynacompile.callbacks.reports import Reports
from dynacompile.callbacks.run_folder import check_checkpoints, note_file_in_the_way
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.steps import STEPS, CompiledRun
from dynacompile.callbacks.times import StepTimes
from dynacompile.callbacks.wandb_hooks import hooks_of_wandb
from dynacompile.complaints import warn
from dynacompile.errors import ConfigError
from dynacompile.events import Resumed
from dynacompile.session import SESSION
from dynacompile.targets import nothing_compiled, tell_nothing_compiled

WITHOUT_TRAINING = ("validation_step", "test_step", "predict_step")


class DynamoCallback(Callback):
    """Compiles the steps of a LightningModule, its optimizers' steps, and what `compile.modules` names, for each run of a Trainer, and puts everything back.

    DynamoCallback() needs no settings. settings: a CompileSettings, the flat mapping of the config group `compile`, a mode ("max-autotune"), or
    modules (["encoder"], {"encoder": "max-autotune"}); options: keys of the group one by one; dispatch: {name of a step or module: {"by": function of a
    call's arguments that gives a key, "options": {key: what differs there}}}. `outcome` is the last run's Outcome.
    Wrong keys and values raise ConfigError here; globs that match nothing raise it when the run starts.
    """

    def __init__(
        self,
        settings: CompileSettings | Mapping[str, Any] | Sequence[str] | str | None = None,
        *,
        dispatch: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ):
        self.settings = CompileSettings.given(settings, options)
        if dispatch is not None:
            self.settings = dataclasses.replace(self.settings, dispatch=dispatch)
        origins().check()
        self.outcome: Outcome | None = None
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a run, which stays in its process: `ddp_spawn` and the like send callbacks to those that train."""
        of_runs = vars(DynamoCallback(self.settings)).keys() - {"settings"}
        return {name: value for name, value in vars(self).items() if name not in of_runs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.outcome = None
        self.forget()

    def forget(self) -> None:
        """The state of no run."""
        self.ledger = Ledger()
        self.reports = Reports(self.settings, self.ledger)
        self.run = CompiledRun(self.settings)
        self.modes: tuple[str, ...] = ()
        self.idle: tuple[str, ...] = ()
        self.told: set[str] = set()
        self.measurement = self.new_measurement(self.settings)
        self.search: Search | None = None
        self.communication = Communication()
        self.durations: list[float] = []
        self.ends: list[float] = []
        self.held = Held()
        self.measuring: list[tuple[float, float]] = []
        self.started = self.batch_started = self.started_at = 0.0
        self.end_subscription: Callable[[], None] | None = None
        self.laid_aside = ExitStack()

    def new_measurement(self, settings: CompileSettings) -> StepMeasurement:
        """Of what `self.run` has compiled by these settings."""
        return StepMeasurement(settings.measure_steps, self.run, lambda: self.ledger.compile_seconds, settings.in_background, settings.trace)

    # runs of the trainer

    def begin(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if sum(isinstance(callback, DynamoCallback) for callback in trainer.callbacks) > 1:  # type: ignore[attr-defined]
            raise ConfigError("the trainer has several DynamoCallbacks, and each would compile the same steps: leave one, and give it the settings of all")
        self.release()
        self.forget()
        self.outcome = None
        if self.settings.show:
            self.show_plan(trainer, pl_module)
        if self.settings.enabled:
            check_module(self.settings, pl_module)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            check_checkpoints(trainer)
        self.started, self.started_at = time.perf_counter(), time.time()
        self.reports = Reports(self.settings, self.ledger, str(trainer.state.fn.value if trainer.state.fn else "fit"))
        self.reports.begin(trainer)
        self.end_subscription = dynacompile.subscribe(self.ledger)
        if not self.settings.enabled:
            return
        self.compile(trainer, pl_module, self.settings)
        if self.settings.auto and trainer.state.fn == TrainerFn.FITTING:
            self.search = Search(self.settings, self.run, self.run.release, lambda kept: self.keep(trainer, pl_module, kept), self.listening)
        self.reports.configure(trainer, self.run.options)

    def compile(self, trainer: L.Trainer, pl_module: L.LightningModule, settings: CompileSettings) -> None:
        """Compiles what `settings` say; optimizers' steps come later."""
        targets = resolve(settings, pl_module)
        self.run.compile_modules(targets)
        if settings.step:
            self.run.compile_steps(trainer, pl_module)
        modes = {target.options.mode for target in targets} | ({settings.base.mode} if settings.step else set())
        self.modes = tuple(sorted(modes))

    def keep(self, trainer: L.Trainer, pl_module: L.LightningModule, settings: CompileSettings) -> None:
        """Compiles what compile=auto has chosen, for the rest of the fit, and writes it as a config."""
        self.run = CompiledRun(settings)
        self.modes = ()
        if settings.enabled:
            self.compile(trainer, pl_module, settings)
            if settings.step:
                self.run.compile_optimizers(trainer)
        self.measurement = self.new_measurement(settings)
        self.reports.settings = settings
        self.reports.configure(trainer, self.run.options)
        assert self.search is not None
        if trials := self.search.trials:
            self.reports.write_chosen(trainer, lambda path: as_config(settings, trials, path))

    @contextmanager
    def listening(self, ledger: Ledger) -> Iterator[None]:
        """Events go to another ledger inside the block."""
        assert self.end_subscription is not None
        self.end_subscription()
        self.end_subscription = dynacompile.subscribe(ledger)
        try:
            yield
        finally:
            self.end_subscription()
            self.end_subscription = dynacompile.subscribe(self.ledger)

    def show_plan(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Prints what would be compiled, and ends the run of the trainer, which returns as one that has nothing to do."""
        targets = resolve(self.settings, pl_module)
        if trainer.is_global_zero:
            Console().print(table(planned(self.settings, pl_module, targets, STEPS[trainer.state.fn], origins())))  # type: ignore[index]
        raise _TunerExitException

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin(trainer, pl_module)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Where modules are compiled by themselves, the sanity check runs uncompiled, so that its grad mode and batch don't seed their first entries; its
        steps too, whose graphs would not end at calls of modules that are not compiled yet."""
        if self.run.modules:
            self.laid_aside.enter_context(self.run.laid_aside())

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.laid_aside.close()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Optimizers are compiled here: other callbacks may make new ones while the fit starts."""
        if self.settings.enabled and self.settings.step:
            self.run.compile_optimizers(trainer)
            self.reports.configure(trainer, self.run.options)
        self.reports.offer(trainer)
        checkpoint, after = trainer.ckpt_path, self.reports.files.unfinished()
        if checkpoint or after:
            SESSION.bus.emit(Resumed(checkpoint=str(checkpoint or ""), step=trainer.global_step, after=after))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self.begin(trainer, pl_module)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin(trainer, pl_module)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin(trainer, pl_module)

    def measured_from(self, trainer: L.Trainer) -> int:
        """The batch from which on steps may be measured: what an optimizer does in its first step, which makes its state, it does in no other."""
        return max(self.settings.measure_after, trainer.accumulate_grad_batches)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self.ledger.batch >= self.measured_from(trainer):
            if self.search is not None and not self.search.is_done:
                self.search.arm(trainer, pl_module)
            elif not self.measurement.is_done:
                self.measurement.arm(trainer, pl_module)
        self.batch_started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        taken = self.measurement.taken() + (self.search.taken() if self.search is not None else 0.0)
        whole, end = time.perf_counter() - self.batch_started, time.time()
        self.durations.append((whole - taken) * 1e3)
        self.ends.append(end)
        if taken:
            self.measuring.append((end - whole, end - whole + taken))
        self.held.note(pl_module.device)
        self.ledger.batch += 1
        self.communication.batch_ended(trainer, self.ledger.batch, self.durations[-1], self.ledger.compile_seconds)
        self.reports.times = self.step_times()
        self.reports.batch_ended(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tells, once, of modules that are compiled by name alone: the epoch's steps called none of them, or their forward. Raises under fullgraph."""
        for name, module in self.run.modules.items():
            if name not in self.idle and nothing_compiled(module):
                self.idle += (name,)
                tell_nothing_compiled(module)
        self.tell_absent()
        self.reports.offer(trainer)

    def tell_absent(self) -> None:
        """Warns, once, of names in settings that no part has."""
        for told in self.run.absent():
            if told not in self.told:
                self.told.add(told)
                warn(told)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.finish(trainer, pl_module)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.finish(trainer, pl_module)

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.finish(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self.finish(trainer, pl_module)
        else:
            self.reports.offer(trainer)

    def finish(self, trainer: L.Trainer, pl_module: L.LightningModule, ended: str = "") -> None:
        """What the run came to, in files and loggers. ended: by which exception, on this rank alone."""
        self.tell_absent()
        if taken := self.measurement.taken():  # by a batch that has not ended
            self.measuring.append((time.time() - taken, time.time()))
        self.outcome = self.made_outcome(trainer, pl_module, ended)
        self.reports.finish(trainer, self.outcome, together=not ended)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.end(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        note_file_in_the_way(exception)
        self.end(trainer, pl_module, ended=type(exception).__name__)

    def end(self, trainer: L.Trainer, pl_module: L.LightningModule, ended: str = "") -> None:
        """Ends a run, however it ended: puts everything back, writes the report where that is yet to be done, shows the outcome. Safe to repeat."""
        running = self.end_subscription is not None
        try:
            if running and self.outcome is None:
                self.finish(trainer, pl_module, ended)
        finally:
            self.release()
        if running:
            self.reports.end(trainer, self.outcome)

    def release(self) -> None:
        """Puts everything back as it was, ends the subscription and the trace. Safe to repeat."""
        self.laid_aside.close()
        self.measurement.disarm()
        if self.search is not None:
            self.search.disarm()
        if self.end_subscription is not None:
            self.end_subscription()
            self.end_subscription = None
        self.run.release()
        self.ledger.lines = None

    # what it reports

    def step_times(self) -> StepTimes | None:
        """What was measured. Where only steps of validation have graphs, as under anomaly detection, the steps of training were not compiled."""
        times = self.measurement.times
        if times is None or times.compiled is None or any(self.ledger.has_graph(name) for name in self.run.names if name not in WITHOUT_TRAINING):
            return times
        return dataclasses.replace(times, compiled=None, rounds=tuple(each[:1] for each in times.rounds), peaks=times.peaks[:1])

    def made_outcome(self, trainer: L.Trainer, pl_module: L.LightningModule, ended: str = "") -> Outcome:
        known, on_bar = metrics_now(trainer)
        losses = {name: float(value) for name, value in known.items() if ("loss" in name or name in on_bar) and name not in self.reports.known}
        on_gpu = pl_module.device.type == "cuda"
        idle = self.run.idle()
        is_fit = trainer.state.fn == TrainerFn.FITTING
        chosen = [("chosen", str(self.reports.chosen))] if self.reports.chosen is not None else []
        first = self.measured_from(trainer) + 1
        too_short = f"not measured: {f'the run ended before batch {first}' if ended else f'the fit had no {first} batches'}"
        unmeasured = too_short if is_fit else "not measured: only training steps are"
        return Outcome(
            modes=self.modes,
            modules=tuple(name for name in self.run.names if name not in idle),
            idle=tuple(name for name in idle if name in self.run.modules),  # a step that no loop called was not to run
            waiting=BACKGROUND.waiting(),
            losses=losses,
            steps=len(self.durations),
            fit_seconds=time.perf_counter() - self.started,
            train_step_ms=statistics.median(self.durations) if self.durations else None,
            times=self.step_times(),
            unmeasured=self.measurement.reason or unmeasured,
            ledger=self.ledger,
            peak_bytes=max(torch.cuda.max_memory_allocated(pl_module.device), self.measurement.peak_before) if on_gpu else None,
            logs=self.reports.places(trainer),
            notes=tuple((name, text) for name, text in (("wandb.watch", hooks_of_wandb(pl_module)), *self.run.left(), *chosen) if text),
            ended=ended,
            enabled=self.run.settings.enabled,
            trials=tuple(self.search.trials) if self.search is not None else (),
            timeline=timeline(self.durations, self.ends, self.held.at_ends),
            communication=self.communication,
            started=self.started_at,
            measuring=tuple(self.measuring),
        )
