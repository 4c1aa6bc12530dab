"""Runs emitted Triton kernels through Triton's interpreter, in a process of its own, since Triton reads its mode when it is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import torch

from tests.forked import TORCH, run

ENVIRONMENT = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


def started(jobs: Sequence[tuple], cases: Path, results: Path, timeout: float) -> CompletedProcess:
    torch.save(jobs, cases)
    arguments = ("-W", "ignore", "-m", "dynacompile.codegen.triton.interpret", str(cases), str(results))
    return run(TORCH, *arguments, env=os.environ | ENVIRONMENT, timeout=timeout)


def interpret(jobs: Sequence[tuple], folder: Path, timeout: float = 300) -> list:
    """For each job, as of `interpret.run`, its tensors afterwards."""
    results = folder / "results.pt"
    done = started(jobs, folder / "cases.pt", results, timeout)
    assert done.returncode == 0, done.stderr
    return torch.load(results, weights_only=True)
