"""Operations on each logit by itself, between a layer and its loss: scales, caps, shifts and casts. They run on chunks of the logits, forward and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dynacompile.private import of_torch

HALVES = (torch.float16, torch.bfloat16)


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.float() if t.dtype in HALVES else t


@dataclass(frozen=True)
class Point:
    """name: a row of ROWS. others: its operands beside the logit: numbers, None for a bound that a clamp has not, tensors without dimensions. dtype: of its
    result."""

    name: str
    others: tuple[Any, ...]
    dtype: torch.dtype

    def tensors(self) -> list[torch.Tensor]:
        return [o for o in self.others if isinstance(o, torch.Tensor)]


class Row(NamedTuple):
    """made: the result for the logits x and the other operands. back: the gradient of x, of that of the result, x, the result and the others; of_other: that of
    the other operand, for each logit; without it the others have no gradients. keeps_other: eager's autograd keeps that one. compares: eager's derivative
    compares logits with the others, which it rounds to the logits' dtype."""

    made: Callable[..., torch.Tensor]
    back: Callable[..., torch.Tensor]
    of_other: Callable[..., torch.Tensor] | None = None
    keeps_other: bool = False
    compares: bool = False


@functools.cache
def bounds_have_gradients() -> bool:
    """Whether eager's derivative of a clamp is 1 where a logit is a bound. Since torch 2.15 it is 0 where that is a number, and a half where it is a tensor."""
    with of_torch.DisableTorchFunction(), of_torch.disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        bound = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
        return torch.autograd.grad(bound.clamp(min=0), bound)[0].item() == 1.0


def within(g: torch.Tensor, x: torch.Tensor, y: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    """The bounds are numbers where `bounds_have_gradients` is false."""
    over, under = (torch.ge, torch.le) if bounds_have_gradients() else (torch.gt, torch.lt)
    kept = g if low is None else torch.where(over(x, low), g, 0)
    return kept if high is None else torch.where(under(x, high), kept, 0)


ROWS = {
    "mul": Row(lambda x, s: x * s, lambda g, x, y, s: g * s, lambda g, x, y, s: g * x, True),
    "div": Row(lambda x, s: x / s, lambda g, x, y, s: g / s, lambda g, x, y, s: -g * ((x / s) / s), True),
    "add": Row(lambda x, s: x + s, lambda g, x, y, s: g, lambda g, x, y, s: g),
    "sub": Row(lambda x, s: x - s, lambda g, x, y, s: g, lambda g, x, y, s: -g),
    "rsub": Row(lambda x, s: s - x, lambda g, x, y, s: -g, lambda g, x, y, s: g),
    "neg": Row(lambda x: -x, lambda g, x, y: -g),
    "tanh": Row(torch.tanh, lambda g, x, y: g * (1 - y * y)),
    "sigmoid": Row(torch.sigmoid, lambda g, x, y: g * ((1 - y) * y)),
    "clamp": Row(lambda x, low, high: x.clamp(low, high), within, compares=True),
    "cast": Row(lambda x: x, lambda g, x, y: g),
}


def number(other: Any, rounded_as: torch.Tensor | None) -> Any:
    """An operand beside a logit in the backward: what it was, or as it is after rounding to a dtype of half precision."""
    if other is not None and rounded_as is not None and rounded_as.dtype in HALVES:
        plain = not isinstance(other, torch.Tensor)
        other = torch.full((), other, dtype=rounded_as.dtype, device=rounded_as.device) if plain else other.to(rounded_as.dtype)
    return wide(other) if isinstance(other, torch.Tensor) else other


class Passed:
    """What a chunk of the logits becomes. Each result is rounded to eager's dtype; gradients are numbers of float32 or float64 throughout."""

    def __init__(self, logits: torch.Tensor, points: Sequence[Point]):
        self.points, self.results = points, [logits]
        for point in points:
            self.results.append(ROWS[point.name].made(self.results[-1], *point.others).to(point.dtype))

    def back(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The gradient of the logits, for that of the last results, and those of tensors among the operands: of each row, whose sum is theirs."""
        of_others: list[torch.Tensor] = []
        for point, x, y in reversed([*zip(self.points, self.results, self.results[1:])]):
            row = ROWS[point.name]
            operands = wide(x), wide(y), *(number(o, x if row.compares else None) for o in point.others)
            if row.of_other is not None and any(t.requires_grad for t in point.tensors()):
                of_others.insert(0, row.of_other(gradient, *operands).sum(1))
            gradient = row.back(gradient, *operands)
        return [gradient, *of_others]
