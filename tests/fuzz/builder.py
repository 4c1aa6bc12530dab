"""A random graph program as it grows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DIMS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGEST = 6000  # elements of a value
BOUND = 50.0  # the largest absolute element of a value


@dataclass
class Value:
    name: str
    tensor: torch.Tensor  # what eager gives in float64

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass
class Program:
    """source: of `def program(...)`. inputs: float64, integer and bool tensors; outputs: how many it returns."""

    seed: int
    source: str
    inputs: list[torch.Tensor]
    outputs: int

    def function(self) -> Callable[..., Any]:
        names = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), names)
        return names["program"]  # type: ignore[return-value]


@dataclass
class Builder:
    """A program as it grows."""

    seed: int
    pick: random.Random = field(init=False)
    values: list[Value] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.pick = random.Random(self.seed)
        self.scope = {"torch": torch, "F": torch.nn.functional}

    def add_input(self, tensor: torch.Tensor) -> None:
        name = f"x{len(self.inputs)}"
        self.inputs.append(tensor)
        self.values.append(Value(name, tensor))
        self.scope[name] = tensor

    def add(self, expression: str) -> bool:
        """Appends `name = expression` if eager gives something useful for it."""
        name = f"v{len(self.lines)}"
        try:
            result = eval(expression, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError):
            return False
        if not isinstance(result, torch.Tensor) or result.numel() > LARGEST or result.dim() > 5:
            return False
        if result.is_floating_point() and result.numel() and not (result.abs().max() < BOUND):
            return False
        self.scope[name] = result
        self.lines.append(f"{name} = {expression}")
        self.values.append(Value(name, result))
        return True

    def any(self, accept: Callable[[torch.Tensor], bool] = lambda t: True) -> Value | None:
        """A value, a late one more likely."""
        found = [v for v in self.values if accept(v.tensor)]
        return found[max(self.pick.randrange(len(found)), self.pick.randrange(len(found)))] if found else None

    def real(self, least_dims: int = 0) -> Value | None:
        return self.any(lambda t: t.is_floating_point() and t.dim() >= least_dims)

    def like(self, value: Value) -> Value:
        """Another real value that broadcasts with this one."""
        found = [v for v in self.values if v.tensor.is_floating_point() and broadcasts(v.shape, value.shape)]
        return self.pick.choice(found) if found else value

    def dims(self, value: Value) -> list[int]:
        count = self.pick.randint(1, max(len(value.shape), 1))
        return sorted(self.pick.sample(range(len(value.shape)), min(count, len(value.shape))))


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    return len(shape) <= len(target) and all(m in (1, n) for m, n in zip(reversed(shape), reversed(target)))
