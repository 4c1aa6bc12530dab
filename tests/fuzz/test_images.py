"""A slice of the programs over images; `python -m tests.fuzz.images FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.images import check_program, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [3, 84, pytest.param(25, marks=pytest.mark.slow), pytest.param(42, marks=pytest.mark.slow)])
def test_results_and_gradients(seed):
    counts: Counter = Counter()
    check_program(generate(seed), counts)
    assert counts["calls"] == 3


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
