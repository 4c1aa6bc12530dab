"""Step times, eager and compiled in turn, of the step that fit runs, on a real batch of the running fit and without a trace in it."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import lightning as L
import torch
from lightning.pytorch.utilities.data import _extract_batch_size

import dynacompile
from dynacompile.callbacks.inert import Inert, inert
from dynacompile.callbacks.saveable import Unrepeatable
from dynacompile.callbacks.times import StepTimes
from dynacompile.callbacks.watch import CaughtInTheAct, watched
from dynacompile.complaints import Reporting
from dynacompile.quoting import printable

Context = Callable[[], AbstractContextManager[Any]]
WARM_UPS = 8  # compiled steps at most, until one compiles nothing
ATTEMPTS = 3  # batches that are tried where a step can't be repeated for what it does at this batch
RAISED = "a repeated step raised"


class Run(Protocol):
    """What is compiled of a fit: its names, those of them that no call has come through so far, and the fit as it is without a compiler."""

    @property
    def names(self) -> tuple[str, ...]: ...
    def idle(self) -> tuple[str, ...]: ...
    def laid_aside(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Part:
    """One call of Lightning's step, which stands for `weight` batches of an optimizer step."""

    weight: int
    batch_index: int


@dataclass
class FitStep:
    """The step as fit runs it: Lightning's loop for automatic or manual optimization on the batch at hand, called as Lightning was about to."""

    trainer: L.Trainer
    run: Callable[..., Any]
    optimizer: Any  # None in manual optimization
    batch_index: int
    arguments: OrderedDict[str, Any]

    @property
    def is_manual(self) -> bool:
        return self.optimizer is None

    @property
    def accumulated(self) -> int:
        return 1 if self.is_manual else self.trainer.accumulate_grad_batches

    def parts(self) -> list[Part]:
        """The first, one middle and the last batch of those that one optimizer step accumulates: only the first clears gradients, only the last steps.

        The batch is the same in all; its index and Lightning's progress are those of the first whole window, at or before this batch.
        """
        count = self.accumulated
        if count == 1:
            return [Part(1, self.batch_index)]
        start = self.batch_index - self.batch_index % count
        if start + count > self.trainer.num_training_batches:
            start = max(0, start - count)
        return [Part(1, start), *([Part(count - 2, start + 1)] if count > 2 else []), Part(1, start + count - 1)]

    def times(self) -> tuple[float, bool]:
        """Milliseconds per batch of one optimizer step, and whether the step skipped its batch."""
        spent, is_skipped = 0.0, False
        for part in self.parts():
            arguments = self.arguments.copy()
            if self.accumulated > 1:
                progress = self.trainer.fit_loop.epoch_loop.batch_progress
                progress.current.ready = part.batch_index + 1
                progress.is_last_batch = False
                if "batch_idx" in arguments:
                    arguments["batch_idx"] = part.batch_index
            self.synchronize()
            start = time.perf_counter()
            result = self.run(arguments) if self.is_manual else self.run(self.optimizer, part.batch_index, arguments)
            self.synchronize()
            spent += part.weight * (time.perf_counter() - start)
            is_skipped = is_skipped or (not self.is_manual and not result)
        return spent * 1e3 / self.accumulated, is_skipped

    @property
    def device(self) -> torch.device:
        return self.trainer.strategy.root_device

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def samples(self) -> int | None:
        """Of the batch, as Lightning extracts it for the means that it logs, and without its warnings."""
        results = self.trainer._results
        if results is not None and results.batch_size is not None:
            return results.batch_size
        return next((size for size in _extract_batch_size(self.arguments["batch"]) if size is not None), None)


class Skipped(Unrepeatable):
    """The step returned None."""


@dataclass
class Reasons:
    """Takes an error of a measured step as the reason why nothing was measured; the fit goes on. Interrupts and exits pass.

    is_passing: the step did at this batch what it need not do at the next.
    """

    told: str = ""
    is_passing: bool = False

    def __enter__(self) -> Reasons:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.is_passing = isinstance(error, CaughtInTheAct | Skipped)
        if self.is_passing or isinstance(error, Unrepeatable):
            self.told = str(error)
        elif isinstance(error, Exception):
            self.told = f"{RAISED} {type(error).__qualname__}: {printable(str(error))}"
        return bool(self.told)


