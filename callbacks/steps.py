"""What is compiled of a LightningModule for one run of a Trainer, and put back after it: its steps, its optimizers' steps, modules that are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import lightning as L
import lightning_utilities
import torchmetrics
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

import dynacompile
from dynacompile.callbacks import optimizer_step
from dynacompile.callbacks.globs import Target
from dynacompile.callbacks.optimizer_step import Clipping, OptimizerStep
from dynacompile.callbacks.settings import CompileSettings, call_arguments
from dynacompile.config import CompileConfig
from dynacompile.targets import nothing_compiled, was_called

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
    dynacompile.after_graph(_log, changes=CHANGED_BY_LOGGING, history="enable_graph")
dynacompile.leave_to_python(L, lightning_utilities, torchmetrics, optimizer_step)
dynacompile.leave_to_python(LightningOptimizer.step, OptimizerStep.__call__, reason="an optimizer's step is compiled by itself")
dynacompile.leave_to_python(L.LightningModule.manual_backward, reason="it runs autograd")
dynacompile.leave_to_python(L.LightningModule.toggle_optimizer, L.LightningModule.untoggle_optimizer, reason="it changes what requires gradients")


class CompiledRun:
    """The compiled parts of one run. They have buckets of their own, which go with them.

    names: of what is compiled, in the order in which it was. modules: those that are compiled in place, by name.
    """

    def __init__(self, settings: CompileSettings):
        self.settings = settings
        self.modules: dict[str, nn.Module] = {}
        self._options: dict[str, CompileConfig] = {}  # of modules
        self.regions: dict[str, Any] = {}
        self.optimizers: list[OptimizerStep | Clipping] = []
        self._own = ExitStack()
        self._scope: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.modules, *self.regions)

    @property
    def options(self) -> dict[str, CompileConfig]:
        """What the user's settings are for each compiled part, by its name."""
        return {**{name: self._options[name] for name in self.modules}, **{name: self.settings.of_step(name) for name in self.regions}}

    def compile_modules(self, targets: list[Target]) -> None:
        """Compiles modules in place."""
        with self.isolated():
            for target in targets:
                before = {name: target.module.__dict__.get(name) for name in ("_compiled_call_impl", "buckets")}
                dynacompile.compile(target.module, inplace=True, name=target.name, **call_arguments(target.options))
                self.modules[target.name], self._options[target.name] = target.module, target.options
                self._own.callback(put_back, target.module, before)

    def compile_steps(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Compiles the steps that the run calls and the user wrote."""
        for name in STEPS[trainer.state.fn]:  # type: ignore[index]
            if is_overridden(name, module) or name == "predict_step":
                with self.isolated():
                    compiled = dynacompile.compile(getattr(module, name), name=name, **self.arguments(name, VARYING))
                self._own.callback(put_back, module, {name: module.__dict__.get(name)})
                module.__dict__[name] = self.regions[name] = compiled

    def compile_optimizers(self, trainer: L.Trainer) -> None:
        """Compiles the steps of the run's optimizers, and the clipping of gradients."""
        optimizers = trainer.optimizers
        names = ["optimizer_step"] if len(optimizers) == 1 else [f"optimizer_step.{number}" for number in range(len(optimizers))]
        apart = {"isolate_recompiles": True}  # one code steps every optimizer
        varying = optimizer_step.VARYING if trainer.lr_scheduler_configs else ()  # symbols take SymPy, a part of a second
        arguments = {name: {**self.arguments(name, varying), **apart, "name": name} for name in (*names, "optimizer_step")}
        with self.isolated():
            steps = {name: OptimizerStep(optimizer, arguments[name]) for name, optimizer in zip(names, optimizers)}
            clipping = Clipping(trainer, list(steps.values()), arguments["optimizer_step"])
        self.regions |= steps
        for part in (*steps.values(), clipping):
            part.install()
            self.optimizers.append(part)
            self._own.callback(part.remove)

    def arguments(self, name: str, varying: tuple[str, ...]) -> dict[str, Any]:
        """What compile() is called with for a step."""
        options = self.settings.of_step(name)
        return call_arguments(dataclasses.replace(options, varying=(*options.varying, *varying)))

    @contextmanager
    def isolated(self) -> Iterator[None]:
        with dynacompile.isolated(self._scope) as self._scope:
            yield

    def idle(self) -> tuple[str, ...]:
        """Names of what no call has come through so far."""
        idle = [name for name, module in self.modules.items() if nothing_compiled(module)]
        return (*idle, *(name for name, region in self.regions.items() if not is_called(region)))

    def left(self) -> list[tuple[str, str]]:
        """Rows on optimizers whose steps are Python, with the reason."""
        steps = [(name, region) for name, region in self.regions.items() if isinstance(region, OptimizerStep)]
        return [("left to Python", f"{name}: {step.why_left()}") for name, step in steps if step.why_left()]

    @contextmanager
    def laid_aside(self) -> Iterator[None]:
        """The run as it is without a compiler; everything is put back as it was."""
        with ExitStack() as back:
            back.enter_context(self.modules_laid_aside())
            for part in self.optimizers:
                back.enter_context(part.laid_aside())
            for name, region in self.regions.items():
                if isinstance(region, MethodType):
                    owner: Any = region.__self__
                    back.callback(put_back, owner, {name: owner.__dict__.pop(name)})
            yield

    @contextmanager
    def modules_laid_aside(self) -> Iterator[None]:
        with ExitStack() as back:
            for module in self.modules.values():
                back.callback(put_back, module, {"_compiled_call_impl": module.__dict__.pop("_compiled_call_impl", None)})
            yield

    def release(self) -> None:
        """Puts everything back as it was before. Safe to repeat."""
        self._own.close()
        self.modules, self.regions, self.optimizers, self._scope = {}, {}, [], None


def is_called(region: Any) -> bool:
    """Whether a call has come through a compiled step."""
    compiled = region.compiled if isinstance(region, OptimizerStep) else region
    return was_called(compiled)


def put_back(module: nn.Module, attributes: Mapping[str, Any]) -> None:
    """Gives a module's attributes the values that they had; None: it had none."""
    for name, value in attributes.items():
        if value is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = value
