"""A slice of layers that call flex_attention several times; `python -m tests.fuzz.flexible_calls FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.flexible_calls import CHANGES, MASKS, SCORES, check, generate


@pytest.mark.parametrize("kernels", [False, True], ids=["scores as a whole", "by kernels"])
def test_layers_whose_state_changes(kernels):
    counts: Counter = Counter()
    for seed in range(2):
        counts.update(check(generate(seed), kernels=kernels))
    assert counts["compared"] > 5


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    found = [generate(seed) for seed in range(1500)]
    assert {text for p in found for text in p.scores} == set(SCORES) and {text for p in found for text in p.masks} == set(MASKS)
    assert {what for p in found for what in p.changes} == set(CHANGES)
