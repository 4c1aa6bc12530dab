"""A slice of the fuzzer of optimizers; whole: python -m tests.fuzz.optimizers FIRST LAST."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.optimizers import check_program, generate


@pytest.mark.parametrize("first", [*range(0, 32, 8), *(pytest.param(first, marks=pytest.mark.slow) for first in range(32, 48, 8))])
def test_seeds(first):
    for seed in range(first, first + 8):
        assert not check_program(generate(seed), "eager", Counter()), generate(seed)


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_seeds_as_loops(seed):
    assert not check_program(generate(seed), "reference", Counter()), generate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2004))
def test_seeds_as_kernels(seed):
    assert not check_program(generate(seed), "native", Counter()), generate(seed)
