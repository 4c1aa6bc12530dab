"""A slice of the operations without a kernel; `python -m tests.fuzz.missing_kernels FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.missing_kernels import FROM_NAMED, SEEDS, Program, check, generate


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_slice(backend):
    counts: Counter = Counter()
    for seed in range(0, SEEDS, 61):
        check(Program(seed), counts, backend)
    assert sum(counts.values()) > 20


def test_types_that_calls_name():
    counts: Counter = Counter()
    for seed in range(FROM_NAMED, FROM_NAMED + 60):
        check(generate(seed), counts)
    assert sum(counts.values()) - counts["results"] > 20
