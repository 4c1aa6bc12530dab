"""Slices of the programs of special_methods.py; `python -m tests.fuzz.special_methods FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz import special_methods


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_special_methods_that_come_go_and_change(first):
    for seed in range(first, first + 50):
        told = special_methods.difference(seed)
        assert told is None, f"seed {seed}: {told}"
