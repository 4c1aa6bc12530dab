"""A slice of the programs over containers that grow; `python -m tests.fuzz.growing FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.growing import difference, source_of


@pytest.mark.parametrize("first", [*range(0, 200, 50), 100000, 200000, 300000, 300050])
def test_as_in_eager(first):
    found = [f"{source_of(seed)}{told}" for seed in range(first, first + 50) if (told := difference(seed))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seed", [841, 1045])
def test_found(seed):
    assert difference(seed) is None, source_of(seed)
