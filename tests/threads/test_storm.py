"""A few seconds of tests/threads/storm.py; in development mode too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.threads.storm import juggle, storm


def test_threads_that_compile_and_hit():
    calls, wrong = storm(3.0)
    assert not wrong and calls > 8, (calls, wrong)


def test_greenlets_in_regions_beside_long_programs():
    calls, wrong = juggle(3.0)
    assert not wrong and calls > 8, (calls, wrong)


def test_in_development_mode():
    root = Path(__file__).resolve().parent.parent.parent
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-m", "tests.threads.storm", "--seconds", "2"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]


def test_threads_that_end_after_compiling():
    """Without a device, a torch that was built for CUDA keeps what fakes need in the storage of the first thread that compiles."""
    program = """
import threading, torch, dynacompile
def compile_one(k):
    dynacompile.compile(lambda x: x * k, backend="eager", isolate_recompiles=True)(torch.ones(2))
for k in range(6):
    thread = threading.Thread(target=compile_one, args=(k,))
    thread.start()
    thread.join()
    junk = [bytearray(8) for _ in range(1000)]
compile_one(7)
print("done")
"""
    root = Path(__file__).resolve().parent.parent.parent
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", PYTHONPATH=os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0 and run.stdout == "done\n", run.stderr[-3000:]
