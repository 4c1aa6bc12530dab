"""A slice of the random differentiable programs; `python -m tests.fuzz.derivatives` runs more."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.derivatives import difference, generate
from tests.fuzz.stability import is_unsure, runs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_programs_have_the_derivatives_of_eager(first):
    for seed in range(first, first + 20):
        assert not (told := difference(generate(seed), seed, "aot_eager")), f"seed {seed}: {told}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [20, 80])
def test_random_programs_through_kernels(first):
    """Programs of kernels ask that a gradient has the strides that they were made for."""
    for seed in range(first, first + 10):
        assert not (told := difference(generate(seed), seed, "reference")), f"seed {seed}: {told}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [1731, 6998, 11632])
def test_programs_that_differed_once(seed):
    unsure: list[str] = []
    assert not difference(generate(seed), seed, "aot_eager", unsure)
    assert not unsure


@pytest.mark.filterwarnings("ignore")
def test_programs_whose_derivatives_are_noise():
    """Eager is not sure of them itself; of which, depends on how the processor's vectors round."""
    noisy = 0
    for seed in (6357, 7675, 8123, 9130, 10083):
        assert not difference(generate(seed), seed, "aot_eager", unsure := [])
        noisy += bool(unsure)
    assert noisy >= 3


def gradients(function):
    torch.manual_seed(0)
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(x, y), (x, y), allow_unused=True)


def test_only_what_eager_is_not_sure_of_is_left_out():
    def noise(x, y):
        return ((x - x.mean()).sum() * 1e15 * y).sum()

    def steady(x, y):
        return (x.sin() * y).sum()

    expected, others = gradients(noise), runs(lambda: gradients(noise), 1)
    assert is_unsure(expected, (expected[0], expected[1] * 1.5), *others)
    assert not is_unsure(expected, (expected[0] + 1e3, expected[1]), *others)
    assert not is_unsure(expected, (expected[0], None), *others)
    expected, others = gradients(steady), runs(lambda: gradients(steady), 1)
    assert not is_unsure(expected, (expected[0], expected[1] * (1 + 1e-6)), *others)
    assert not is_unsure(expected, (expected[0] * torch.nan, expected[1]), *others)
