"""cumprod, whose backward in eager asks whether any element is 0, and takes a short way where none is. A graph can't ask, so its backward is one call."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("cumprod_backward(Tensor grad, Tensor x, int dim, Tensor result) -> Tensor")


def gradient(grad: torch.Tensor, x: torch.Tensor, dim: int, result: torch.Tensor) -> torch.Tensor:
    """ATen's, in memory of its own: of one element along `dim` ATen gives `grad` itself, whose memory a program uses again."""
    found = torch.ops.aten.cumprod_backward.default(grad, x, dim, result)
    return torch.empty_like(x).copy_(found) if x.numel() <= 1 or x.shape[dim] == 1 else found


LIBRARY.impl("cumprod_backward", gradient, "CPU")
LIBRARY.impl("cumprod_backward", lambda grad, x, dim, result: torch.empty_like(x), "Meta")
BACKWARD = torch.ops.dynacompile.cumprod_backward.default


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
        return BACKWARD(grad, x, ctx.dim, result), None


def cumprod(input: torch.Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """`torch.cumprod`."""
    one = not args and not kwargs and isinstance(dim, int) and isinstance(input, torch.Tensor) and input.dim() > 0
    if not one or not input.requires_grad or not torch.is_grad_enabled() or input.device.type != "cpu" or not input.is_floating_point():
        return torch.cumprod(input, dim, *args, dtype=dtype, **kwargs)
    wide = input if dtype is None else input.to(dtype)
    return CumulativeProduct.apply(wide, dim) if wide.is_floating_point() else torch.cumprod(input, dim, dtype=dtype)
