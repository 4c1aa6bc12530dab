"""Scans of whole tensors: those that torch has, and others point by point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dynacompile.ir.loops import Scan
from dynacompile.ops.scalars import PLACES

WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.cumsum(0, dtype=x.dtype),
    "prod": lambda x: x.cumprod(0, dtype=x.dtype),
    "max": lambda x: x.cummax(0).values,
    "min": lambda x: x.cummin(0).values,
    "argmax": lambda x: x.cummax(0).indices,
    "argmin": lambda x: x.cummin(0).indices,
    "logaddexp": lambda x: x.logcumsumexp(0),
}


def scan(attr: Scan, args: Sequence[torch.Tensor], dims: list[int]) -> torch.Tensor:
    """The scan of the first tensor along the flattened `dims`; a second one tells where it starts anew."""
    kept = [d for d in range(args[0].dim()) if d not in dims]
    order = [*dims, *kept]
    flat = [a.permute(order).reshape(-1, *(a.shape[d] for d in kept)) for a in args]
    if attr.reverse:
        flat = [f.flip(0) for f in flat]
    length = flat[0].shape[0]
    found = WHOLE[attr.kind](flat[0]) if len(flat) == 1 else in_stretches(attr.kind, *flat)
    if attr.reverse:
        found = (length - 1 - found if attr.kind in PLACES else found).flip(0)
    return found.reshape([args[0].shape[d] for d in order]).permute([order.index(d) for d in range(len(order))])


def in_stretches(kind: str, value: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The scan that starts anew at the points that `starts` tells, along the first dimension: of each other dimension's point by itself."""
    columns, marks = value.reshape(len(value), -1), starts.reshape(len(value), -1)
    found = torch.empty_like(columns, dtype=torch.int64 if kind in PLACES else value.dtype)
    for c in range(columns.shape[1]):
        cuts = sorted({0, len(value), *marks[:, c].nonzero().flatten().tolist()})
        for begin, end in zip(cuts, cuts[1:]):
            found[begin:end, c] = WHOLE[kind](columns[begin:end, c]) + (begin if kind in PLACES else 0)
    return found.reshape(value.shape).to(found.dtype)
