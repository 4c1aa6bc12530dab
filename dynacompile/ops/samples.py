"""Argument sets for the rows of the table, by name: what each row's generated tests call the op with."""

from __future__ import annotations

import math
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


def unary_float(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m, 0.1, 0.9))
    yield args(m.ints(3, 4, low=1))
    yield args(m.bools(5))


def unary_floats(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m, -25.0, 25.0))


def unary(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m))
    yield from (args(m.ints(3, 4, dtype=d)) for d in INTS)


def unary_any(m: Maker) -> Iterator[Sample]:
    yield from unary(m)
    yield args(m.bools(3, 4))


def unary_special(m: Maker) -> Iterator[Sample]:
    yield args(torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5]))
    yield args(torch.tensor([math.nan, math.inf, -math.inf, 1.5], dtype=torch.bfloat16))
    yield args(m.ints(3))


def unary_bits(m: Maker) -> Iterator[Sample]:
    yield from (args(m.of(d, 3, 4)) for d in (*INTS, torch.bool))


def unary_slope(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5)), args(m.floats(4, 5), 0.2), args(m.floats(4, 5, dtype=torch.bfloat16), 0.2))


def leaky_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5), 0.2, False)


def unary_gelu(m: Maker) -> Iterator[Sample]:
    for x in floats_of(m):
        yield args(x)
        yield args(x, approximate="tanh")


def gelu_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5))
    yield args(m.floats(4, 5), m.floats(4, 5), approximate="tanh")


def elu_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), 1.5, 1.0, 1.0, False, m.floats(4, 5))
    yield args(m.floats(4, 5), 1.5, 2.0, 0.5, True, m.floats(4, 5))


def softplus_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5, low=-30, high=30), 1.5, 20.0)


def bounded_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5), -1.0, 1.0)


def threshold(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5), 0.5, 7.0), args(m.ints(4, 5), 1, 7))


def threshold_backward(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5), m.floats(4, 5), 0), args(m.floats(4, 5), m.floats(4, 5), 0.5))


def clamp(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 5)
    yield from (args(x, -1, 1), args(x, None, 0.5), args(x, 0.5), args(m.ints(4, 5), -2, 2), args(m.ints(4, 5), -1.5, 2), args(torch.tensor([math.nan, 1.0]), 0, 0.5))


def clamp_tensor(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 5)
    yield from (args(x, m.floats(5, high=0), m.floats(4, 1, low=0)), args(x, None, m.floats(4, 5)))


def unary_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5), 2), args(m.floats(4, 5, dtype=torch.bfloat16), 1.5), args(m.ints(4, 5), 3), args(m.ints(4, 5, dtype=torch.int32), 1.5), args(m.floats(3, dtype=torch.float64), 0.1))


def pairs(m: Maker, low: float = -3.0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    a, b = m.floats(4, 6, low=low), m.floats(4, 6, low=low)
    yield from ((a, b), (a, b[0]), (a[:, :1], b), (a, b.t().contiguous().t()), (a[0, 0], b), (a.t(), b.t()), (a[:0], b[:0]))
    yield from ((a.to(torch.bfloat16), b.to(torch.bfloat16)), (a.to(torch.bfloat16), b), (a, b.to(torch.float64)), (a, m.floats(dtype=torch.float64, low=low)))
    yield (a, m.ints(4, 6, low=1))


def binary_floats(m: Maker) -> Iterator[Sample]:
    yield from (args(a, b) for a, b in ((m.floats(4, 6), m.floats(4, 6)), (m.floats(4, 6, dtype=torch.bfloat16), m.floats(4, 6, dtype=torch.bfloat16))))


def binary(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.ints(4, 6), m.ints(4, 6, dtype=torch.int32))
    yield args(m.bools(4, 6), m.bools(4, 6))


def binary_nonzero(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m, 0.5))
    yield args(m.ints(4, 6), m.ints(4, 6, low=1))
    yield args(m.floats(4, 6), m.floats(4, 6, low=-3, high=-0.5))


def binary_alpha_numbers(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.floats(4, 6), m.floats(4, 6), alpha=2.5)
    yield args(m.ints(4, 6), m.ints(4, 6), alpha=3)


def binary_alpha(m: Maker) -> Iterator[Sample]:
    yield from binary_alpha_numbers(m)
    yield args(m.bools(4), m.bools(4))
    yield args(m.bools(4), m.ints(4))


