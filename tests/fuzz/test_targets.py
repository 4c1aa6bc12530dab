"""A slice of the targets; `python -m tests.fuzz.targets FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import difference


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_targets_are_compiled_or_said_not_to_be(first):
    for seed in range(first, first + 30):
        assert difference(seed, fullgraph=seed % 2 == 1) is None, f"seed {seed}"
