"""A slice of the programs over large numbers; `python -m tests.fuzz.large_ints FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.large_ints import difference, generate


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_graphs_of_torch(first):
    for seed in range(first, first + 10):
        assert difference(generate(seed), backend="eager") is None, f"seed {seed}\n{generate(seed).source}"


@pytest.mark.parametrize("first", range(1000, 1020, 10))
def test_interpreted_kernels(first):
    for seed in range(first, first + 10):
        assert difference(generate(seed), options={"reference": True}) is None, f"seed {seed}\n{generate(seed).source}"


@pytest.mark.parametrize("seed", [6064, 20038, 20205, 20369, 20377])
def test_interpreted_kernels_that_differed_once(seed):
    assert difference(generate(seed), options={"reference": True}) is None, generate(seed).source
