"""Fits of two processes of gloo: with the callback as without it, on both ranks, under the options of DDP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.callbacks.ranks_fit import CASES

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_two_ranks_train_as_without_the_callback(tmp_path):
    run = subprocess.run([sys.executable, "-m", "tests.callbacks.ranks_fit", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    assert [(tmp_path / f"rank{rank}").read_text().splitlines() for rank in range(2)] == [list(CASES)] * 2
