"""A slice of tests/fuzz/allocations.py; `python -m tests.fuzz.allocations FIRST LAST` runs any points."""

from __future__ import annotations

import shutil

import pytest

from tests.fuzz.allocations import run


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="it builds a library")
@pytest.mark.parametrize("first", [*range(0, 80, 20), *range(300, 380, 20)])
def test_allocations_that_fail(first):
    for ran, count, wrong in run(first, first + 20, cheap_only=True):
        assert not wrong and ran > 15 and count > first + 20
