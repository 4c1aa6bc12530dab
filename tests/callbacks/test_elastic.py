"""A job whose rank is killed starts again by torchrun, loads its kernels from the store, and goes on from its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_builds_nothing(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DYNACOMPILE_CACHE_DIR": str(tmp_path / "store")}
    command = [*launch, "-m", "tests.callbacks.elastic_fit", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert done.returncode == 0 and done.stdout.count("held") == 2, done.stderr[-4000:]
    lives = {life: [(tmp_path / f"{rank}-{life}").read_text() for rank in (0, 1)] for life in (0, 1)}
    assert all(text.startswith("from epoch 0: ") and text.endswith(", 0 recompiles") for text in lives[0]), lives
    assert all(text.startswith("from epoch 1: ") and ", 0 built, 0 recompiles" in text and ": 0 loaded" not in text for text in lives[1]), lives
    assert any(", 0 built" not in text for text in lives[0]), "the first life built what the second one loaded"
