"""Whether a compiled training step does what the eager one does: gradients, buffers and updates of one batch, from the same state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import lightning as L
import torch

from dynacompile.callbacks.inert import Inert
from dynacompile.callbacks.measure import FitStep, StepMeasurement
from dynacompile.callbacks.saveable import Unrepeatable
from dynacompile.callbacks.times import StepTimes

UNVERIFIED = "it does not verify"
GRADIENT_SHARE, HALF_GRADIENT_SHARE = 1e-3, 3e-2
"""Of a tensor's norm, by how much that of the difference may be; where steps compute in half precision, the second."""
SMALL_SHARE = 1e-2  # of the norm of all: tensors below it are rounding errors of others, as the gradient of a bias before a norm
UPDATE_SHARE = 0.2  # of the norm of all updates: optimizers such as Adam make whole steps of gradients that are rounding errors


@dataclass(frozen=True)
class Results:
    """Copies of what a step left in a module, by name."""

    gradients: dict[str, torch.Tensor]
    updates: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def parameters(module: L.LightningModule) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def results(module: L.LightningModule, before: dict[str, torch.Tensor]) -> Results:
    """before: the parameters' values before the step."""
    named = dict(module.named_parameters())
    return Results(
        {name: parameter.grad.detach().clone() for name, parameter in named.items() if parameter.grad is not None},
        {name: parameter.detach() - before[name] for name, parameter in named.items() if name in before},
        {name: buffer.detach().clone() for name, buffer in module.named_buffers()},
    )


def norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.to_dense() if tensor.is_sparse else tensor, dtype=torch.float64)) if tensor.numel() else 0.0


def difference(expected: Results, found: Results, is_half: bool) -> str:
    """What differs, in words; empty where nothing does beyond rounding."""
    for kind, wanted, given in (("the gradient", expected.gradients, found.gradients), ("the buffer", expected.buffers, found.buffers)):
        if wanted.keys() != given.keys():
            return f"{kind} of {sorted(wanted.keys() ^ given.keys())[0]} is there in one of eager and compiled"
        total = math.sqrt(sum(norm(tensor) ** 2 for tensor in wanted.values() if tensor.is_floating_point()))
        for name, tensor in wanted.items():
            if told := tensors_differ(tensor, given[name], total, HALF_GRADIENT_SHARE if is_half else GRADIENT_SHARE):
                return f"{kind} of {name} {told}"
    error = math.sqrt(sum(norm(update - found.updates[name]) ** 2 for name, update in expected.updates.items()))
    total = math.sqrt(sum(norm(update) ** 2 for update in expected.updates.values()))
    if not error <= UPDATE_SHARE * total:
        return f"the optimizer's update differs by {error / total if total else math.inf:.2g} of its norm"
    return ""


def tensors_differ(wanted: torch.Tensor, given: torch.Tensor, total: float, share: float) -> str:
    """total: the norm of all tensors of the kind."""
    if wanted.shape != given.shape or wanted.dtype != given.dtype:
        return f"is {given.dtype} {tuple(given.shape)} rather than {wanted.dtype} {tuple(wanted.shape)}"
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return "" if torch.equal(wanted, given) else "differs"
    if not wanted.is_sparse and not torch.equal(wanted.isfinite(), given.isfinite()):
        return "is not finite in other places"
    if not math.isfinite(own := norm(wanted)):
        return ""
    error = norm(wanted - given)
    return "" if error <= share * max(own, SMALL_SHARE * total) else f"differs by {error / own if own else math.inf:.2g} of its norm"


class VerifiedMeasurement(StepMeasurement):
    """Measures a step, and refuses one whose compiled results differ from the eager ones."""

    def measured(self, step: FitStep, saved: Inert) -> StepTimes:
        times = super().measured(step, saved)  # first: it watches the first eager step
        module = step.trainer.lightning_module
        before = parameters(module)
        with self.compiled.laid_aside():
            step.times()
            expected = results(module, before)
        saved.rewind()
        step.times()
        found = results(module, before)
        saved.rewind()
        is_half = "16" in str(step.trainer.precision) or any(parameter.dtype.itemsize < 4 for parameter in module.parameters())
        if told := difference(expected, found, is_half):
            raise Unrepeatable(f"{UNVERIFIED}: {told}")
        return times
