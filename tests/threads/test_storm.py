"""A few seconds of tests/threads/storm.py; in development mode too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.threads.storm import storm


def test_threads_that_compile_and_hit():
    calls, wrong = storm(3.0)
    assert not wrong and calls > 8, (calls, wrong)


def test_in_development_mode():
    root = Path(__file__).resolve().parent.parent.parent
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-m", "tests.threads.storm", "--seconds", "2"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
