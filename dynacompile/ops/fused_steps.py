"""Fused optimizer steps as the arithmetic that their kernels do, in tensors: scheduled like any other, they become a kernel over the list of parameters.

So are the operators of GradScaler, which such steps come with. Each takes what torch's operator takes, and writes what it writes. Values of 16-bit tensors
are computed in float32 and rounded once, as the kernels do. Where `found_inf` is 1, a step changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dynacompile.private import of_torch

Rate = float | torch.Tensor
Tensors = Sequence[torch.Tensor]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def writer(found_inf: torch.Tensor | None) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What stores a new value, where the step is not to be left out."""
    left_out = None if found_inf is None else found_inf.reshape(()) == 1

    def write(memory: torch.Tensor, value: torch.Tensor) -> None:
        memory.copy_(value if left_out is None else torch.where(left_out, wide(memory), value))

    return write


def unscaled(grad: torch.Tensor, grad_scale: torch.Tensor | None, write: Callable[[torch.Tensor, torch.Tensor], None]) -> torch.Tensor:
    """The gradient without the loss's scale; it is left in the gradient's memory."""
    if grad_scale is None:
        return wide(grad)
    value = wide(grad) / grad_scale.reshape(())
    write(grad, value)
    return value


def descended(grad: torch.Tensor, value: torch.Tensor, weight_decay: float, maximize: bool) -> torch.Tensor:
    """The gradient that a step goes down by, of the loss and of half the weight decay times the value's square."""
    grad = -grad if maximize else grad
    return grad + value * weight_decay if weight_decay != 0 else grad


def adam(decoupled: bool) -> Callable[..., None]:
    """Adam; decoupled: AdamW."""

    def step(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Rate,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        write = writer(found_inf)
        for i, param in enumerate(params):
            value, grad = wide(param), unscaled(grads[i], grad_scale, write)
            grad = descended(grad, value, 0 if decoupled else weight_decay, maximize)
            if decoupled and weight_decay != 0:
                value = value * (1 - lr * weight_decay)
            count = state_steps[i].double()
            average = torch.lerp(wide(exp_avgs[i]), grad, 1 - beta1)
            square = wide(exp_avg_sqs[i]) * beta2 + grad * grad * (1 - beta2)
            largest = square
            if amsgrad:
                largest = torch.maximum(wide(max_exp_avg_sqs[i]), square)
                write(max_exp_avg_sqs[i], largest)
            denominator = largest.sqrt() / (1 - beta2**count).sqrt() + eps
            write(param, value - lr / (1 - beta1**count) * average / denominator)
            write(exp_avgs[i], average)
            write(exp_avg_sqs[i], square)

    return step


def sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Rate,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    write = writer(found_inf)
    for i, param in enumerate(params):
        value = wide(param)
        grad = descended(unscaled(grads[i], grad_scale, write), value, weight_decay, maximize)
        if momentum != 0:
            kept = grad if is_first_step else wide(momentum_buffers[i]) * momentum + grad * (1 - dampening)
            write(momentum_buffers[i], kept)
            grad = grad + kept * momentum if nesterov else kept
        write(param, value - lr * grad)


def adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Rate,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    write = writer(found_inf)
    for i, param in enumerate(params):
        value = wide(param)
        grad = descended(unscaled(grads[i], grad_scale, write), value, weight_decay, maximize)
        rate = lr / (1 + (state_steps[i].double() - 1) * lr_decay)
        total = wide(state_sums[i]) + grad * grad
        write(param, value - rate * grad / (total.sqrt() + eps))
        write(state_sums[i], total)


def unscale(grads: Tensors, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """What GradScaler does to gradients: they lose the loss's scale, and `found_inf` becomes 1 where one of them is not finite."""
    infinite = torch.stack([torch.isfinite(grad).logical_not().any() for grad in grads]).any()
    for grad in grads:
        grad.copy_(wide(grad) * inv_scale.reshape(()))
    found_inf.copy_(torch.where(infinite, torch.ones_like(found_inf), found_inf))


def update_scale(
    scale: torch.Tensor, growth_tracker: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, growth_interval: int
) -> torch.Tensor:
    """GradScaler's scale after a step: smaller after one that was left out, larger after so many in a row that were not, as long as it stays finite."""
    left_out = (found_inf != 0).reshape(scale.shape)
    steps = growth_tracker + 1
    grows = (steps == growth_interval).reshape(scale.shape)
    grown = (scale.double() * growth).to(scale.dtype)
    grown = torch.where(grows & torch.isfinite(grown), grown, scale)
    shrunk = (scale.double() * backoff).to(scale.dtype)
    over = (left_out | grows).reshape(growth_tracker.shape)
    growth_tracker.copy_(torch.where(over, torch.zeros_like(growth_tracker), steps))
    return scale.copy_(torch.where(left_out, shrunk, grown))


FUSED_STEPS: dict[object, Callable[..., object]] = {
    of_torch.amp_foreach_non_finite_check_and_unscale_: unscale,
    of_torch.amp_update_scale_: update_scale,
    of_torch.fused_adam_: adam(decoupled=False),
    of_torch.fused_adamw_: adam(decoupled=True),
    of_torch.fused_sgd_: sgd,
    of_torch.fused_adagrad_: adagrad,
}
