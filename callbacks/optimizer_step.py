"""Optimizers' steps, compiled together with the clipping of gradients before them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

import dynacompile
from dynacompile.ops.wrappers import is_wrapper
from dynacompile.private import of_torch

VARYING = ("lr", "initial_lr", "momentum", "weight_decay")
"""What schedulers change in a group of parameters."""
CYCLED = ("betas[0]",)
"""What those change besides that cycle the momentum: OneCycleLR, and CyclicLR. A symbol takes a part of a second, so others leave it a constant."""
MOCK = "_MockOptimizer"
"""The class of what Lightning puts in the place of an optimizer where there is none."""
Step = Callable[..., Any]


def update(step: Step, optimizer: Optimizer, clip: Callable | None, bound: float, options: Mapping[str, Any]) -> None:
    """Clips the gradients of all parameters (clip: torch's function for it, None: they stay), and steps."""
    if clip is not None:
        clip(parameters_of(optimizer), bound)
    step(**options)


def varying(schedulers: Iterable[Any]) -> tuple[str, ...]:
    """Ends of the paths of the numbers that schedulers of an optimizer change, those in SequentialLR and the like among them. None without any."""
    each = [inner for scheduler in schedulers for inner in (scheduler, *getattr(scheduler, "_schedulers", ()))]
    return (*VARYING, *(CYCLED if any(getattr(scheduler, "cycle_momentum", False) for scheduler in each) else ())) if each else ()


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_torchs(step: Step) -> bool:
    """Whether a step of an optimizer is torch's alone: what wraps it is of torch.optim, too (profiling, schedulers). Such a step calls its closure before
    all else; what somebody else's does before and after it, and with what it gives, is not known."""
    layer: Any = step
    while layer is not None:
        function = getattr(layer, "__func__", layer)
        if not isinstance(function, FunctionType) or function.__globals__.get("__name__", "").split(".")[:2] != ["torch", "optim"]:
            return False
        layer = function.__dict__.get("__wrapped__")
    return True


def is_left(parameter: torch.Tensor) -> bool:
    """Whether a step of a parameter is left to Python: it wraps other tensors, and is no DTensor."""
    return of_torch.is_traceable_wrapper_subclass(parameter) and not is_wrapper(parameter)


class OptimizerStep:
    """Takes the place of `optimizer.step`: runs the closure (forward, backward, hooks), then one compiled function that clips and steps.

    optimizer: one of torch's, or what a strategy has put around it, as DeepSpeed does, whose steps are left to Python.
    A step that is not torch's alone is compiled as it is. It gets `closure_of_call`, the same function in each call, as another one would be a recompile.
    """

    def __init__(self, optimizer: Optimizer, arguments: Mapping[str, Any]):
        self.optimizer = optimizer
        self.original: Step = optimizer.step
        self.patched = optimizer.__dict__.get("step")
        self.closure_first = is_torchs(self.original)
        self.compiled: Step = dynacompile.compile(update if self.closure_first else self.original, **arguments)
        self.closure: Callable[[], Any] | None = None  # of the call of a step that is not torch's alone
        self.closure_of_call = dynacompile.disable(lambda: self.closure())  # type: ignore[misc]
        self.clipping: tuple[Callable, float] | None = None  # that waits for the step
        self.in_closure = self.active = False
        self.wrapper = ""  # the class of parameters that wrap others and are no DTensors: their steps are Python

    def __getattr__(self, name: str) -> Any:
        """Marks that others leave at the function, as schedulers do."""
        return getattr(self.__dict__["original"], name)

    @property
    def __func__(self) -> Callable[..., Any]:
        """What stands for the method's function. A scheduler that is made during the fit wraps it, and calls it with the optimizer."""

        @functools.wraps(self.original.__func__)  # type: ignore[attr-defined]
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return step

    def why_left(self) -> str:
        """Why steps of this optimizer are left to Python; empty where they are not. Hooks that run before a step run before its closure, too."""
        optimizer, kind = self.optimizer, type(self.optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            return f"{kind} is no torch.optim.Optimizer"
        if kind == MOCK:
            return "the fit has no optimizer (configure_optimizers returned None)"
        if isinstance(optimizer, torch.optim.LBFGS):
            return f"{kind} calls its closure several times"
        if isinstance(optimizer, torch.optim.SparseAdam):
            return f"{kind} takes sparse gradients"
        own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        if any(own) or of_torch.global_optimizer_pre_hooks or of_torch.global_optimizer_post_hooks:
            return f"{kind} has hooks that run before or after its steps"
        return f"{kind} steps parameters of class {self.wrapper}, which are no plain tensors" if self.wrapper else ""

    def why_passed_by(self) -> str:
        """Why no call has come through it, where that is known."""
        step = self.optimizer.__dict__.get("step")
        return "" if step is self else f"another function has taken the place of {type(self.optimizer).__name__}.step, and does not call it"

    def install(self) -> None:
        self.active = True
        parameters = parameters_of(self.optimizer) if isinstance(self.optimizer, Optimizer) else []
        wrappers = [type(parameter).__name__ for parameter in parameters if is_left(parameter)]
        self.wrapper = wrappers[0] if wrappers else ""
        self.optimizer.__dict__["step"] = self

    def remove(self) -> None:
        """What somebody else has put in our place meanwhile stays, and calls what we stand for."""
        self.active = False
        if self.optimizer.__dict__.get("step") is self:
            del self.optimizer.__dict__["step"]
            if self.patched is not None:
                self.optimizer.__dict__["step"] = self.patched

    @contextmanager
    def laid_aside(self) -> Iterator[None]:
        active, self.active = self.active, False
        try:
            yield
        finally:
            self.active = active

    def __call__(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        if not self.active or self.why_left():
            return self.original(closure, **options) if closure is not None else self.original(**options)
        if not self.closure_first:
            self.closure = closure
            return self.compiled(**options) if closure is None else self.compiled(self.closure_of_call, **options)
        result = self.run(closure) if closure is not None else None
        clip, bound = self.clipping or (None, 0.0)
        self.clipping = None
        self.compiled(self.original, self.optimizer, clip, bound, options)
        return result

    def run(self, closure: Callable[[], Any]) -> Any:
        self.in_closure, self.clipping = True, None
        try:
            with torch.enable_grad():
                return closure()
        except BaseException:
            self.clipping = None
            raise
        finally:
            self.in_closure = False
