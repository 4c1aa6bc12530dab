"""Lightning's clipping of gradients, compiled with the optimizer's step that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

import dynacompile
from dynacompile.callbacks.optimizer_step import OptimizerStep


class Clipping:
    """Takes the place of a precision plugin's functions that clip gradients.

    What Lightning clips at the end of a closure waits for the optimizer's step, to be compiled with it, where nothing can come between: the user has no
    configure_gradient_clipping, and the plugin scales no gradients. All other clipping is compiled by itself.
    """

    def __init__(self, trainer: L.Trainer, steps: Sequence[OptimizerStep], arguments: Mapping[str, Any]):
        self.plugin: Any = trainer.precision_plugin
        self.steps = {id(step.optimizer): step for step in steps}
        self.compiled: Callable = dynacompile.compile(clip_gradients, **arguments)
        ours = type(self.plugin).optimizer_step in (Precision.optimizer_step, MixedPrecision.optimizer_step)
        self.can_wait = ours and getattr(self.plugin, "scaler", None) is None and not is_overridden("configure_gradient_clipping", trainer.lightning_module)
        self.replaced = {"_clip_gradients": self.at_end, "clip_grad_by_norm": self.by_norm, "clip_grad_by_value": self.by_value}
        self.ending = self.active = False

    def install(self) -> None:
        """Only in the place of Lightning's own functions: strategies that shard parameters have others."""
        own = type(self.plugin)
        if own.clip_grad_by_norm is Precision.clip_grad_by_norm and own.clip_grad_by_value is Precision.clip_grad_by_value:
            self.active = True
            self.plugin.__dict__.update(self.replaced)

    def remove(self) -> None:
        self.active = False
        for name, function in self.replaced.items():
            if self.plugin.__dict__.get(name) == function:
                del self.plugin.__dict__[name]

    @contextmanager
    def laid_aside(self) -> Iterator[None]:
        active, self.active = self.active, False
        try:
            yield
        finally:
            self.active = active

    def at_end(self, *args: Any, **kwargs: Any) -> None:
        """What Lightning calls when a closure ends."""
        self.ending = True
        try:
            type(self.plugin)._clip_gradients(self.plugin, *args, **kwargs)
        finally:
            self.ending = False

    def by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        self.clip(optimizer, clip_grad_norm_, clip_val)

    def by_value(self, optimizer: Optimizer, clip_val: float) -> None:
        self.clip(optimizer, clip_grad_value_, clip_val)

    def clip(self, optimizer: Optimizer, function: Callable, bound: float) -> None:
        step = self.steps.get(id(getattr(optimizer, "_optimizer", optimizer)))
        if not self.active or (step is not None and step.wrapper):
            function(self.plugin.main_params(optimizer), bound)
        elif step is not None and step.in_closure and step.closure_first and self.ending and self.can_wait and step.clipping is None:
            step.clipping = (function, bound)
        else:
            self.compiled(function, list(self.plugin.main_params(optimizer)), bound)


def clip_gradients(clip: Callable, parameters: list[torch.Tensor], bound: float) -> None:
    clip(parameters, bound)
