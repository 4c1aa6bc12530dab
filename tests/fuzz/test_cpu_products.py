"""A slice of the products on CPUs; `python -m tests.fuzz.cpu_products FIRST LAST [--native]` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

import dynacompile
from tests.fuzz.cpu_products import check, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_by_the_interpreter(first):
    told = sum((check(generate(seed), native=False) for seed in range(first, first + 20)), start=Counter())
    dynacompile.reset()
    assert told["loops"] >= 10 and told["calls"] >= 5, "both ways are taken"


@pytest.mark.filterwarnings("ignore")
def test_as_cpp():
    for seed in range(2000, 2012):
        check(generate(seed), native=True)
    dynacompile.reset()
