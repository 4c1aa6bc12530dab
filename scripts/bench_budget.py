"""Memory against time: a training step with several values of `memory_budget`, each compiled anew, and eager's.

On GPUs the peak is that of the allocator above what is held before the step; on CPUs the most bytes that a program of the step has alive at a time, as its
schedule says, inputs that it may write over included.
"""

from __future__ import annotations

import fnmatch
import math
import statistics
import time
from collections.abc import Callable

import torch

import dynacompile
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.ir.schedule import Module
from dynacompile.session import SESSION
from scripts.workloads import WORKLOADS, Workload

BUDGETS = (1.0, 0.7, 0.4, 0.1)
CHOSEN = {
    "cuda": ("GPT-2 small, training 16x1024, bf16", "ResNet-50, training 64x224, bf16"),
    "cpu": ("GPT 4x128, context 128, training", "conv net, training"),
}


def step_seconds(step: Callable[[], object], device: str, seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measured(workload: Workload, device: str, budget: float | None, seconds: float) -> tuple[float, float, float]:
    """(seconds of a step, peak bytes, bytes saved for backward); None: eager, of which a CPU says no peak."""
    torch.manual_seed(0)
    programs: list[int] = []
    saved = [0]

    def observer(stage: str, result: object) -> None:
        if isinstance(result, Module):
            programs.append(result.schedule.facts()["peak"])
        elif isinstance(result, ForwardBackward):
            saved.append(result.facts.get("saved_bytes", 0))

    with SESSION.bus.observing(observer):
        compile = (lambda fn: fn) if budget is None else lambda fn: dynacompile.compile(fn, isolate_recompiles=True, options={"memory_budget": budget})
        step = workload.build(device, compile)
        held = torch.cuda.memory_allocated() if device == "cuda" else 0
        for _ in range(3):
            step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    taken = step_seconds(step, device, seconds)
    peak = torch.cuda.max_memory_allocated() - held if device == "cuda" else max(programs, default=math.nan)
    return taken, peak, sum(saved) if budget is not None else math.nan


def table(only: str, device: str, seconds: float) -> str:
    lines = ["| workload | memory_budget | step | peak MiB | saved for backward, MiB |", "|---|---|---|---|---|"]
    for name in CHOSEN[device]:
        if not fnmatch.fnmatch(name, only):
            continue
        for budget in (None, *BUDGETS):
            taken, peak, saved = measured(WORKLOADS[name], device, budget, seconds)
            shown = ["" if math.isnan(n) else f"{n / 2**20:.1f}" for n in (peak, saved)]
            lines.append(f"| {name} | {'eager' if budget is None else budget} | {taken * 1e3:.2f} ms | {' | '.join(shown)} |")
    return "\n".join(lines)
