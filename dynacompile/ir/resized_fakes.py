"""Fakes of what ATen's interpolations give, and their gradients, where sizes are symbols: their own rules for fakes take numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynacompile.ops.resizing import OPERATORS
from dynacompile.private import of_torch


def result(x: torch.Tensor, sizes: Sequence[Any], *more: Any) -> torch.Tensor:
    return laid_like(x, (*x.shape[:2], *sizes))


def gradient(grad: torch.Tensor, sizes: Sequence[Any], input_sizes: Sequence[Any], *more: Any) -> torch.Tensor:
    return laid_like(grad, input_sizes)


def laid_like(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """One without memory, of the memory format that is read from the strides of `x`, where it has one of several."""
    form = of_torch.suggest_memory_format(x) if x.dim() > 3 else torch.contiguous_format
    return torch.empty(tuple(sizes), dtype=x.dtype, device=x.device, memory_format=form)


RESIZED_FAKES: dict[Any, Callable[..., torch.Tensor]] = {
    getattr(torch.ops.aten, name + suffix).default: rule for name in OPERATORS.values() for suffix, rule in (("", result), ("_backward", gradient))
}
