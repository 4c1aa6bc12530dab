"""How long compiling an optimizer's step takes against the number of its parameters, and a step once it is compiled.

"First" is loading the compiler, calling it and the first three steps, less three usual ones, in a fresh process with empty caches: the first of
them makes the optimizer's state. "Again" is the same once more in that process, after a reset, on a new optimizer. Parameters are of ten shapes, or each of
a shape of its own. Run by `scripts/bench.py optimizers`.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

STEPS = 20
MOST_FOR_TORCH = 150  # parameters; torch.compile takes minutes for more


@dataclass(frozen=True)
class Case:
    count: int
    options: dict[str, bool]
    shapes: int = 10
    clipped: bool = False

    @property
    def name(self) -> str:
        form = "single-tensor" if not any(self.options.values()) else next(k for k, v in self.options.items() if v)
        told = [f"AdamW {form}", f"{self.count} parameters", *(["each of its own shape"] * (self.shapes >= self.count)), *(["clipped by norm"] * self.clipped)]
        return ", ".join(told)

    def update(self) -> Callable[[], None]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3 + i % self.shapes, 5)) for i in range(self.count)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters, **self.options)

        def step() -> None:
            if self.clipped:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        return step


FORMS: tuple[dict[str, bool], ...] = ({"foreach": False}, {"foreach": True}, {"fused": True})
CASES = {
    case.name: case
    for case in (
        *(Case(count, form) for form in FORMS for count in (150, 1000)),
        *(Case(count, {"foreach": True}, clipped=True) for count in (150, 1000)),
        Case(150, {"foreach": False}, shapes=150),
    )
}


def worker(system: str, name: str) -> dict[str, float]:
    """Seconds for one case under one system, in this process."""
    case = CASES[name]
    found = {"first": compiled(case, system)}
    if system != "eager":
        reset(system)
        found["again"] = compiled(case, system)
    found["step"] = steady(case, system)
    return found


def compiled(case: Case, system: str) -> float:
    update = case.update()
    gc.collect()
    start = time.perf_counter()
    step = wrapped(update, system)
    for _ in range(3):
        step()
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(3):
        step()
    return seconds - (time.perf_counter() - start)


def steady(case: Case, system: str) -> float:
    """The median of a step, once all is compiled."""
    step = wrapped(case.update(), system)
    for _ in range(3):
        step()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return sorted(times)[STEPS // 2]


def wrapped(update: Callable[[], None], system: str) -> Any:
    if system == "eager":
        return update
    if system == "torch.compile":
        return torch.compile(update)
    return importlib.import_module("dynacompile").compile(update, isolate_recompiles=True)


def reset(system: str) -> None:
    if system == "torch.compile":
        torch.compiler.reset()
    else:
        importlib.import_module("dynacompile").reset()


def systems_for(name: str) -> tuple[str, ...]:
    return ("eager", "torch.compile", "dynacompile") if CASES[name].count <= MOST_FOR_TORCH else ("eager", "dynacompile")


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown. rows: by case, by system, a worker's figures."""
    columns = ("optimizer", "first: torch.compile", "dynacompile", "again: torch.compile", "dynacompile", "a step: eager", "torch.compile", "dynacompile")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, systems in rows.items():
        rival, ours, eager = systems.get("torch.compile"), systems["dynacompile"], systems["eager"]
        cells = [name]
        for kind in ("first", "again"):
            cells += ["" if rival is None else f"{rival[kind]:.2f} s", f"{ours[kind]:.2f} s"]
        cells += [f"{eager['step'] * 1e3:.2f} ms", "" if rival is None else f"{rival['step'] * 1e3:.2f} ms", f"{ours['step'] * 1e3:.2f} ms"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
