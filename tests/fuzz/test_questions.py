"""The slice of the programs of questions.py that runs with the tests; `python -m tests.fuzz.questions FIRST LAST` runs any others."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.questions import CHANGES, QUESTIONS, SHARED, difference, source_of

PART = 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 200, PART))
def test_as_in_eager(first):
    for seed in range(first, first + PART):
        told = difference(seed)
        assert told is None, f"seed {seed}: {told}"


def test_programs_are_what_they_were():
    assert source_of(random.Random(3)) == source_of(random.Random(3))
    assert len({source_of(random.Random(seed)) for seed in range(50)}) > 45
    assert len(set(QUESTIONS)) == len(QUESTIONS) and not CHANGES.keys() & SHARED.keys()
