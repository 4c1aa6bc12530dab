"""A slice of the programs whose memory is used again; `python -m tests.fuzz.memory FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

import dynacompile
from tests.fuzz.memory import difference, generate


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_interpreted_kernels(first):
    dynacompile.reset()
    for seed in range(first, first + 20):
        assert not difference(generate(seed)), f"seed {seed}"


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_built_kernels(seed):
    assert not difference(generate(seed), native=True)
