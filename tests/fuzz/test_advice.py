"""A slice of the programs whose recompiles' advice is applied; `python -m tests.fuzz.advice FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.advice import difference


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_advice_is_true(first):
    for seed in range(first, first + 25):
        assert difference(seed) is None, f"seed {seed}"
