"""Slices of the programs of method_calls.py; `python -m tests.fuzz.method_calls FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz import method_calls


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_methods_functions_and_iterators(first):
    for seed in range(first, first + 50):
        told = method_calls.difference(seed)
        assert told is None, f"seed {seed}: {told}"
