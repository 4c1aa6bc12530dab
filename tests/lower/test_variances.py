"""Variances and deviations: numbers that are equal deviate by nothing."""

from __future__ import annotations

import pytest
import torch

import dynacompile


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("count", [3, 41, 47, 1000])
def test_equal_numbers_deviate_by_nothing(count, dynamic):
    """The mean of 41 equal numbers may be rounded to another, and 41 * (1 / 41) is not 1."""
    x = torch.randn(500, 1).mul(100).expand(500, count).clone().requires_grad_()
    compiled = dynacompile.compile(lambda x: (x.var(1), x.std(1), x.t().std(0)), isolate_recompiles=True, dynamic=dynamic)
    results = compiled(x)
    assert all(not t.any() for t in results)
    (gradient,) = torch.autograd.grad([t.sum() for t in results], x)
    assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("count", [3, 41, 1000, 100000])
def test_one_number_that_differs_in_its_last_bit_is_seen(count):
    x = torch.full((2, count), 1.3)
    x[:, 1] = torch.nextafter(x[:, 1], torch.tensor(2.0))
    compiled = dynacompile.compile(lambda x: x.std(1), isolate_recompiles=True)
    torch.testing.assert_close(compiled(x), x.double().std(1).float(), rtol=1e-2, atol=0)
