"""Random ops: those whose functional form draws in another order than eager's in-place one, where memory is not row-major, and on CPUs coins as comparisons.

Where eager's coins on a CPU are its uniform numbers compared with the probability, they are drawn as such: a loop that draws and compares takes three times
as long as one that draws, and the comparison joins the kernels around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from dynacompile.ops.checks import require_all
from dynacompile.ops.rules import Table, add, aten, cast, mul, row

RANDOM: Table = {}
COMPARED: Table = {}
"""The rules where `coins_are_comparisons`, in place of RANDOM's."""


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


@functools.cache
def coins_are_comparisons() -> bool:
    """Whether eager's coins on this machine are uniform numbers compared with the probability, of float64 where it is a number; builds of torch differ."""

    def drawn(coins: Callable[[torch.Generator], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return coins(generator), generator.get_state()

    many = torch.linspace(0.0, 1.0, 1000, dtype=torch.float32, device="cpu")
    filled = torch.empty(1000, dtype=torch.float32, device="cpu")
    pairs: list[tuple[Callable[[torch.Generator], torch.Tensor], Callable[[torch.Generator], torch.Tensor]]] = [
        (lambda g: filled.bernoulli_(0.3, generator=g) != 0, lambda g: torch.rand(1000, dtype=torch.float64, generator=g) < 0.3),
        (lambda g: torch.bernoulli(many, generator=g) != 0, lambda g: torch.rand(1000, dtype=torch.float32, generator=g) < many),
    ]
    return all(map(torch.equal, *zip(*(results for one, other in pairs for results in zip(drawn(one), drawn(other), strict=True)), strict=True)))


@row(RANDOM, aten.bernoulli.p)
def bernoulli_rule(x, p=0.5, *, generator=None):
    return in_memory_order(lambda v: aten.bernoulli.p(v, p, generator=generator), x)


@row(COMPARED, aten.bernoulli.p)
def compared_with_a_number(x, p=0.5, *, generator=None):
    if x.device.type != "cpu" or generator is not None or not x.is_contiguous() or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        return bernoulli_rule(x, p, generator=generator)
    return cast(aten.lt.Scalar(aten.rand.default(x.shape, dtype=torch.float64, device=x.device), p), x.dtype)


@row(COMPARED, aten.bernoulli.default)
def compared_with_probabilities(x, *, generator=None):
    if x.device.type != "cpu" or generator is not None or x.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return NotImplemented
    p = cast(aten.clone.default(x, memory_format=torch.contiguous_format), torch.float64 if x.dtype == torch.float64 else torch.float32)
    require_all(aten.logical_and.default(aten.ge.Scalar(p, 0), aten.le.Scalar(p, 1)), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return cast(aten.lt.Tensor(aten.rand.default(x.shape, dtype=p.dtype, device=x.device), p), x.dtype)


@row(RANDOM, aten.normal_functional.default)
def normal_rule(x, mean=0.0, std=1.0, *, generator=None):
    if x.is_contiguous() or generator is not None:
        return NotImplemented
    return add(mul(aten.randn_like.default(x), std), mean)


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """`torch.dropout`, of the same shape. Where all is dropped, nothing is drawn, as in eager; torch's rule for symbolic sizes draws."""
    if train and type(p) in (int, float) and p == 1:
        return torch.mul(input, torch.zeros((), dtype=input.dtype, device=input.device))
    return torch.dropout(input, p, train)


def functional_dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.dropout`, likewise."""
    if training and type(p) in (int, float) and p == 1:
        nothing = torch.zeros((), dtype=input.dtype, device=input.device)
        return input.mul_(nothing) if inplace else torch.mul(input, nothing)
    return torch.nn.functional.dropout(input, p, training, inplace)
