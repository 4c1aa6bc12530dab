"""A slice of the programs of watchers.py; `python -m tests.fuzz.watchers FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz import watchers


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_who_watches_sees_what_eager_shows(first):
    for seed in range(first, first + 60):
        told = watchers.difference(seed)
        assert told is None, f"seed {seed}: {told}"
