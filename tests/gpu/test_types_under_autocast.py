"""Types of results under autocast on a GPU are those of fakes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("part", range(4))
def test_fakes_have_eagers_types(part):
    run = subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.gpu.types_under_autocast", str(part)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, f"{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
