"""A slice of the trees; `python -m tests.fuzz.module_options FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.module_options import difference


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_each_module_has_the_options_of_the_most_specific_globs(first):
    for seed in range(first, first + 40):
        assert difference(seed) is None, f"seed {seed}"