def div_mode(m: Maker) -> Iterator[Sample]:
    for mode in (None, "trunc", "floor"):
        yield args(m.floats(4, 6), m.floats(4, 6, low=0.5), rounding_mode=mode)
        yield args(m.ints(4, 6, low=-9, high=9), m.ints(4, 6, low=1), rounding_mode=mode)
        yield args(m.ints(4, 6, low=-9, high=9), m.ints(4, 6, low=-4, high=0), rounding_mode=mode)


def div_mode_number(m: Maker) -> Iterator[Sample]:
    for mode in ("trunc", "floor"):
        yield from (args(m.floats(4, 6), 0.7, rounding_mode=mode), args(m.ints(4, 6, low=-9, high=9), 4, rounding_mode=mode), args(m.ints(4, 6, low=-9, high=9), -4, rounding_mode=mode))


def pow_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6, low=0.2), e) for e in (0, 1, 2, 3, 2.0, -1, -2, 0.5, -0.5, 1.7, 21))
    yield from (args(m.ints(4, 6), e) for e in (0, 1, 3))
    yield args(m.ints(4, 6, low=1), 1.5)


def pow_tensor(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6, low=0.2), m.floats(6)), args(m.floats(4, 6, low=0.2), m.ints(6)), args(m.ints(4, low=1), m.ints(4, low=0, high=4)))


def pow_scalar(m: Maker) -> Iterator[Sample]:
    yield from (args(2, m.floats(4, 6)), args(2.5, m.floats(4, 6)), args(2, m.ints(4, low=0)))


def ternary(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(6, low=0.5))
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(4, 1, low=0.5), value=0.5)


def lerp_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(4, 6), w) for w in (0.1, 0.9))


def lerp_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(4, 6, low=0, high=1))


def xlogy(m: Maker) -> Iterator[Sample]:
    yield args(torch.tensor([0.0, 0.0, 2.0, 1.0]), torch.tensor([0.0, math.nan, 3.0, 0.5]))


def compare(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.ints(4, 6), m.ints(4, 6, dtype=torch.int32))
    yield args(m.bools(4, 6), m.bools(4, 6))
    yield args(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))


def compare_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.ints(4, 6), 1), args(m.ints(4, 6), 0.5), args(m.floats(4, 6), 1), args(m.bools(4), True), args(m.bools(4), 1))
    yield args(torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16), 0.1)


def binary_any(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(4, 6), m.bools(6)), args(m.ints(4, 6), m.floats(6)))


def binary_bits(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(4, 6), m.bools(6)), args(m.ints(4, 6), m.ints(6)), args(m.ints(4, dtype=torch.int32), m.ints(4)))


def bits_number(m: Maker) -> Iterator[Sample]:
    yield args(m.ints(4, 6, low=0), 3)


def shift(m: Maker) -> Iterator[Sample]:
    yield args(m.ints(4, 6, low=0), m.ints(6, low=0, high=4))


def where(m: Maker) -> Iterator[Sample]:
    yield args(m.bools(4, 6), m.floats(4, 6), m.floats(6))
    yield args(m.bools(4, 1), m.floats(4, 6), m.floats(dtype=torch.float64))
    yield args(m.bools(4, 6), m.ints(4, 6), m.floats(4, 6, dtype=torch.bfloat16))


def masked_fill(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.bools(6), -math.inf), args(m.ints(4, 6), m.bools(4, 6), 7), args(m.floats(4, 6, dtype=torch.float16), m.bools(6), 1.5))


def masked_fill_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.bools(6), torch.tensor(2.0))


def to_copy(m: Maker) -> Iterator[Sample]:
    everything = (*FLOATS, *INTS, torch.bool, torch.int16, torch.int8)
    yield from (args(m.floats(4, 6, low=0, high=9), dtype=d) for d in everything)
    yield from (args(m.ints(4, 6), dtype=d) for d in everything)
    yield from (args(m.bools(4, 6), dtype=d) for d in (torch.float32, torch.int64))
    yield args(m.floats(2, 3, 4, 5), memory_format=torch.channels_last)


def cast_prims(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), torch.bfloat16), args(m.floats(4, 6), torch.int64))


def copy(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(6)), args(m.ints(4, 6), m.floats(4, 6)))


def fill_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), torch.tensor(2.0))


# views


def view(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 6)
    yield from (args(x, [24]), args(x, [2, 2, 3, 2]), args(x, [8, -1]), args(x[0:1], [6]), args(x[:, :0], [0, 3]))


def permute(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), [2, 0, 1])


def matrix(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6)), args(m.floats(4)))


def transpose(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), 0, -1)


def expand(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(1, 3), [4, 3]), args(m.floats(3), [2, 4, -1]))


def slice_(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1, 1, 5, 2), args(m.floats(5, 6)[1:], 0, -2))


