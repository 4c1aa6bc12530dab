"""A slice of the programs over sequences; `python -m tests.fuzz.sequences FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.sequences import CALLS, check_program, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [9, 13, 22, 900_003, pytest.param(2, marks=pytest.mark.slow), pytest.param(31, marks=pytest.mark.slow)])
def test_results_and_gradients(seed):
    counts: Counter = Counter()
    check_program(generate(seed), counts, "reference")
    assert counts["calls"] == CALLS


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
