"""What compiling in the background is worth: seconds until the first step has ended, until steps have their full speed, and what steps wait meanwhile.

A worker first runs eager steps for some seconds, which the steps beside the compile are compared with, and then has the system compile the same model,
with empty caches. "Full speed" is the end of the first step that began when nothing was compiled any more, or that waited for all compiles. Run by
`scripts/bench.py background`.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from scripts.workload_models import Gpt
from scripts.workloads import WORKLOADS

SYSTEMS = ("torch.compile", "dynacompile", "in the background")
NAMES = ("GPT 4x128, context 128, training", "MLP, training")
EAGER_SECONDS = 6.0
AFTER_SECONDS = 3.0
LONGEST = 400.0


def compile_with(system: str) -> tuple[Callable[[Any], Any], Callable[[], bool]]:
    """The system's compile, and whether nothing is compiled any more."""
    if system == "torch.compile":
        return torch.compile, lambda: True
    dynacompile = importlib.import_module("dynacompile")
    if system == "dynacompile":
        return dynacompile.compile, lambda: True
    return lambda fn: dynacompile.compile(fn, options={"background": True}), lambda: not dynacompile.background.BACKGROUND.jobs and is_idle(dynacompile)


def is_idle(dynacompile: Any) -> bool:
    return dynacompile.background.BACKGROUND.thread is None


def worker(system: str, name: str, device: str) -> dict[str, float]:
    """One workload under one system, in this process."""
    torch.manual_seed(0)
    compiled: list[Any] = []

    def switchable(fn: Any) -> Any:
        compiled.append(fn)
        return lambda *args: compiled[-1](*args)

    step = WORKLOADS[name].build(device, switchable)
    durations_of(step, device, 1.0)
    eager = sorted(durations_of(step, device, EAGER_SECONDS))
    start = time.perf_counter()
    compile, is_done = compile_with(system)
    compiled.append(compile(compiled[0]))
    ends: list[float] = []
    durations: list[float] = []
    done_at = None
    while done_at is None or time.perf_counter() - done_at < AFTER_SECONDS:
        before = time.perf_counter()
        step()
        finish(device)
        ends.append(time.perf_counter() - start)
        durations.append(time.perf_counter() - before)
        if done_at is None and (is_done() or ends[-1] > LONGEST):
            done_at = time.perf_counter()
    at = next((i for i, end in enumerate(ends) if start + end - durations[i] >= done_at), len(ends) - 1) if system == SYSTEMS[2] else 0
    last = statistics.median(durations[at + 1 :] or durations[-1:])
    beside = sorted(durations[: max(1, at)])
    return {
        "first": ends[0],
        "full": ends[at],
        "step": last,
        "eager": statistics.median(eager),
        "eager_95": share(eager, 0.95),
        "eager_most": eager[-1],
        "beside": statistics.median(beside),
        "beside_95": share(beside, 0.95),
        "beside_most": beside[-1],
        "steps_beside": float(len(beside)),
    }


def share(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def durations_of(step: Callable[[], Any], device: str, seconds: float) -> list[float]:
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        before = time.perf_counter()
        step()
        finish(device)
        found.append(time.perf_counter() - before)
    return found


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_turn(seconds: float = 60.0) -> str:
    """Steps of a small GPT on one thread, alone and beside compiles of it, in turn: what other programs do to the machine meanwhile is in both."""
    dynacompile = importlib.import_module("dynacompile")
    torch.manual_seed(0)
    model, tokens = Gpt(2, 64, 2, 256, 64), torch.randint(0, 256, (4, 64))

    def step(forward: Any) -> None:
        forward(tokens, tokens.roll(-1, 1)).backward()
        for p in model.parameters():
            p.grad = None

    alone: list[float] = []
    beside: list[float] = []
    durations_of(lambda: step(model), "cpu", 1.0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        alone += durations_of(lambda: step(model), "cpu", 0.5)
        compiled = dynacompile.compile(model, isolate_recompiles=True, backend="aot_eager", options={"background": True, "fallback": "none"})
        step(compiled)
        most = time.perf_counter() + 2.0  # a busy machine has a compile take long
        while not dynacompile.wait(0) and time.perf_counter() < most:
            beside += durations_of(lambda: step(model), "cpu", 0.02)
        dynacompile.wait()
    parts = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "slowest": 1.0}
    ratios = [f"{name} {share(sorted(beside), part) / share(sorted(alone), part):.2f}" for name, part in parts.items()]
    return f"Steps beside a compile against steps alone, in turn, one thread, {len(beside)} and {len(alone)} steps: {', '.join(ratios)}."


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """rows: workload -> system -> figures of its worker."""
    lines = [
        "| workload | system | seconds until step 1 | until full speed | step then | steps meanwhile, and against eager alone: median | 95 % | slowest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, systems in rows.items():
        for system, f in systems.items():
            meanwhile = ["-"] * 3
            if system == "in the background":
                pairs = (("beside", "eager"), ("beside_95", "eager_95"), ("beside_most", "eager_most"))
                meanwhile = [f"{f[beside] * 1e3:.1f} ms ({f[beside] / f[eager]:.2f}x)" for beside, eager in pairs]
            lines.append(f"| {name} | {system} | {f['first']:.2f} | {f['full']:.1f} | {f['step'] * 1e3:.1f} ms | {' | '.join(meanwhile)} |")
    return "\n".join(lines)
