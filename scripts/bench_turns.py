"""Eager, torch.compile, ours, and ours with `freeze`, one after the other in one process, many rounds: what else runs on the machine meets all alike.

Steps of workloads that record gradients have no column for `freeze`, which is for inference. Where a workload draws random numbers, a second row has
torch.compile with `fallback_random`, which gives eager's numbers, as ours does.
"""

from __future__ import annotations

import fnmatch
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor

import dynacompile
from scripts.workloads import WORKLOADS, Step

ORDER = ("eager", "torch.compile", "dynacompile", "freeze")
ROUND = 0.01  # seconds of a batch of steps
WARM = 4
DRAWING = ("*rand*", "*bernoulli*", "*dropout*", "*multinomial*")
EAGERS = "torch.compile with eager's numbers"


def systems(mode: str, eagers_numbers: bool = False) -> dict[str, Callable[[Any], Any]]:
    """What each system makes of a function, in `mode`. eagers_numbers: torch.compile draws the random numbers that eager does."""
    rival: dict[str, Any] = {"mode": None if mode == "default" else mode}
    if eagers_numbers:
        rival = {"options": {**(torch._inductor.list_mode_options(mode) if mode != "default" else {}), "fallback_random": True}}
    return {
        "eager": lambda fn: fn,
        "torch.compile": lambda fn: torch.compile(fn, **rival),
        "dynacompile": lambda fn: dynacompile.compile(fn, isolate_recompiles=True, mode=mode),
        "freeze": lambda fn: dynacompile.compile(fn, isolate_recompiles=True, mode=mode, options={"freeze": True}),
    }


def seconds_of(step: Step, times: int, device: str) -> float:
    """Of one thread on the CPU: the process's time, which other programs on the machine take no part of."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(times):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / times


def measured(name: str, device: str, rounds: int, mode: str = "default", eagers_numbers: bool = False) -> dict[str, float]:
    """The shortest round of each system, in seconds of a step; a system that fails is left out."""
    steps: dict[str, Step] = {}
    for system, compile in systems(mode, eagers_numbers).items():
        if system == "freeze" and (device != "cpu" or not name.startswith("product:")):
            continue
        torch.manual_seed(0)
        try:
            step = WORKLOADS[name].build(device, compile)
            for _ in range(WARM):
                step()
        except RuntimeError as error:  # the others are measured all the same
            print(f"{name}: {system} fails: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            continue
        steps[system] = step
    warm = min(seconds_of(steps["eager"], 1, device) for _ in range(WARM))  # the first finds nothing in the caches, which others' steps have filled since
    times = max(1, min(1000, int(ROUND / max(warm, 1e-6))))
    best = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for system, step in steps.items():
            best[system] = min(best[system], seconds_of(step, times, device))
    torch.compiler.reset()
    dynacompile.reset()
    return best


def table(only: str, device: str, rounds: int, mode: str) -> str:
    """Markdown; each row is printed as soon as it is measured."""
    lines = ["| workload | eager | torch.compile | dynacompile | vs eager | vs torch.compile | freeze |", "|---|---|---|---|---|---|---|"]
    for name, workload in WORKLOADS.items():
        if device not in workload.devices or not fnmatch.fnmatch(name, only):
            continue
        draws = any(fnmatch.fnmatch(name, pattern) for pattern in DRAWING)
        for eagers_numbers in (False, True) if draws else (False,):
            found = measured(name, device, rounds, mode, eagers_numbers)
            shown = [f"{t * 1e6:.1f} us" if t < 1e-3 else f"{t * 1e3:.2f} ms" for t in (found.get(system, math.nan) for system in ORDER)]
            gains = [f"{found.get(rival, math.nan) / found.get('dynacompile', math.nan):.2f}x" for rival in ("eager", "torch.compile")]
            called = f"{name} ({EAGERS})" if eagers_numbers else name
            lines.append(f"| {called} | {' | '.join(shown[:3])} | {' | '.join(gains)} | {shown[3]} |".replace("nan ms", "").replace("nanx", ""))
            print(lines[-1], flush=True)
    return "\n".join(lines)
