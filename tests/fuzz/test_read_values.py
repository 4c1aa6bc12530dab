"""A slice of the programs that read what is written; `python -m tests.fuzz.read_values FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.read_values import difference, generate


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_as_in_eager(first):
    for seed in range(first, first + 20):
        assert difference(generate(seed), backend="eager") is None, f"seed {seed}\n{generate(seed).source}"


@pytest.mark.parametrize("seed", [180, 252])
def test_programs_that_differed_once(seed):
    assert difference(generate(seed), backend="eager") is None, generate(seed).source
