"""A slice of the loops over lists of tensors; `python -m tests.fuzz.rounds FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

import dynacompile
from tests.fuzz.rounds import check_program, generate


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_repeated_rounds_are_those_that_are_followed(first):
    counts: Counter = Counter()
    for seed in range(first, first + 30):
        assert check_program(generate(seed), counts) == [], generate(seed).text()
    dynacompile.reset()
    assert counts["steps repeated"] < counts["steps followed"]


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    assert len({generate(seed).lines for seed in range(50)}) > 40