def select(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1, 2), args(m.floats(5, 6), 0, -1))


def unsqueeze(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1), args(m.floats(5), -1))


def squeeze(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1))


def squeeze_dim(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1), 0)


def squeeze_dims(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1), [0, 2])


def as_strided(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(24), [3, 4], [2, 5], 1), args(m.floats(24), [3, 2], [1, 0]))


def diagonal(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), 1)


def unfold(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), 1, 3, 2)


def split(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), 3, 1)


def split_sizes(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), [2, 4, 1], 1)


def unbind(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 3), 1)


# creation


def full(m: Maker) -> Iterator[Sample]:
    yield from (args([3, 4], 1.5), args([3], 2, dtype=torch.int32), args([], True, dtype=torch.bool), args([3], 0.1, dtype=torch.bfloat16))


def full_like(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4).t(), 2), args(m.ints(3), 1.5, dtype=torch.float64))


def new_full(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4], 2.5)


def zeros_like(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4)), args(m.ints(3), dtype=torch.float32))


def sizes(m: Maker) -> Iterator[Sample]:
    yield from (args([3, 4]), args([2], dtype=torch.int64))


def new_sizes(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4])


def strided(m: Maker) -> Iterator[Sample]:
    yield args([3, 4], [1, 3])


def new_strided(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4], [1, 3])


def permuted(m: Maker) -> Iterator[Sample]:
    yield args([3, 4], [1, 0])


def scalar(m: Maker) -> Iterator[Sample]:
    yield from (args(2.5), args(3, dtype=torch.int64), args(True, dtype=torch.bool))


def arange_default(m: Maker) -> Iterator[Sample]:
    yield from (args(7), args(5, dtype=torch.float32), args(2.5))


def arange_start(m: Maker) -> Iterator[Sample]:
    yield from (args(2, 7), args(0.5, 4))


def arange_step(m: Maker) -> Iterator[Sample]:
    yield from (args(2, 12, 3), args(9, 2, -2), args(0, 1, 0.1))


def eye(m: Maker) -> Iterator[Sample]:
    yield args(4)


def eye_m(m: Maker) -> Iterator[Sample]:
    yield args(3, 5, dtype=torch.int64)


def iota(m: Maker) -> Iterator[Sample]:
    yield args(5, start=3, step=2, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)


# reductions


def sum_all(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m))
    yield args(m.floats(4, 6), dtype=torch.float64)


def sum_dims(m: Maker) -> Iterator[Sample]:
    for d in ([0], [1], [-1], [0, 2], [0, 1, 2], []):
        for keepdim in (False, True):
            yield args(m.floats(3, 4, 5), d, keepdim)
    yield args(m.floats(3, 4, 5).permute(2, 0, 1), [1])
    yield args(m.floats(3, 40, dtype=torch.bfloat16), [1])
    yield args(m.floats(3, 4), [1], dtype=torch.float64)
    yield args(m.floats(3, 1, 5), [1])
    yield args(m.floats(3, 4)[0:2, 1:3], None, True)


def dim(m: Maker) -> Iterator[Sample]:
    for d in (0, 1, -1):
        yield args(m.floats(3, 4, 5).round(), d)
    yield args(m.floats(3, 4, 5), 1, True)
    yield args(m.floats(3, 4, dtype=torch.bfloat16), 1)
    yield args(m.ints(3, 4), 1)
    yield args(m.bools(3, 4), 0)


def dims(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(3, 4, 5), [0, 2]), args(m.floats(3, 4).round(), None, True))


def extremum(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4, 5), d) for d in ([1], [0, 2], [-1], []))
    yield args(m.floats(3, 4, 5), [1], True)
    yield args(torch.tensor([[1.0, math.nan], [2.0, 3.0]]), [1])
    yield args(m.ints(3, 4), [1])
    yield args(m.bools(3, 4), [1])


def extremum_all(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4)), args(m.ints(3, 4)))


def any_all(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(3, 4)), args(m.floats(3, 4)), args(m.ints(3, dtype=torch.uint8)), args(m.bools(0)))


def argmax(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4, 5)), args(m.floats(3, 4, 5), 1), args(m.floats(3, 4, 5), -1, True), args(m.floats(3, 4).t()), args(m.ints(4, 5, low=0, high=2), 1))
    yield args(torch.tensor([[1.0, math.nan, math.nan], [2.0, 3.0, 3.0]]), 1)


