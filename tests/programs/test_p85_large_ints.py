"""Python's ints have any number of digits; those of symbols, of conditions on them and of graphs have 64 bits."""

from __future__ import annotations

import pytest
import torch

import dynacompile


def compares(x, n):
    return x + 1, n + 2**64 > 2**64 + 3, n


def multiplies(x, n):
    return (x + 1, n * 2**63) if n * 2**63 > 2**65 else (x, n)


def adds_up(x, n):
    total = n
    for _ in range(8):
        total = total * 2**9 - n
    return x * 2, total, total % 7 == 3


def indexes(x, n):
    return x[(n + 2**65) % 2], (n + 2**65) // 2**64


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [compares, multiplies, adds_up, indexes])
def test_constants_of_more_than_64_bits(fn, backend):
    compiled, x = dynacompile.compile(fn, backend=backend, isolate_recompiles=True, recompile_limit=16, options={"verify": True}), torch.arange(4.0)
    for n in (3, 5, 7, 2**62, 2**63 - 1, 2**63, 2**70, -(2**64), 11):
        got, expected = compiled(x, n), fn(x, n)
        assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:], n


def sums(x, a, b):
    return x + (a + b), a + b


def products(x, a, b):
    return x * (a * b), x.new_full((2,), a * b), torch.arange(3) + a * b


def compared(x, a, b):
    return (x + 1 if a * b * a > 2**62 else x - 1), max(a * b, b), abs(-a)


def divided(x, a, b):
    return x + (a * a * b) // 7, x + (a * a * b) % 1000, (a << 20) >> 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("fn", [sums, products, compared, divided])
def test_arithmetic_that_leaves_64_bits(fn, backend):
    def outcome(call, *args):
        try:
            return [r.tolist() if isinstance(r, torch.Tensor) else r for r in call(torch.zeros(2), *args)]
        except (RuntimeError, OverflowError) as error:
            return type(error)

    compiled = dynacompile.compile(fn, backend=backend, isolate_recompiles=True, recompile_limit=64)
    large = [(2**31 - 1, 2**31 - 1), (-(2**31) + 1, 2**31 - 1), (2**40, 3), (2**62, 2), (2**63 - 1, 5), (-(2**63), -1), (2**64, 3), (10**30, 7)]
    for a, b in [(10, 3), (11, 4), (12, 6), *large, (13, 9)]:
        assert outcome(compiled, a, b) == outcome(fn, a, b), (a, b)


def adds_what_float32_has_not(x, r):
    return x.sum() * 3 + 1e60, torch.where(x > 1, x * -1e60, x + r)


@pytest.mark.parametrize("options", [{}, {"reference": True}], ids=["built", "interpreted"])
def test_floats_beyond_the_range_of_the_dtype_are_infinite(options):
    for dtype in (torch.int64, torch.float32, torch.float16, torch.bfloat16):
        compiled, x = dynacompile.compile(adds_what_float32_has_not, isolate_recompiles=True, options=options), torch.arange(4).to(dtype)
        for r in (0.5, 1.5, 2.5, 1e60, -1e39):
            torch.testing.assert_close(compiled(x, r), adds_what_float32_has_not(x, r), rtol=0, atol=0)
