"""A slice of the calls with wrong values; `python -m tests.fuzz.wrong_values FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.wrong_values import Program, check


@pytest.mark.parametrize(("backend", "first", "last"), [("eager", 0, 40), ("reference", 60, 70)])
def test_slice(backend, first, last):
    counts: Counter = Counter()
    for seed in range(first, last):
        check(Program(seed), counts, backend)
    assert sum(counts.values()) - counts["results"] > 5
