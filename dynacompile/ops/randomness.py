"""Random ops whose functional form draws in another order than eager's in-place one, where memory is not row-major."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dynacompile.ops.rules import Table, add, aten, mul, row

RANDOM: Table = {}


def bernoulli(input: torch.Tensor, p: float | None = None, *, generator: torch.Generator | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.bernoulli`: draws in row-major order whatever the input's strides, so that `aten.bernoulli.p` always means the in-place op."""
    if out is not None:
        return out.bernoulli_(input, generator=generator)
    if p is None:
        return torch.ops.aten.bernoulli.default(input, generator=generator)
    return torch.empty_like(input, memory_format=torch.contiguous_format).bernoulli_(p, generator=generator)


def memory_order(x: torch.Tensor) -> list[int] | None:
    """The dims of a dense tensor, outermost in memory first; None where it is row-major, or not dense."""
    if x.is_contiguous():
        return None
    order = sorted(range(x.dim()), key=lambda d: (-x.stride()[d], d))
    return order if aten.permute.default(x, order).is_contiguous() else None


def in_memory_order(draw: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> object:
    """`draw` of x seen row-major, with x's strides again."""
    order = memory_order(x)
    if order is None:
        return NotImplemented
    return aten.permute.default(draw(aten.permute.default(x, order)), [order.index(d) for d in range(x.dim())])


@row(RANDOM, aten.bernoulli.p)
def bernoulli_rule(x, p=0.5, *, generator=None):
    return in_memory_order(lambda v: aten.bernoulli.p(v, p, generator=generator), x)


@row(RANDOM, aten.normal_functional.default)
def normal_rule(x, mean=0.0, std=1.0, *, generator=None):
    if x.is_contiguous() or generator is not None:
        return NotImplemented
    return add(mul(aten.randn_like.default(x), std), mean)
