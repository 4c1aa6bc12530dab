"""A slice of the sweeps; `python -m tests.fuzz.sweeps FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.sweeps import difference


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_each_job_of_a_sweep_has_its_own_row(first):
    for seed in range(first, first + 50):
        assert difference(seed) is None, f"seed {seed}"
