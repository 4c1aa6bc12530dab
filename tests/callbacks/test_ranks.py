"""Fits of two processes of gloo: with the callback as without it, on both ranks, under the options of DDP."""

from __future__ import annotations

import pytest

from tests.callbacks.ranks_fit import CASES
from tests.forked import LIGHTNING, run


@pytest.mark.further
def test_two_ranks_train_as_without_the_callback(tmp_path):
    done = run(LIGHTNING, "-m", "tests.callbacks.ranks_fit", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"rank{rank}").read_text().splitlines() for rank in range(2)] == [list(CASES)] * 2
