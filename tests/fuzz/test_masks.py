"""A slice of the masks of attention; `python -m tests.fuzz.masks FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.masks import check_program, generate, kind_in_eager


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_values_and_attention(first):
    counts: Counter = Counter()
    for seed in range(first, first + 50):
        check_program(generate(seed), seed % 5 == 0, counts)
    assert counts["values"] > 4 * counts["values not known"], "most of the graph is known"


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    assert len({generate(seed).lines for seed in range(50)}) > 40


def test_all_kinds_occur():
    found: Counter = Counter()
    for seed in range(100):
        program = generate(seed)
        try:
            mask = program.function()(program.n, program.m)
        except (RuntimeError, IndexError):
            continue
        found[kind_in_eager(mask, program.n, program.m)] += 1
    assert set(found) == {"all", "causal", "other"}
