"""Step times, eager and compiled, on a real batch of the running fit, without disturbing it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch

from dynacompile.callbacks.steps import CompiledRun
from dynacompile.errors import ConfigError


@dataclass(frozen=True)
class StepTimes:
    """Median milliseconds of forward and backward of one training step; compiled is None where nothing was compiled."""

    eager: float
    compiled: float | None
    steps: int

    @property
    def speedup(self) -> float | None:
        return self.eager / self.compiled if self.compiled else None


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Puts the state of Python's, NumPy's and torch's generators (all devices) back at the end."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)


@contextmanager
def undisturbed(module: L.LightningModule) -> Iterator[None]:
    """Whatever steps run inside: random numbers, gradients, buffers and logged values are afterwards as they were before.

    Gradients are None at the start. Parameters and optimizers change in no forward or backward. Other Python attributes that a step sets are not put back.
    """
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for parameter, _ in grads:
        parameter.grad = None  # so that nothing accumulates into the tensors that are put back
    shadowed = {name: module.__dict__.get(name) for name in ("log", "log_dict")}
    for name in shadowed:
        module.__dict__[name] = log_nothing
    try:
        with same_random_numbers():
            yield
    finally:
        for name, before in shadowed.items():
            del module.__dict__[name]
            if before is not None:
                module.__dict__[name] = before
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def log_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for LightningModule.log and log_dict."""


def can_measure(module: L.LightningModule) -> str:
    """Empty, or why steps of this module can't be repeated."""
    if not module.automatic_optimization:
        return "manual optimization: a repeated step would update the parameters"
    return ""


def measure(trainer: L.Trainer, module: L.LightningModule, run: CompiledRun, batch: Any, index: int, steps: int) -> StepTimes:
    """Times `steps` eager and compiled steps (forward and backward) in turn, after one untimed step of each.

    run: what is compiled. batch: on the module's device, as training_step takes it.
    """

    def step() -> float:
        for parameter in module.parameters():
            parameter.grad = None
        synchronize(module)
        start = time.perf_counter()
        loss_of(trainer.strategy.training_step(batch, index)).backward()
        synchronize(module)
        return (time.perf_counter() - start) * 1e3

    def eager_step() -> float:
        with run.laid_aside():
            return step()

    kinds: list[Callable[[], float]] = [eager_step, step] if run.names else [eager_step]
    with undisturbed(module):
        rounds = [[kind() for kind in kinds] for _ in range(steps + 1)][1:]
    medians = [statistics.median(times) for times in zip(*rounds)]
    return StepTimes(medians[0], None if set(run.names) <= set(run.idle()) else medians[1], steps)


def loss_of(output: Any) -> torch.Tensor:
    """The loss in what training_step returned: a tensor, or a mapping with "loss". None, a skipped batch, is a ConfigError."""
    if output is None:
        raise ConfigError("training_step skipped the batch that was to be measured: choose another by compile.measure_after, or set compile.measure_steps=0")
    return output if isinstance(output, torch.Tensor) else output["loss"]


def synchronize(module: L.LightningModule) -> None:
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
