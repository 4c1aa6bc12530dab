"""What is compiled of a LightningModule for one run of a Trainer, and put back after it: its steps, its optimizers' steps, modules that are named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import lightning_utilities
import torchmetrics
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden

import dynacompile
from dynacompile.callbacks import clipping, optimizer_step
from dynacompile.callbacks.clipping import Clipping
from dynacompile.callbacks.optimizer_step import OptimizerStep
from dynacompile.callbacks.parts import CompiledParts, put_back
from dynacompile.callbacks.settings import STEP_NAMES

STEPS: Mapping[TrainerFn, tuple[str, ...]] = {
    TrainerFn.FITTING: ("training_step", "validation_step"),
    TrainerFn.VALIDATING: ("validation_step",),
    TrainerFn.TESTING: ("test_step",),
    TrainerFn.PREDICTING: ("predict_step",),
}
"""The methods of a LightningModule that a run of each kind calls for its batches."""
VARYING = ("batch_idx", "dataloader_idx", *(f"{scope}.{count}" for scope in ("total", "current") for count in ("ready", "started", "processed", "completed")))
"""What counts up from step to step: arguments of the steps, and Lightning's own counters, which global_step and current_epoch read."""
CHANGED_BY_LOGGING = ("callback_metrics", "logged_metrics", "progress_bar_metrics", "_results")

for _log in (L.LightningModule.log, L.LightningModule.log_dict):
    dynacompile.after_graph(_log, changes=CHANGED_BY_LOGGING, history="enable_graph", talks="sync_dist")
dynacompile.leave_to_python(L, lightning_utilities, torchmetrics, clipping)
dynacompile.leave_to_python(LightningOptimizer.step, reason="an optimizer's step is compiled by itself")
dynacompile.leave_to_python(L.LightningModule.manual_backward, reason="it runs autograd")
dynacompile.leave_to_python(L.LightningModule.toggle_optimizer, L.LightningModule.untoggle_optimizer, reason="it changes what requires gradients")


def counters(step: Callable[..., Any]) -> tuple[str, ...]:
    """What the step calls its arguments after the batch, all of which Lightning passes by place: the numbers of batches and of data loaders."""
    try:
        return tuple(inspect.signature(step).parameters)[1:3]
    except (TypeError, ValueError):  # a callable that has no signature
        return ()


def rates(trainer: L.Trainer) -> tuple[str, ...]:
    """Ends of the paths by which a step reads the learning rates of the run's optimizers, where schedulers change them."""
    groups = max((len(config.scheduler.optimizer.param_groups) for config in trainer.lr_scheduler_configs if hasattr(config.scheduler, "optimizer")), default=0)
    return tuple(end for number in range(groups) for end in (f"param_groups[{number}]['lr']", f"_last_lr[{number}]"))


class CompiledRun(CompiledParts):
    """The compiled parts of one run of a Trainer."""

    def compile_steps(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Compiles the steps that the run calls and the user wrote."""
        varying = (*VARYING, *rates(trainer))
        for name in STEPS[trainer.state.fn]:  # type: ignore[index]
            if is_overridden(name, module) or name == "predict_step":
                with self.isolated():
                    step = getattr(module, name)
                    arguments = {"isolate_recompiles": True, **self.arguments(name, tuple(dict.fromkeys((*varying, *counters(step)))))}
                    compiled = dynacompile.compile(step, name=name, **arguments)
                self.note_names(compiled, self.settings.globs_of_step(name))
                self._own.callback(put_back, module, {name: module.__dict__.get(name)}, {name: compiled})
                module.__dict__[name] = self.regions[name] = compiled

    def compile_optimizers(self, trainer: L.Trainer) -> None:
        """Compiles the steps of the run's optimizers, and the clipping of gradients."""
        optimizers = trainer.optimizers
        names = ["optimizer_step"] if len(optimizers) == 1 else [f"optimizer_step.{number}" for number in range(len(optimizers))]
        self.settings.check_steps(tuple(dict.fromkeys((*STEP_NAMES, *names))), f"a fit with {len(optimizers)} optimizer{'s' * (len(optimizers) != 1)}")
        apart = {"isolate_recompiles": True}  # one code steps every optimizer
        varying = optimizer_step.varying(config.scheduler for config in trainer.lr_scheduler_configs)  # symbols take SymPy, a part of a second
        arguments = {name: {**self.arguments(name, varying), **apart, "name": name} for name in (*names, "optimizer_step")}
        with self.isolated():
            steps = {name: OptimizerStep(optimizer, arguments[name]) for name, optimizer in zip(names, optimizers)}
            gradient_clipping = Clipping(trainer, list(steps.values()), arguments["optimizer_step"])
        self.regions |= steps
        for name, step in steps.items():
            self.note_names(step.compiled, self.settings.globs_of_step(name))
        for part in (*steps.values(), gradient_clipping):
            part.install()
            self.optimizers.append(part)
            self._own.callback(part.remove)
