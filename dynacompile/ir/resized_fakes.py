"""Fakes of what ATen's interpolations and paddings give, where sizes are symbols: rules of torch's take numbers, or ask more of them than the result needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynacompile.ops.resizing import OPERATORS
from dynacompile.private import of_torch

aten = torch.ops.aten


def result(x: torch.Tensor, sizes: Sequence[Any], *more: Any) -> torch.Tensor:
    for size in sizes:
        torch._check(size > 0, lambda: "Input and output sizes should be greater than 0")
    return laid_like(x, (*x.shape[:2], *sizes))


def gradient(grad: torch.Tensor, sizes: Sequence[Any], input_sizes: Sequence[Any], *more: Any) -> torch.Tensor:
    return laid_like(grad, input_sizes)


def laid_like(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """One without memory, of the memory format that is read from the strides of `x`, where it has one of several."""
    form = of_torch.suggest_memory_format(x) if x.dim() > 3 else torch.contiguous_format
    return torch.empty(tuple(sizes), dtype=x.dtype, device=x.device, memory_format=form)


def padded(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> torch.Tensor:
    """Of constant_pad_nd. Whether a width is negative is asked, since such a one cuts off; whether one is zero is not, as torch's own rule does since 2.15."""
    if len(pad) % 2 or len(pad) > 2 * x.dim():
        return of_torch.decomposition_table[aten.constant_pad_nd.default](x, pad, value)  # which raises
    widths = [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)]
    first, kept = x.dim() - len(widths), x
    for dim, (left, right) in enumerate(widths, first):
        if left < 0:
            kept = kept.narrow(dim, -left, kept.shape[dim] + left)
        if right < 0:
            kept = kept.narrow(dim, 0, kept.shape[dim] + right)
    if all(width < 0 for width in pad):
        return kept.clone()
    sizes = list(x.shape)
    for dim, (left, right) in enumerate(widths, first):
        sizes[dim] = widened(sizes[dim], left, right, dim)
    return laid_like(x, sizes)


def widened(size: Any, left: Any, right: Any, dim: int) -> Any:
    made = size + left + right
    text = "The input size {}, plus negative padding {} and {} resulted in a negative output size, which is invalid. Check dimension {} of your input."
    torch._check(made >= 0, lambda: text.format(size, left, right, dim))
    return made


RESIZED_FAKES: dict[Any, Callable[..., torch.Tensor]] = {
    getattr(aten, name + suffix).default: rule for name in OPERATORS.values() for suffix, rule in (("", result), ("_backward", gradient))
}
RESIZED_FAKES[aten.constant_pad_nd.default] = padded
