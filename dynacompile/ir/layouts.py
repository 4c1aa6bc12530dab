"""Strides of results, where torch's rules for fakes give others than eager.

Those rules compose other operations, which take the operands in another order, or preserve strides that a kernel does not. A view of the result, or the
result itself, then has strides that eager's has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dynacompile.private import of_torch

aten = torch.ops.aten
Run = Callable[..., torch.Tensor]
Layout = Callable[[Run, torch.Tensor, tuple[Any, ...]], torch.Tensor | None]


def as_iterated(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """One pass over two operands: the first decides, and the second where the first leaves the order open."""
    first, second = args[:2]
    return run(aten.add.Tensor, first, second) if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) else None


def as_first(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Memory like the first operand's, unless the result is reduced."""
    return run(aten.empty_like.default, args[0]) if made.dim() == args[0].dim() else None


def as_format(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """On the CPU, the memory format of the first operand: a permuted one gives a contiguous result."""
    x = args[0]
    return run(aten.empty_like.default, x, memory_format=of_torch.suggest_memory_format(x)) if x.device.type == "cpu" else None


def as_contiguous(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    return run(aten.empty_like.default, made, memory_format=torch.contiguous_format)


LAYOUTS: Mapping[Any, Layout] = {
    aten.floor_divide.default: as_iterated,
    aten.div.Tensor_mode: as_iterated,
    aten.copysign.Tensor: as_iterated,
    aten.xlogy.Tensor: as_iterated,
    aten.special_xlog1py.default: as_iterated,
    aten.heaviside.default: as_iterated,
    aten.logaddexp.default: as_iterated,
    aten.logaddexp2.default: as_iterated,
    aten.logical_and.default: as_iterated,
    aten.logical_or.default: as_iterated,
    aten.logical_xor.default: as_iterated,
    aten.native_dropout_backward.default: as_iterated,
    aten.binary_cross_entropy.default: as_first,
    aten.binary_cross_entropy_backward.default: as_first,
    aten.native_batch_norm.default: as_format,
    aten._native_batch_norm_legit.default: as_format,
    aten._native_batch_norm_legit.no_stats: as_format,
    aten._native_batch_norm_legit_functional.default: as_format,
    aten._native_batch_norm_legit_no_training.default: as_format,
    aten._batch_norm_with_update.default: as_format,
    aten._batch_norm_with_update_functional.default: as_format,
    aten.channel_shuffle.default: as_format,
    aten.native_channel_shuffle.default: as_format,
    aten.normal.Tensor_Tensor: as_contiguous,
}
"""By operation, what has the strides of its first result; None leaves them as they are."""


def laid_out(layout: Layout, run: Run, made: Any, args: tuple[Any, ...]) -> Any:
    """What an operation gives, the first result with eager's strides. run: runs an operation on fakes."""
    first = made[0] if isinstance(made, (tuple, list)) else made
    like = layout(run, first, args)
    if like is None or like.dim() != first.dim():
        return made
    laid = run(aten.new_empty_strided.default, first, first.shape, like.stride())
    return (laid, *made[1:]) if isinstance(made, (tuple, list)) else laid
