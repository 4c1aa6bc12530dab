"""AdamW's step over GPT-2-like parameters on the CPU, beside a copy of memory: which share of the copy's bandwidth it moves. Run by
`scripts/bench.py bandwidth`.

A step reads parameters, gradients and two moments, and writes three of them. A copy reads and writes as many bytes as the parameters have; what a processor
reads of a line before it writes it is counted for neither. Rounds of all are taken in turn, and medians told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import dynacompile

SHAPES = [(768, 768)] * 24 + [(3072, 768)] * 4 + [(768,)] * 60
ROUNDS, CALLS = 7, 3
MOVED, COPIED = 7, 2  # times the bytes of the parameters
FORMS = {"eager, foreach": "foreach", "eager, fused": "fused", "torch.compile": "foreach", "dynacompile": "foreach", "dynacompile, fused": "fused"}


def step_of(system: str, form: str) -> Callable[[], object]:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, **{form: True})  # type: ignore[arg-type]
    optimizer.step()
    if system.startswith("dynacompile"):
        return dynacompile.compile(optimizer.step, isolate_recompiles=True)
    return torch.compile(optimizer.step) if system == "torch.compile" else optimizer.step


def table() -> str:
    """Markdown."""
    elements = sum(torch.Size(shape).numel() for shape in SHAPES)
    source, target = torch.randn(elements), torch.empty(elements)
    calls: dict[str, Callable[[], object]] = {"a copy": lambda: target.copy_(source)}
    calls |= {system: step_of(system, form) for system, form in FORMS.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    bandwidth = {name: (COPIED if name == "a copy" else MOVED) * 4 * elements / s for name, s in seconds.items()}
    about = f"{elements / 1e6:.1f} million parameters, float32, {torch.get_num_threads()} threads."
    lines = [about, "", "| | a step | GB/s | share of the copy's |", "|---|---|---|---|"]
    lines += [f"| {name} | {s * 1e3:.2f} ms | {bandwidth[name] / 1e9:.1f} | {bandwidth[name] / bandwidth['a copy']:.2f} |" for name, s in seconds.items()]
    return "\n".join(lines)
