"""A slice of the programs with numbers on the CPU beside a GPU; `python -m tests.fuzz.host_numbers FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.host_numbers import check, generate


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_programs(first):
    counts: Counter = sum((check(generate(seed)) for seed in range(first, first + 20)), Counter())
    assert counts["cpu"] > 10 and counts["cuda"] > 10, "most programs compute on both"
