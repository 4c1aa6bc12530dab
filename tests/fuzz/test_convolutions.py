"""A slice of the modules over signals, images and volumes; `python -m tests.fuzz.convolutions FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.convolutions import check_program, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [288, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (18, 26, 94, 214, 493, 872, 1029))])
def test_results_gradients_and_state(seed):
    program, counts = generate(seed), Counter()
    check_program(program, counts)
    assert counts["calls"] == len(program.calls)


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
