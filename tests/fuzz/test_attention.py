"""A slice of the hand-written attention; `python -m tests.fuzz.attention FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.attention import MADE, check, decided, generate


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_attention(first):
    counts: Counter = Counter()
    for seed in range(first, first + 8):
        counts.update(decided(check(generate(seed), "aot_eager")))
    assert counts[(True, "")] > 1, "many programs become torch's operator"


def test_masks_that_the_frame_makes_and_other_scales():
    counts: Counter = Counter()
    for seed in range(MADE, MADE + 10):
        counts.update(decided(check(generate(seed), "aot_eager")))
    assert counts[(True, "")] > 1


def test_built():
    for seed in range(200, 203):
        check(generate(seed), "default")


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    assert len({(generate(seed).form, generate(seed).masks, generate(seed).softmax) for seed in range(100)}) > 60
