"""DynacompileCallback: compiles what Hugging Face's Trainer trains, for each call of train(), and reports what that cost and brought."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import dynacompile
from dynacompile.background import BACKGROUND
from dynacompile.callbacks import optimizer_step
from dynacompile.callbacks.globs import Target, resolve
from dynacompile.callbacks.ledger import Ledger, open_trace
from dynacompile.callbacks.optimizer_step import OptimizerStep
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.parts import CompiledParts
from dynacompile.callbacks.record import Held, timeline
from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.run_folder import RunFiles, from_here
from dynacompile.callbacks.screen import show
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.texts import in_force, versions
from dynacompile.callbacks.times import StepTimes
from dynacompile.complaints import Reporting
from dynacompile.errors import ConfigError
from dynacompile.events import Resumed
from dynacompile.session import SESSION

FOLDER = "dynacompile"  # below TrainingArguments.output_dir
VARYING = (*optimizer_step.VARYING, "step")  # transformers' own optimizers count with ints
NO_STEPS = "not measured: training had no {} steps"


class DynacompileCallback(TrainerCallback):
    """Compiles the model of a Trainer, loss included where the model computes it, its optimizer's step, and the modules that `modules` names, while
    train() runs, and puts everything back.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[DynacompileCallback()])

    settings, options: as DynamoCallback takes them; `step` is about the model as a whole and the optimizer's step, `auto` and `show` are not supported.
    `outcome` is what the last train() came to; its files lie in `output_dir/dynacompile`. An exception in train() reaches no callback: `release()`, or the
    callback as a context manager around train(), puts everything back then; the next train() does so, too.
    Raises ConfigError for wrong keys and values here, and for globs that match nothing when train() starts.
    """

    def __init__(self, settings: CompileSettings | Mapping[str, Any] | Sequence[str] | str | None = None, **options: Any):
        self.settings = CompileSettings.given(settings, options)
        for name in ("auto", "show"):
            if getattr(self.settings, name):
                raise ConfigError(f"{name} is not supported with transformers' Trainer: use DynamoCallback with Lightning for it")
        self.settings.check_steps(("optimizer_step",), "transformers' Trainer")
        self.outcome: Outcome | None = None
        self.forget()

    def forget(self) -> None:
        self.ledger = Ledger()
        self.parts = CompiledModel(self.settings)
        self.measurement = InTurn(self.settings, self.parts, self.ledger)
        self.files = RunFiles(None)
        self.durations: list[float] = []
        self.ends: list[float] = []
        self.held = Held()
        self.measuring: list[tuple[float, float]] = []
        self.modes: tuple[str, ...] = ()
        self.started = self.step_started = self.started_at = 0.0
        self.running: tuple[TrainingArguments, TrainerState] | None = None
        self.end_subscription: Callable[[], None] | None = None

    def __enter__(self) -> DynacompileCallback:
        return self

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        """Where train() has raised, the report is written, which names the exception."""
        try:
            if self.running is not None and kind is not None:
                self.finish(*self.running, ended=kind.__name__)
        finally:
            self.release()

    def release(self) -> None:
        """Puts everything back as it was before train(). Safe to repeat."""
        self.measurement.disarm()
        self.parts.release()
        if self.end_subscription is not None:
            self.end_subscription()
            self.end_subscription = None
        self.ledger.lines = None

    # the Trainer's events

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        self.release()
        self.forget()
        self.outcome, self.started, self.started_at, self.running = None, time.perf_counter(), time.time(), (args, state)
        if state.is_world_process_zero:
            self.files = RunFiles(Path(args.output_dir or ".").expanduser().absolute() / FOLDER)
            if self.settings.trace:
                with Reporting("opening compile_events.jsonl"):
                    self.ledger.lines = self.files.make("compile_events.jsonl", open_trace)
        self.end_subscription = dynacompile.subscribe(self.ledger)
        if (after := self.files.unfinished()) or state.global_step:
            from_checkpoint = str(args.resume_from_checkpoint or "a checkpoint") if state.global_step else ""
            SESSION.bus.emit(Resumed(checkpoint=from_checkpoint, step=state.global_step, after=after))
        if not self.settings.enabled:
            return
        try:
            self.modes = self.parts.compile(objects["model"], objects.get("optimizer"))
        except BaseException:  # training does not begin, so nothing would end it
            self.release()
            raise

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        if len(self.durations) >= self.settings.measure_after:
            self.measurement.begin_step()
        self.step_started = now(args.device)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        milliseconds = (now(args.device) - self.step_started) * 1e3
        if self.measurement.end_step(milliseconds):  # an eager one, or one whose kernels were timed, says nothing of what training takes
            self.measuring.append((time.time() - milliseconds / 1e3, time.time()))
            return
        self.durations.append(milliseconds)
        self.ends.append(time.time())
        self.held.note(args.device)
        self.ledger.batch += 1

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        try:
            self.finish(args, state)
        finally:
            self.release()

    def finish(self, args: TrainingArguments, state: TrainerState, ended: str = "") -> None:
        """What training came to. ended: by which exception."""
        self.running = None
        self.outcome = self.made_outcome(args, state, ended)
        if state.is_world_process_zero:
            self.report(state, self.outcome)

    # what it reports

    def made_outcome(self, args: TrainingArguments, state: TrainerState, ended: str) -> Outcome:
        idle = self.parts.idle()
        losses = {name: float(row[name]) for row in state.log_history for name in row if name in ("loss", "eval_loss")}
        samples = args.train_batch_size * args.gradient_accumulation_steps
        on_gpu = args.device.type == "cuda"
        return Outcome(
            modes=self.modes,
            modules=tuple(name for name in self.parts.names if name not in idle),
            idle=tuple(name for name in idle if name in self.parts.modules),
            losses=losses,
            steps=len(self.durations),
            fit_seconds=time.perf_counter() - self.started,
            train_step_ms=statistics.median(self.durations) if self.durations else None,
            times=self.measurement.times(samples),
            unmeasured=NO_STEPS.format(self.settings.measure_after + 2 * self.settings.measure_steps + 1),
            ledger=self.ledger,
            peak_bytes=torch.cuda.max_memory_allocated(args.device) if on_gpu else None,
            logs=(from_here(self.files.folder),) if self.files.folder is not None else (),
            notes=tuple(self.parts.left()),
            ended=ended,
            enabled=self.settings.enabled,
            waiting=BACKGROUND.waiting(),
            timeline=timeline(self.durations, self.ends, self.held.at_ends),
            started=self.started_at,
            measuring=tuple(self.measuring),
        )

    def report(self, state: TrainerState, outcome: Outcome) -> None:
        """Files, the numbers in the Trainer's own log and in the run of Weights & Biases that is open, and the closing screen."""
        resolved = in_force(self.settings, self.parts.options, versions())
        numbers = {f"{self.settings.log_prefix}{name}": float(value) for name, value in outcome.metrics().items()}
        record = outcome.record(resolved, self.files.written[0].name if self.ledger.lines is not None else "")
        with Reporting(f"writing the summary in {self.files.folder}"):
            self.files.make("summary.json", record.write)
        if self.settings.trace:
            with Reporting(f"writing the compile report in {self.files.folder}"):
                self.files.make("compile_report.html", lambda path: write_report(record, path))
        state.log_history.append({**numbers, "step": state.global_step})
        wandb = sys.modules.get("wandb")
        if wandb is not None and getattr(wandb, "run", None) is not None:
            with Reporting("the numbers to Weights & Biases"):
                wandb.run.summary.update(numbers)
        with Reporting("showing the outcome"), tqdm.external_write_mode():  # the Trainer's progress bar is still on its line
            show(outcome, self.files.told("compile_report"))


