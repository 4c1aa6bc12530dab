"""Eager, torch.compile, ours, and ours with `freeze`, one after the other in one process, many rounds: what else runs on the machine meets all alike.

Steps of workloads that record gradients have no column for `freeze`, which is for inference.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from scripts.workloads import WORKLOADS, Step

ROUND = 0.01  # seconds of a batch of steps
WARM = 4


def ours(fn: Any) -> Any:
    return dynacompile.compile(fn, isolate_recompiles=True)


def frozen(fn: Any) -> Any:
    return dynacompile.compile(fn, isolate_recompiles=True, options={"freeze": True})


SYSTEMS: dict[str, Callable[[Any], Any]] = {"eager": lambda fn: fn, "torch.compile": lambda fn: torch.compile(fn), "dynacompile": ours, "freeze": frozen}


def seconds_of(step: Step, times: int, device: str) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measured(name: str, device: str, rounds: int) -> dict[str, float]:
    """The shortest round of each system, in seconds of a step."""
    steps: dict[str, Step] = {}
    for system, compile in SYSTEMS.items():
        if system == "freeze" and not name.startswith("product:"):
            continue
        torch.manual_seed(0)
        steps[system] = WORKLOADS[name].build(device, compile)
        for _ in range(WARM):
            steps[system]()
    times = max(1, min(1000, int(ROUND / max(seconds_of(steps["eager"], 1, device), 1e-6))))
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for system, step in steps.items():
            best[system] = min(best[system], seconds_of(step, times, device))
    torch.compiler.reset()
    dynacompile.reset()
    return best


def table(only: str, device: str, rounds: int) -> str:
    lines = ["| workload | eager | torch.compile | dynacompile | vs eager | vs torch.compile | freeze |", "|---|---|---|---|---|---|---|"]
    for name, workload in WORKLOADS.items():
        if device not in workload.devices or not fnmatch.fnmatch(name, only):
            continue
        found = measured(name, device, rounds)
        shown = {system: f"{t * 1e6:.1f} us" if t < 1e-3 else f"{t * 1e3:.2f} ms" for system, t in found.items()}
        gains = [f"{found[rival] / found['dynacompile']:.2f}x" for rival in ("eager", "torch.compile")]
        lines.append(f"| {name} | {shown['eager']} | {shown['torch.compile']} | {shown['dynacompile']} | {' | '.join(gains)} | {shown.get('freeze', '')} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)
