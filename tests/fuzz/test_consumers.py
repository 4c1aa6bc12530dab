"""Slices of the programs of consumers.py; `python -m tests.fuzz.consumers FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz import consumers


@pytest.mark.parametrize("first", range(0, 600, 25))
def test_what_c_takes_and_calls(first):
    for seed in range(first, first + 25):
        told = consumers.difference(seed)
        assert told is None, f"seed {seed}: {told}"