class CompiledModel(CompiledParts):
    """The compiled parts of one train()."""

    def __init__(self, settings: CompileSettings):
        super().__init__(settings)
        self.why_left: list[tuple[str, str]] = []

    def compile(self, model: nn.Module, optimizer: Any) -> tuple[str, ...]:
        """Compiles the model, the modules that the settings name, and the optimizer's step. Gives the modes."""
        targets = resolve(self.settings, model)
        if self.settings.step and all(target.module is not model for target in targets):
            targets.insert(0, Target(type(model).__name__, model, self.settings.base))
        self.compile_modules(targets)
        if self.settings.step and optimizer is not None:
            self.compile_optimizer(optimizer)
        return tuple(sorted({target.options.mode for target in targets}))

    def compile_optimizer(self, optimizer: Any) -> None:
        """optimizer: the Trainer's, which accelerate has wrapped."""
        own = getattr(optimizer, "optimizer", optimizer)
        if getattr(optimizer, "scaler", None) is not None:
            self.why_left.append(("left to Python", "optimizer_step: a GradScaler steps it"))
        elif isinstance(own, Optimizer):
            arguments = {**self.arguments("optimizer_step", VARYING), "isolate_recompiles": True, "name": "optimizer_step"}
            with self.isolated():
                step = OptimizerStep(own, arguments)
            self.note_names(step.compiled, self.settings.globs_of_step("optimizer_step"))
            step.install()
            self.regions["optimizer_step"] = step
            self.optimizers.append(step)
            self._own.callback(step.remove)

    def left(self) -> list[tuple[str, str]]:
        return [*self.why_left, *super().left()]


