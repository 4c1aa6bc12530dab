"""A slice of tests/guards/machine_fuzz.py."""

from __future__ import annotations

import pytest

from tests.guards.machine_fuzz import fuzz


@pytest.mark.parametrize("seed", range(2))
def test_the_machine_and_its_twin_agree(seed):
    report = fuzz(400, seed)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.programs == 400 and 0.3 < report.held / report.checks < 0.95
