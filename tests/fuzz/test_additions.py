"""A slice of the sums at places; `python -m tests.fuzz.additions FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.additions import KINDS, check_program, generate


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_sums_and_errors(first):
    counts: Counter = Counter()
    for seed in range(first, first + 20):
        check_program(generate(seed), counts)
    assert counts["sums"] > counts["errors"]


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    assert {generate(seed).kind for seed in range(100)} == set(KINDS)
