"""Scans whose backward in eager is no graph of loops.

That of cumprod asks whether any element is 0, and takes a short way where none is: here it is scans that give the same either way. That of cummax and cummin
adds each gradient at the place that its result came from: as places never decrease, these sums are a scan that starts anew where the place changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dynacompile.ops.rules import aten

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("running_extremum_backward(Tensor grad, Tensor indices, int dim) -> Tensor")


def added_at_places(grad: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    return aten.scatter_add.default(torch.zeros_like(grad), dim, indices, grad)


for key in ("CPU", "CUDA"):
    LIBRARY.impl("running_extremum_backward", added_at_places, key)
LIBRARY.impl("running_extremum_backward", lambda grad, indices, dim: torch.empty_like(grad), "Meta")
EXTREMUM_BACKWARD = torch.ops.dynacompile.running_extremum_backward.default


def from_the_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The sums of each element and all after it."""
    return x.flip(dim).cumsum(dim).flip(dim)


def product_gradient(grad: torch.Tensor, x: torch.Tensor, dim: int, result: torch.Tensor) -> torch.Tensor:
    """That of cumprod. Before the first 0 of a row, it sums up what follows; at it, it is the product of what comes before times what follows up to the
    second 0, without the first; after it, 0."""
    zero = x == 0
    zeros = zero.cumsum(dim, dtype=torch.int32)
    before, here = zeros == 0, zeros == 1
    ahead = from_the_end(torch.where(before, result * grad, 0.0), dim) / x
    follow = torch.where(here & ~zero, x, 1.0).cumprod(dim)
    first = torch.where(before, x, 1.0).prod(dim, keepdim=True) * torch.where(here, grad * follow, 0.0).sum(dim, keepdim=True)
    return torch.where(before, ahead, torch.where(here & zero, first, 0.0))


class CumulativeProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        result = torch.cumprod(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, result = ctx.saved_tensors
        return product_gradient(grad, x, ctx.dim, result), None


class RunningExtremum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, running: Callable) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = running(x, dim)
        ctx.save_for_backward(indices, x)  # eager keeps it for its sizes alone, and refuses a backward pass once it is written
        ctx.mark_non_differentiable(indices)
        ctx.dim = dim
        return values, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, none: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        indices, _ = ctx.saved_tensors
        return EXTREMUM_BACKWARD(grad, indices, ctx.dim), None, None


def is_differentiated(input: Any, dim: Any) -> bool:
    one = isinstance(dim, int) and isinstance(input, torch.Tensor) and input.dim() > 0
    return one and input.requires_grad and torch.is_grad_enabled() and input.is_floating_point()


def cumprod(input: torch.Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """`torch.cumprod`."""
    if args or kwargs or not is_differentiated(input, dim):
        return torch.cumprod(input, dim, *args, dtype=dtype, **kwargs)
    wide = input if dtype is None else input.to(dtype)
    return CumulativeProduct.apply(wide, dim) if wide.is_floating_point() else torch.cumprod(input, dim, dtype=dtype)


def cummax(input: torch.Tensor, dim: int, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.cummax`."""
    if kwargs or not is_differentiated(input, dim):
        return torch.cummax(input, dim, **kwargs)
    return torch.return_types.cummax(RunningExtremum.apply(input, dim, torch.cummax))  # type: ignore[attr-defined]


def cummin(input: torch.Tensor, dim: int, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.cummin`."""
    if kwargs or not is_differentiated(input, dim):
        return torch.cummin(input, dim, **kwargs)
    return torch.return_types.cummin(RunningExtremum.apply(input, dim, torch.cummin))  # type: ignore[attr-defined]
