"""A slice of the points of the file system's fuzzer: some of each scenario, some of each odd file, some with two faults."""

from __future__ import annotations

import os

from tests.forked import TORCH, run
from tests.fuzz.devices import NONE


def test_faults_and_odd_files():
    done = run(TORCH, "-m", "tests.fuzz.files", "3", "12000", "--step", "1579", env=os.environ | NONE)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
