"""A slice of tests/guards/flips.py: one fact changes between calls, and compiled functions follow as eager ones do."""

from __future__ import annotations

import pytest

from tests.guards.flips import fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_flips(seed):
    report = fuzz(100, seed)
    assert not report.misses, "\n".join(report.misses)
    assert report.flips >= 100 and sum(report.needless.values()) <= 5, report.needless
