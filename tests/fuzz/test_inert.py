"""A slice of the fits that are measured and not; `python -m tests.fuzz.inert FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.inert import WITH_WRAPPED, check, generate


@pytest.mark.parametrize("first", [*range(0, 40, 10), WITH_WRAPPED])
def test_a_measured_fit_leaves_behind_what_one_without_does(first):
    ended = Counter(check(generate(seed)) for seed in range(first, first + 10))
    assert ended["measured"] >= 7
