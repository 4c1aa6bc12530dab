"""A slice of the programs with scans; `python -m tests.fuzz.scans FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.scans import by_triton, generate, interpreted, native


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_schedules(first):
    facts = [interpreted(generate(seed)).facts() for seed in range(first, first + 10)]
    assert sum(f["externs"] for f in facts) <= 3, "scans call nothing"


@pytest.mark.parametrize("seed", range(100, 106))
def test_native(seed):
    native(generate(seed))


@pytest.mark.slow
def test_text_by_tritons_interpreter():
    assert by_triton([generate(seed) for seed in range(1000, 1004)]) >= 1