@dataclass
class StepMeasurement:
    """The measuring of one fit: `arm` it in on_train_batch_start of the batch to measure at; the next step is measured before it runs.

    rounds: of an eager and a compiled step each; 0: nothing is measured. compile_seconds: those so far. in_background: steps don't wait for
    compiles. times_kernels: one compiled step more is run, whose programs tell what each of their kernels takes. `times` or `reason` tells how it ended.
    """

    rounds: int
    compiled: Run
    compile_seconds: Callable[[], float]
    in_background: bool = False
    times_kernels: bool = False
    times: StepTimes | None = None
    reason: str = ""
    seconds: float = field(default=0.0, repr=False)
    peak_before: int = 0
    attempts: int = 0
    is_done: bool = field(default=False, repr=False)
    compiled_before: float = field(default=-1.0, repr=False)  # seconds, at the last batch
    armed: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.rounds == 0:
            self.is_done, self.reason = True, "not measured: compile.measure_steps=0"

    def arm(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Puts itself before the loop's `run`: there all hooks that precede a step have run.

        Where programs are built in the background, that is the first batch before which a whole step had none built.
        """
        self.disarm()
        before, self.compiled_before = self.compiled_before, self.compile_seconds()
        if self.in_background and (before != self.compiled_before or not dynacompile.wait(0)):
            self.reason = "not measured: programs were still built in the background"
            return
        epoch_loop = trainer.fit_loop.epoch_loop
        loop = epoch_loop.automatic_optimization if module.automatic_optimization else epoch_loop.manual_optimization
        run = loop.run

        def measured(*arguments: Any) -> Any:
            self.disarm()
            optimizer, index = arguments[:2] if len(arguments) == 3 else (None, epoch_loop.batch_idx)
            self.measure(FitStep(trainer, run, optimizer, index, arguments[-1]))
            return run(*arguments)

        vars(loop)["run"] = measured
        self.armed = loop

    def taken(self) -> float:
        """Seconds that measuring took since the last call: they belong to no step of the fit."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def disarm(self) -> None:
        if self.armed is not None:
            vars(self.armed).pop("run", None)
            self.armed = None

    def measure(self, step: FitStep) -> None:
        """Sets `times`, or `reason` where this step can't be repeated. What it does at this batch alone may be otherwise at the next: those are tried, too."""
        start = time.perf_counter()
        self.attempts += 1
        if step.device.type == "cuda":
            self.peak_before = max(self.peak_before, torch.cuda.max_memory_allocated(step.device))
        reasons = Reasons()
        try:
            with inert(step.trainer, step.arguments) as saved, reasons:
                self.times = self.measured(step, saved)
        except Unrepeatable as refused:  # before any step
            reasons.told = str(refused)
        except BaseException as ended:
            self.reason = f"not measured: {type(ended).__name__} ended the run while its steps were measured"
            raise
        finally:
            self.seconds += time.perf_counter() - start
        if step.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(step.device)
        self.reason = reasons.told and f"not measured: {reasons.told}"
        self.is_done = not reasons.is_passing or self.attempts == ATTEMPTS

    def measured(self, step: FitStep, saved: Inert) -> StepTimes:
        """The rounds, after an eager step that is watched and compiled steps until one compiles nothing. Each step starts from the same state."""
        began = self.compile_seconds()
        with self.compiled.laid_aside(), watched(step.trainer.loggers) as watch:
            _, is_skipped = step.times()
        if watch.seen:
            raise CaughtInTheAct(watch.seen)
        if is_skipped:
            raise Skipped("training_step skipped the batch: it returned None")
        saved.rewind()
        kinds: list[Context] = [self.compiled.laid_aside]
        if self.compiled.names:
            kinds.append(nullcontext)
            self.timed(step, saved, nullcontext)
        rounds: list[tuple[float, ...]] = []
        peaks = [0] * len(kinds)
        for number in range(self.rounds):
            order = list(enumerate(kinds))
            times = [0.0] * len(kinds)
            for kind, context in order if number % 2 == 0 else reversed(order):
                times[kind], peak = self.timed(step, saved, context)
                peaks[kind] = max(peaks[kind], peak)
            rounds.append(tuple(times))
        medians = [statistics.median(times) for times in zip(*rounds)]
        is_compiled = not set(self.compiled.names) <= set(self.compiled.idle())
        if is_compiled and self.times_kernels:
            with Reporting("the times of kernels"), dynacompile.kernel_times():
                step.times()
            saved.rewind()
        return StepTimes(
            eager=medians[0],
            compiled=medians[1] if is_compiled else None,
            steps=self.rounds,
            rounds=tuple(times if is_compiled else times[:1] for times in rounds),
            samples=step.samples(),
            accumulated=step.accumulated,
            is_manual=step.is_manual,
            is_uncalled=bool(self.compiled.names) and not is_compiled,
            peaks=tuple(peaks if is_compiled else peaks[:1]) if step.device.type == "cuda" else (),
            compile_seconds=self.compile_seconds() - began,
        )

    def timed(self, step: FitStep, saved: Inert, context: Context) -> tuple[float, int]:
        """Milliseconds and peak of one step in which nothing was compiled. Raises Unrepeatable where each of WARM_UPS steps compiled something."""
        for _ in range(WARM_UPS):
            before = self.compile_seconds()
            if step.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(step.device)
            with context():
                spent, _ = step.times()
            peak = saved.peak(step.device)
            dynacompile.wait()
            saved.rewind()
            if self.compile_seconds() == before:
                return spent, peak
        raise Unrepeatable(f"each of {WARM_UPS} steps on the same batch compiled something")
