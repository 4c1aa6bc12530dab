"""Checks of values that eager's kernels make, as operations of a graph, for ops whose decomposition has lost them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
INDEXED = frozenset(
    {aten.index.Tensor, aten.index_put.default, aten.gather.default, aten.index_select.default, aten.embedding.default, aten.take.default, aten.put.default}
    | {aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two, aten.index_add.default, aten.index_copy.default}
    | {aten.index_fill.int_Scalar, aten.index_fill.int_Tensor}
)
"""Ops that raise where an index lies outside."""
CHECKED = INDEXED | frozenset(
    {aten.index_reduce.default, aten._embedding_bag.default, aten._embedding_bag_forward_only.default, aten.max_unpool2d.default, aten.max_unpool3d.default}
    | {aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default, aten.masked_scatter.default, aten.segment_reduce.default}
    | {aten.searchsorted.Tensor, aten.searchsorted.Scalar, aten.cholesky_inverse.default}
    | {aten._linalg_eigh.default, aten._linalg_svd.default, aten.linalg_eig.default, aten._linalg_eigvals.default, aten.linalg_pinv.atol_rtol_tensor}
)
"""Ops that raise by the values of operands, where they have no assertion of their own: they stay also where nothing uses their result."""
DIVIDING = frozenset(
    {aten.floor_divide.default, aten.floor_divide.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode}
    | {aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, aten.fmod.Tensor, aten.fmod.Scalar}
)
"""The same of ints on CPUs, which raise where they divide by zero. Calls of ATen are made of those alone that may."""
FILLING = frozenset({aten.masked_fill.Tensor})
"""The same of a value that the type of the result does not hold, on CPUs. Calls of ATen are made of those alone whose type may not: see `is_held`."""


def is_held(dtype: torch.dtype, of: torch.dtype, known: float | None = None) -> bool:
    """Whether the type `dtype` holds each number of the type `of`, or the one number that is known. Unsigned types take negative numbers for what is left of
    them, floats any infinity."""
    if dtype is of or dtype is torch.bool:
        return True
    if known is not None:
        lowest = highest = known
        if dtype.is_floating_point and not math.isfinite(lowest):
            return True
    else:
        lowest, highest = (False, True) if of is torch.bool else limits(of)
    least, most = limits(dtype)
    return (least or -most) <= lowest and highest <= most


def limits(dtype: torch.dtype) -> tuple[float, float]:
    info: Any = torch.iinfo(dtype) if not dtype.is_floating_point and not dtype.is_complex else torch.finfo(dtype)
    return info.min, info.max


def checked_quantile(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.quantile` or `torch.nanquantile`, which look at the values of q on CPUs alone, and so not while they are traced."""

    def quantile(tensor: torch.Tensor, q: float | torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(q, torch.Tensor) and q.device.type == "cpu":
            require_all((q >= 0) & (q <= 1), "quantile() q values must be in the range [0, 1]")
        return function(tensor, q, *args, **kwargs)

    return quantile


def require_all(holds: torch.Tensor, message: str) -> None:
    """Raises eager's RuntimeError where a tensor of truth values is not all true. On GPUs it is a device assertion, as in eager."""
    aten._assert_async.msg(aten.all.default(holds), message)
