"""`compile=auto`: tries settings on a batch of the running fit, within a budget of seconds, and keeps the fastest whose step verifies against the eager one.

Stages follow each other, and each starts from the best so far: modes, then parts instead of the whole step, then sizes that are symbols, then, on GPUs,
recomputing more. Every trial is a measurement (measure.py), which compares with eager in turn and leaves nothing of itself in the fit.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import lightning as L
import yaml
from torch import nn

from dynacompile.callbacks.globs import resolve
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.measure import ATTEMPTS, RAISED, FitStep, StepMeasurement
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.steps import CompiledRun
from dynacompile.callbacks.texts import plain
from dynacompile.callbacks.trials import Changes, Trial
from dynacompile.callbacks.verified import UNVERIFIED, VerifiedMeasurement
from dynacompile.config import CompileConfig

STAGES = ("mode", "parts", "sizes", "memory")
MODES_ON_CPUS = ("max-autotune-no-cudagraphs",)
MODES_ON_GPUS = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
UNCOMPILED = "nothing was compiled"


def offered(stage: str, settings: CompileSettings, best: Changes, module: L.LightningModule) -> Iterator[Changes]:
    """What a stage tries beyond the best so far."""
    on_gpu = module.device.type == "cuda"
    match stage:
        case "mode":
            yield from ({"mode": mode} for mode in (MODES_ON_GPUS if on_gpu else MODES_ON_CPUS) if mode != settings.base.mode)
        case "parts" if settings.step:
            own, tried = settings.overrides, {frozenset[str]()}
            for modules in (own, *({**own, glob: own.get(glob, {})} for glob in parts_of(module))):
                names = frozenset(target.name for target in resolve(dataclasses.replace(settings, modules=modules), module))
                if names not in tried:
                    tried.add(names)
                    yield {**best, "step": False, **({} if modules is own else {"modules": modules})}
        case "sizes" if settings.base.dynamic is None:
            yield {**best, "dynamic": True}
        case "memory" if on_gpu and settings.base.memory_budget == 1.0:
            yield {**best, "memory_budget": 0.5}


def parts_of(module: nn.Module) -> Iterator[str]:
    """Globs of what may be compiled instead of the whole step: the children that hold parameters, and rows of siblings of one class."""
    for name, child in module.named_children():
        if any(True for _ in child.parameters()):
            yield name
    for name, inner in module.named_modules():
        children = list(inner.children())
        if name and len(children) > 1 and len({type(child) for child in children}) == 1 and all(child._get_name() != "Linear" for child in children):
            if isinstance(inner, nn.ModuleList | nn.Sequential) and any(True for _ in inner.parameters()):
                yield f"{name}.*"


def changed(settings: CompileSettings, changes: Changes) -> CompileSettings:
    """The settings with changes, and nothing left to try."""
    own = {key: value for key, value in changes.items() if key in CompileSettings.own_names()}
    base = dataclasses.replace(settings.base, **{key: value for key, value in changes.items() if key not in own})
    return dataclasses.replace(settings, **{**own, "auto": 0.0}, base=base)


class Search(StepMeasurement):
    """Armed like a measurement; instead of one it makes all the trials, and tells `keep` of the settings that are to be in force from there on.

    release: puts back what is compiled so far. listening: events go to this ledger alone inside the block.
    """

    def __init__(
        self,
        settings: CompileSettings,
        compiled: CompiledRun,
        release: Callable[[], None],
        keep: Callable[[CompileSettings], None],
        listening: Callable[[Ledger], AbstractContextManager[None]],
    ):
        super().__init__(max(settings.measure_steps, 1), compiled, lambda: 0.0)
        self.settings, self.release, self.keep, self.listening = settings, release, keep, listening
        self.trials: list[Trial] = []
        self.is_passing = False  # what kept the last trial from being measured may be gone at the next batch

    @property
    def seconds_tried(self) -> float:
        return sum(trial.seconds for trial in self.trials)

    def measure(self, step: FitStep) -> None:
        started = time.perf_counter()
        self.attempts += 1
        self.release()
        best = Trial({})
        try:
            best = self.tried(step, {})
            self.is_done = not self.is_passing or self.attempts == ATTEMPTS
            for stage in STAGES if self.is_measurable else ():
                for changes in list(offered(stage, self.settings, best.changes, step.trainer.lightning_module)):
                    trial = self.tried(step, changes)
                    if trial.is_faster_than(best):
                        best = trial
        finally:
            if not self.is_done:  # the next batch is tried
                self.trials.clear()
            best.is_kept = True
            self.keep(self.chosen(best))
            self.seconds += time.perf_counter() - started

    @property
    def is_measurable(self) -> bool:
        """Whether the fit's step can be repeated; else what is configured stays in force."""
        return self.trials[0].times is not None or self.trials[0].reason.startswith((UNVERIFIED, RAISED, UNCOMPILED))

    def chosen(self, best: Trial) -> CompileSettings:
        """best: of the trials that were measured. Where eager steps are the fastest nothing is compiled."""
        is_slower = best.times is not None and best.speedup <= 1.0
        is_unverified = best.times is None and any(trial.reason.startswith(UNVERIFIED) for trial in self.trials)
        if is_slower or is_unverified:
            best.is_kept = False
            best = Trial({"enabled": False}, reason="eager steps are the fastest of those that verify", is_kept=True)
            self.trials.append(best)
        return changed(self.settings, best.changes)

    def tried(self, step: FitStep, changes: Changes) -> Trial:
        """Compiles, measures, verifies, and puts everything back. What no longer fits the budget by the longest trial so far is not tried."""
        trial = Trial(changes)
        longest = max((earlier.seconds for earlier in self.trials), default=0.0)
        if self.trials and self.seconds_tried + longest > self.settings.auto:
            trial.reason = f"not tried: it would not fit the budget, compile.auto={self.settings.auto:g} seconds"
            self.trials.append(trial)
            return trial
        self.trials.append(trial)
        started = time.perf_counter()
        settings, ledger = changed(self.settings, changes), Ledger()
        run = CompiledRun(settings)
        try:
            with self.listening(ledger):
                run.compile_modules(resolve(settings, step.trainer.lightning_module))
                if settings.step:
                    run.compile_steps(step.trainer, step.trainer.lightning_module)
                    run.compile_optimizers(step.trainer)
                measurement = VerifiedMeasurement(self.rounds, run, lambda: ledger.compile_seconds)
                measurement.measure(step)
        finally:
            run.release()
            gc.collect()
        compiled = measurement.times is not None and measurement.times.compiled is not None and ledger.graphs > 0
        trial.times = measurement.times if compiled else None
        trial.reason = measurement.reason.removeprefix("not measured: ") if measurement.times is None else "" if compiled else UNCOMPILED
        self.is_passing = not measurement.is_done
        trial.seconds = time.perf_counter() - started
        return trial


def as_config(settings: CompileSettings, trials: Sequence[Trial], path: Path) -> str:
    """The file `path`: a config of the group `compile` that has the chosen settings without trying again."""
    kept = next(trial for trial in trials if trial.is_kept)
    plain_settings, plain_base = CompileSettings(), CompileConfig()
    own = {name: getattr(settings, name) for name in CompileSettings.own_names() if getattr(settings, name) != getattr(plain_settings, name)}
    base = {name: getattr(settings.base, name) for name in CompileConfig.names() if getattr(settings.base, name) != getattr(plain_base, name)}
    heading = f"# What compile=auto kept of {len(trials)} trials: {kept.line()}\n# python train.py --config-dir={path.parent.parent} compile={path.stem}\n"
    return heading + yaml.safe_dump({"defaults": ["default"], **plain({**own, **base})}, sort_keys=False)