def var(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4, 5)
    yield from (args(x, [1], correction=c, keepdim=k) for c in (0, 1) for k in (False, True))
    yield from (args(x), args(x, [0, 2]), args(m.floats(3, 40, dtype=torch.bfloat16), [1]), args(m.floats(3, 4, dtype=torch.float64), [1]), args(x.permute(2, 0, 1), [2], correction=0))


# movement


def cat(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4)
    yield from (args([x, m.floats(3, 2)], 1), args([x, x, m.floats(1, 4)]), args([x, m.ints(3, 4)], -1), args([x, torch.empty(0)], 0), args([x[:, :0], x], 1), args([x]))
    yield args([m.floats(2, 3)] * 12, 0)


def pad(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4)
    yield from (args(x, [1, 2]), args(x, [1, 2, 0, 1], 1.5), args(x, [-1, 2], 3.0), args(x, [-1, -1]), args(m.ints(3), [2, 2], 7))


def slice_scatter(m: Maker) -> Iterator[Sample]:
    x = m.floats(5, 6)
    yield from (args(x, m.floats(5, 2), 1, 1, 3), args(x, m.floats(3, 6), 0, 2), args(x, m.floats(5, 2), 1, 1, 6, 3), args(x, m.floats(5, 6), 1))


def select_scatter(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), m.floats(5), 1, 2), args(m.floats(5, 6), m.floats(6), 0, -1))


def flip(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [0]), args(m.floats(3, 4), [0, -1]))


def roll(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [1], [1]), args(m.floats(3, 4), [-1, 2], [0, 1]), args(m.floats(3, 4), [3]))


def repeat(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [2, 3]), args(m.floats(3), [2, 2]))


def triangle(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5)), args(m.floats(2, 4, 5), 1), args(m.bools(4, 4), -1))


# reads at positions


def index(m: Maker) -> Iterator[Sample]:
    x = m.floats(5, 6, 7)
    i, j = m.ints(3, low=-5, high=5), m.ints(2, 1, low=0, high=6)
    yield from (args(x, [i]), args(x, [None, j]), args(x, [i, j]), args(x, [i, None, m.ints(3, low=0, high=7)]), args(x, [None, i, i]))


def gather(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1, m.ints(5, 3, low=0, high=6)), args(m.floats(5, 6), 0, m.ints(2, 4, low=0, high=5)), args(m.floats(5, 6).t(), -1, m.ints(6, 3, low=0, high=5)))


def index_select(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 0, m.ints(4, low=0, high=5)), args(m.floats(5, 6), 1, m.ints(4, low=0, high=5, dtype=torch.int32)))


def embedding(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(9, 4), m.ints(2, 3, low=0, high=9)), args(m.floats(9, 4, dtype=torch.bfloat16), m.ints(5, low=0, high=9), 2))


def copy_into(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(6)), args(m.floats(4, 6).t(), m.ints(6, 4)))


# matrices


def mm(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), m.floats(4, 5)), args(m.floats(4, 3).t(), m.floats(5, 4).t()))


def addmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(5), m.floats(3, 4), m.floats(4, 5))


def bmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), m.floats(2, 4, 5))


def baddbmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 5), m.floats(2, 3, 4), m.floats(2, 4, 5), beta=0.5)


SAMPLES: dict[str, Callable[[Maker], Iterator[Sample]]] = {
    f.__name__.rstrip("_"): f for f in (
        unary_float, unary_floats, unary, unary_any, unary_special, unary_bits, unary_slope, leaky_backward, unary_gelu, gelu_backward, elu_backward,
        softplus_backward, bounded_backward, threshold, threshold_backward, clamp, clamp_tensor, unary_number, binary_floats, binary, binary_nonzero,
        binary_alpha_numbers, binary_alpha, div_mode, div_mode_number, pow_number, pow_tensor, pow_scalar, ternary, lerp_number, lerp_tensor, xlogy, compare,
        compare_number, binary_any, binary_bits, bits_number, shift, where, masked_fill, masked_fill_tensor, to_copy, cast_prims, copy, fill_tensor,
        view, permute, matrix, transpose, expand, slice_, select, unsqueeze, squeeze, squeeze_dim, squeeze_dims, as_strided, diagonal, unfold, split, split_sizes, unbind,
        full, full_like, new_full, zeros_like, sizes, new_sizes, strided, new_strided, permuted, scalar, arange_default, arange_start, arange_step, eye, eye_m, iota,
        sum_all, dim, dims, extremum, extremum_all, any_all, argmax, var, cat, pad, slice_scatter, select_scatter, flip, roll, repeat, triangle,
        index, gather, index_select, embedding, copy_into, mm, addmm, bmm, baddbmm,
    )
} | {"sum": sum_dims}
