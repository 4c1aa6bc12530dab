"""A slice of the losses of large layers; `python -m tests.fuzz.large_losses FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.large_losses import check, generate


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_graphs(first):
    chunked = [any(e.chunked for e in check(generate(seed), "aot_eager")) for seed in range(first, first + 5)]
    assert sum(chunked) >= 1, "many programs are computed in chunks"


@pytest.mark.parametrize("seed", range(1000, 1006))
def test_interpreted_kernels(seed):
    check(generate(seed), "reference")


@pytest.mark.parametrize("seed", range(2000, 2002))
def test_built_kernels(seed):
    check(generate(seed), "default")
