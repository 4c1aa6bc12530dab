"""The processor that this process runs on: what names it, and how long a kernel takes on it."""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dynacompile.ir.schedule import CpuKernel

MOST_RUNS = 30
SECONDS = 0.08  # spent on measuring one candidate


@functools.cache
def processor() -> str:
    """What -march=native depends on: the machine and the first core's flags."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    wanted = ("flags", "Features", "vendor_id", "cpu family", "model\t", "CPU part")
    return platform.machine() + "|" + "|".join(line for line in lines if line.startswith(wanted))


def measure_here(kernel: CpuKernel, tensors: Sequence[torch.Tensor]) -> float:
    """Microseconds of one launch, the least of several; the tensors (one per param) hold what the first launch stored."""
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel.library.address(kernel.symbol))
    run(pointers(tensors))
    copies = [t.clone() for t in tensors]
    arguments = pointers(copies)
    run(arguments)
    best, started = float("inf"), time.perf_counter()
    for _ in range(MOST_RUNS):
        before = time.perf_counter()
        run(arguments)
        now = time.perf_counter()
        best = min(best, now - before)
        if now - started > SECONDS:
            break
    return best * 1e6


def pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
