"""Argument sets of pointwise ops, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from dynacompile.ops.sampling import FLOATS, INTS, Maker, Sample, args, floats_of, sample

VALUES: dict[str, Callable[[Maker], Iterator[Sample]]] = {}


@sample(VALUES)
def unary_float(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m, 0.1, 0.9))
    yield args(m.ints(3, 4, low=1))
    yield args(m.bools(5))


@sample(VALUES)
def unary_floats(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m, -25.0, 25.0))


@sample(VALUES)
def unary(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m))
    yield from (args(m.ints(3, 4, dtype=d)) for d in INTS)


@sample(VALUES)
def unary_any(m: Maker) -> Iterator[Sample]:
    yield from unary(m)
    yield args(m.bools(3, 4))


@sample(VALUES)
def unary_special(m: Maker) -> Iterator[Sample]:
    yield args(torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5]))
    yield args(torch.tensor([math.nan, math.inf, -math.inf, 1.5], dtype=torch.bfloat16))
    yield args(m.ints(3))


@sample(VALUES)
def unary_bits(m: Maker) -> Iterator[Sample]:
    yield from (args(m.of(d, 3, 4)) for d in (*INTS, torch.bool))


@sample(VALUES)
def unary_slope(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5)), args(m.floats(4, 5), 0.2), args(m.floats(4, 5, dtype=torch.bfloat16), 0.2))


@sample(VALUES)
def leaky_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5), 0.2, False)


@sample(VALUES)
def unary_gelu(m: Maker) -> Iterator[Sample]:
    for x in floats_of(m):
        yield args(x)
        yield args(x, approximate="tanh")


@sample(VALUES)
def gelu_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5))
    yield args(m.floats(4, 5), m.floats(4, 5), approximate="tanh")


@sample(VALUES)
def elu_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), 1.5, 1.0, 1.0, False, m.floats(4, 5))
    yield args(m.floats(4, 5), 1.5, 2.0, 0.5, True, m.floats(4, 5))


@sample(VALUES)
def softplus_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5, low=-30, high=30), 1.5, 20.0)


@sample(VALUES)
def bounded_backward(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), m.floats(4, 5), -1.0, 1.0)


@sample(VALUES)
def threshold(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5), 0.5, 7.0), args(m.ints(4, 5), 1, 7))


@sample(VALUES)
def threshold_backward(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5), m.floats(4, 5), 0), args(m.floats(4, 5), m.floats(4, 5), 0.5))


@sample(VALUES)
def clamp(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 5)
    yield from (
        args(x, -1, 1),
        args(x, None, 0.5),
        args(x, 0.5),
        args(m.ints(4, 5), -2, 2),
        args(m.ints(4, 5), -1.5, 2),
        args(torch.tensor([math.nan, 1.0]), 0, 0.5),
    )


@sample(VALUES)
def clamp_tensor(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 5)
    yield from (args(x, m.floats(5, high=0), m.floats(4, 1, low=0)), args(x, None, m.floats(4, 5)))


@sample(VALUES)
def unary_number(m: Maker) -> Iterator[Sample]:
    yield from (
        args(m.floats(4, 5), 2),
        args(m.floats(4, 5, dtype=torch.bfloat16), 1.5),
        args(m.ints(4, 5), 3),
        args(m.ints(4, 5, dtype=torch.int32), 1.5),
        args(m.floats(3, dtype=torch.float64), 0.1),
    )


def pairs(m: Maker, low: float = -3.0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    a, b = m.floats(4, 6, low=low), m.floats(4, 6, low=low)
    yield from ((a, b), (a, b[0]), (a[:, :1], b), (a, b.t().contiguous().t()), (a[0, 0], b), (a.t(), b.t()), (a[:0], b[:0]))
    yield from ((a.to(torch.bfloat16), b.to(torch.bfloat16)), (a.to(torch.bfloat16), b), (a, b.to(torch.float64)), (a, m.floats(dtype=torch.float64, low=low)))
    yield (a, m.ints(4, 6, low=1))


@sample(VALUES)
def binary_floats(m: Maker) -> Iterator[Sample]:
    yield from (args(a, b) for a, b in ((m.floats(4, 6), m.floats(4, 6)), (m.floats(4, 6, dtype=torch.bfloat16), m.floats(4, 6, dtype=torch.bfloat16))))


@sample(VALUES)
def binary(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.ints(4, 6), m.ints(4, 6, dtype=torch.int32))
    yield args(m.bools(4, 6), m.bools(4, 6))


@sample(VALUES)
def binary_nonzero(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m, 0.5))
    yield args(m.ints(4, 6), m.ints(4, 6, low=1))
    yield args(m.floats(4, 6), m.floats(4, 6, low=-3, high=-0.5))


@sample(VALUES)
def binary_alpha_numbers(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.floats(4, 6), m.floats(4, 6), alpha=2.5)
    yield args(m.ints(4, 6), m.ints(4, 6), alpha=3)


@sample(VALUES)
def binary_alpha(m: Maker) -> Iterator[Sample]:
    yield from binary_alpha_numbers(m)
    yield args(m.bools(4), m.bools(4))
    yield args(m.bools(4), m.ints(4))


@sample(VALUES)
def div_mode(m: Maker) -> Iterator[Sample]:
    for mode in (None, "trunc", "floor"):
        yield args(m.floats(4, 6), m.floats(4, 6, low=0.5), rounding_mode=mode)
        yield args(m.ints(4, 6, low=-9, high=9), m.ints(4, 6, low=1), rounding_mode=mode)
        yield args(m.ints(4, 6, low=-9, high=9), m.ints(4, 6, low=-4, high=0), rounding_mode=mode)


@sample(VALUES)
def div_mode_number(m: Maker) -> Iterator[Sample]:
    for mode in ("trunc", "floor"):
        yield from (
            args(m.floats(4, 6), 0.7, rounding_mode=mode),
            args(m.ints(4, 6, low=-9, high=9), 4, rounding_mode=mode),
            args(m.ints(4, 6, low=-9, high=9), -4, rounding_mode=mode),
        )


@sample(VALUES)
def pow_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6, low=0.2), e) for e in (0, 1, 2, 3, 2.0, -1, -2, 0.5, -0.5, 1.7, 21))
    yield from (args(m.ints(4, 6), e) for e in (0, 1, 3))
    yield args(m.ints(4, 6, low=1), 1.5)


@sample(VALUES)
def pow_tensor(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6, low=0.2), m.floats(6)), args(m.floats(4, 6, low=0.2), m.ints(6)), args(m.ints(4, low=1), m.ints(4, low=0, high=4)))


@sample(VALUES)
def pow_scalar(m: Maker) -> Iterator[Sample]:
    yield from (args(2, m.floats(4, 6)), args(2.5, m.floats(4, 6)), args(2, m.ints(4, low=0)))


@sample(VALUES)
def ternary(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(6, low=0.5))
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(4, 1, low=0.5), value=0.5)


@sample(VALUES)
def lerp_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(4, 6), w) for w in (0.1, 0.9))


@sample(VALUES)
def lerp_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.floats(4, 6), m.floats(4, 6, low=0, high=1))


@sample(VALUES)
def xlogy(m: Maker) -> Iterator[Sample]:
    yield args(torch.tensor([0.0, 0.0, 2.0, 1.0]), torch.tensor([0.0, math.nan, 3.0, 0.5]))


@sample(VALUES)
def compare(m: Maker) -> Iterator[Sample]:
    yield from (args(*p) for p in pairs(m))
    yield args(m.ints(4, 6), m.ints(4, 6, dtype=torch.int32))
    yield args(m.bools(4, 6), m.bools(4, 6))
    yield args(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))


@sample(VALUES)
def compare_number(m: Maker) -> Iterator[Sample]:
    yield from (args(m.ints(4, 6), 1), args(m.ints(4, 6), 0.5), args(m.floats(4, 6), 1), args(m.bools(4), True), args(m.bools(4), 1))
    yield args(torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16), 0.1)


@sample(VALUES)
def binary_any(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(4, 6), m.bools(6)), args(m.ints(4, 6), m.floats(6)))


@sample(VALUES)
def binary_bits(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(4, 6), m.bools(6)), args(m.ints(4, 6), m.ints(6)), args(m.ints(4, dtype=torch.int32), m.ints(4)))


@sample(VALUES)
def bits_number(m: Maker) -> Iterator[Sample]:
    yield args(m.ints(4, 6, low=0), 3)


@sample(VALUES)
def shift(m: Maker) -> Iterator[Sample]:
    yield args(m.ints(4, 6, low=0), m.ints(6, low=0, high=4))


@sample(VALUES)
def where(m: Maker) -> Iterator[Sample]:
    yield args(m.bools(4, 6), m.floats(4, 6), m.floats(6))
    yield args(m.bools(4, 1), m.floats(4, 6), m.floats(dtype=torch.float64))
    yield args(m.bools(4, 6), m.ints(4, 6), m.floats(4, 6, dtype=torch.bfloat16))


@sample(VALUES)
def masked_fill(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.bools(6), -math.inf), args(m.ints(4, 6), m.bools(4, 6), 7), args(m.floats(4, 6, dtype=torch.float16), m.bools(6), 1.5))


@sample(VALUES)
def masked_fill_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), m.bools(6), torch.tensor(2.0))


@sample(VALUES)
def to_copy(m: Maker) -> Iterator[Sample]:
    everything = (*FLOATS, *INTS, torch.bool, torch.int16, torch.int8)
    yield from (args(m.floats(4, 6, low=0, high=9), dtype=d) for d in everything)
    yield from (args(m.ints(4, 6), dtype=d) for d in everything)
    yield from (args(m.bools(4, 6), dtype=d) for d in (torch.float32, torch.int64))
    yield args(m.floats(2, 3, 4, 5), memory_format=torch.channels_last)


@sample(VALUES)
def cast_prims(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), torch.bfloat16), args(m.floats(4, 6), torch.int64))


@sample(VALUES)
def copy(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(6)), args(m.ints(4, 6), m.floats(4, 6)))


@sample(VALUES)
def fill_tensor(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 6), torch.tensor(2.0))
