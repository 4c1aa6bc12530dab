"""A slice of the modules of norms and statistics; `python -m tests.fuzz.norms FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.convolutions import check_program
from tests.fuzz.norms import generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [1042, 1051, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 1015, 1026, 1027, 1047, 1056))])
def test_results_gradients_and_state(seed):
    program, counts = generate(seed), Counter()
    check_program(program, counts)
    assert counts["calls"] == len(program.calls)


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