class InTurn:
    """Some of the training's own steps run eagerly, in turn with compiled ones: no step is repeated, and none is for measuring alone."""

    def __init__(self, settings: CompileSettings, parts: CompiledParts, ledger: Ledger):
        self.parts, self.ledger, self.wanted = parts, ledger, settings.measure_steps
        self.has_compiled = settings.enabled
        self.times_kernels = settings.enabled and settings.trace and settings.measure_steps > 0
        self.is_timing = False
        self.taken: tuple[list[float], list[float]] = ([], [])  # eager, compiled
        self.warm = False  # whether one eager step has been
        self.is_eager = self.is_armed = False
        self.compile_seconds = 0.0
        self.aside = ExitStack()

    @property
    def is_done(self) -> bool:
        eager, compiled = self.taken
        return len(eager) >= self.wanted and (len(compiled) >= self.wanted or not self.has_compiled)

    def begin_step(self) -> None:
        if self.is_done:
            if self.times_kernels:
                self.times_kernels, self.is_timing = False, True
                self.aside.enter_context(dynacompile.kernel_times())
            return
        eager, compiled = self.taken
        self.is_armed, self.compile_seconds = True, self.ledger.compile_seconds
        self.is_eager = not self.has_compiled or not self.warm or len(eager) <= len(compiled)
        if self.is_eager and self.has_compiled:
            self.aside.enter_context(self.parts.laid_aside())

    def end_step(self, milliseconds: float) -> bool:
        """Whether the step was an eager one of a compiled run, or one whose kernels were timed. A step that compiled something, and the first eager one, are in
        no time."""
        if self.is_timing:
            self.is_timing = False
            with Reporting("the times of kernels"):
                self.aside.close()
            return True
        if not self.is_armed:
            return False
        was_eager, self.is_armed = self.is_eager, False
        self.aside.close()
        if self.ledger.compile_seconds == self.compile_seconds and (self.warm or not was_eager):
            self.taken[0 if was_eager else 1].append(milliseconds)
        self.warm = self.warm or was_eager
        return was_eager and self.has_compiled

    def disarm(self) -> None:
        self.is_armed = self.is_timing = False
        self.aside.close()

    def times(self, samples: int) -> StepTimes | None:
        """None where training ended before all was measured."""
        if not self.wanted or not self.is_done:
            return None
        eager, compiled = self.taken
        rounds = tuple(zip(eager, compiled, strict=True)) if self.has_compiled else tuple((ms,) for ms in eager)
        middle = statistics.median(compiled) if self.has_compiled else None
        return StepTimes(statistics.median(eager), middle, len(eager), rounds, samples, is_of_training=True)


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
