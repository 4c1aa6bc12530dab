"""A slice of the points of the file system's fuzzer: some of each scenario, some of each odd file, some with two faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz.devices import NONE

ROOT = Path(__file__).parents[2]


def test_faults_and_odd_files():
    command = [sys.executable, "-m", "tests.fuzz.files", "3", "12000", "--step", "211"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | NONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
