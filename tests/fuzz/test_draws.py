"""A slice of the programs that draw from generators; `python -m tests.fuzz.draws FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.draws import difference, generate


@pytest.mark.parametrize("first", range(0, 60, 5))
def test_as_in_eager(first):
    for seed in range(first, first + 5):
        assert difference(generate(seed)) is None, f"seed {seed}\n{generate(seed)}"
