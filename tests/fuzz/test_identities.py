"""Slices of the programs of identities.py and replaced.py; `python -m tests.fuzz.identities FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz import identities, replaced


@pytest.mark.parametrize("first", range(0, 600, 40))
def test_which_objects_are_one(first):
    for seed in range(first, first + 40):
        told = identities.difference(seed)
        assert told is None, f"seed {seed}: {told}"


@pytest.mark.parametrize("first", range(0, 360, 40))
def test_objects_replaced_by_those_of_other_types(first):
    for seed in range(first, first + 40):
        told = replaced.difference(seed)
        assert told is None, f"seed {seed}: {told}"
