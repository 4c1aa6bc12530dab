"""A slice of the training steps that make values again; `python -m tests.fuzz.made_again FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

import dynacompile
from tests.fuzz.made_again import check, generate


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_graphs(first):
    dynacompile.reset()
    less = [kept < more for kept, more in (check(generate(seed)) for seed in range(first, first + 15))]
    assert sum(less) >= 5, "many programs keep less"


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_interpreted_kernels(seed):
    check(generate(seed), "reference")


@pytest.mark.parametrize("seed", range(2000, 2002))
def test_built_kernels(seed):
    check(generate(seed), "default")
