"""A slice of the products with random epilogues; `python -m tests.fuzz.products FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.products import by_triton, generate, interpreted


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_schedules(first):
    reasons = sum((interpreted(generate(seed)) for seed in range(first, first + 20)), start=Counter())
    assert reasons["the test says so"] >= 10, "most programs have products that are one kernel with their reader"


def test_text_by_tritons_interpreter():
    assert by_triton([generate(seed) for seed in range(1000, 1012)]) >= 3
