"""What samples are made with: seeded tensors of many layouts and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Sample = tuple[tuple, dict]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8)


class Maker:
    """Tensors from a seeded generator."""

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)

    def floats(self, *size: int, dtype: torch.dtype = torch.float32, low: float = -3.0, high: float = 3.0) -> torch.Tensor:
        return (torch.rand(size, generator=self.generator, dtype=torch.float64) * (high - low) + low).to(dtype)

    def ints(self, *size: int, dtype: torch.dtype = torch.int64, low: int = -5, high: int = 6) -> torch.Tensor:
        low = max(low, 0) if dtype == torch.uint8 else low
        return torch.randint(low, high, size, generator=self.generator).to(dtype)

    def bools(self, *size: int) -> torch.Tensor:
        return torch.rand(size, generator=self.generator) < 0.5

    def of(self, dtype: torch.dtype, *size: int) -> torch.Tensor:
        return self.bools(*size) if dtype == torch.bool else self.floats(*size, dtype=dtype) if dtype.is_floating_point else self.ints(*size, dtype=dtype)


def args(*values: object, **kwargs: object) -> Sample:
    return values, kwargs


def floats_of(m: Maker, low: float = -3.0, high: float = 3.0) -> Iterator[torch.Tensor]:
    """Layouts: row-major, transposed, sliced, expanded, no dimension, empty; then dtypes."""
    x = m.floats(4, 6, low=low, high=high)
    yield from (x, x.t(), x[:, 1:5:2], x[1:2].expand(3, 6), x[0, 0], x[:0])
    yield from (m.floats(3, 5, dtype=d, low=low, high=high) for d in FLOATS[1:])


def sample(table: dict[str, Callable[[Maker], Iterator[Sample]]]) -> Callable:
    """Adds a function to a table under its name."""

    def add(function: Callable[[Maker], Iterator[Sample]]) -> Callable[[Maker], Iterator[Sample]]:
        table[function.__name__.rstrip("_")] = function
        return function

    return add
