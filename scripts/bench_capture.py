"""How long the first call takes where nothing is generated: capture and guards alone (`backend="eager"`).

"First" is loading the compiler, calling it and the first call, less a plain call, in a fresh process. "Again" is the best of three more
compiles in that process, each after a reset: what capture itself takes. Run by `scripts/bench.py capture`.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from scripts.workload_models import Gpt

AGAIN = 3


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        self.conv1, self.norm1 = nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2, self.norm2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def resnet50() -> nn.Module:
    """Layers and widths of ResNet-50 (He et al., 2015)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(width, middle, stride if i == 0 else 1))
            width = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def modules(count: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(count))), torch.randn(2, 8)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "GPT-2 small, 8 tokens": lambda: (Gpt(12, 768, 12, 50257, 1024), torch.randint(0, 50257, (1, 8))),
    "ResNet-50, 32x32": lambda: (resnet50(), torch.randn(1, 3, 32, 32)),
    "100 modules": lambda: modules(100),
    "200 modules": lambda: modules(200),
    "400 modules": lambda: modules(400),
}
MODELS |= {f"{name}, symbolic": MODELS[name] for name in ("GPT-2 small, 8 tokens", "ResNet-50, 32x32", "100 modules")}
SYMBOLIC = frozenset(name for name in MODELS if name.endswith(", symbolic"))
"""Captured with all sizes as symbols, which loads torch's ShapeEnv and SymPy."""


def worker(system: str, name: str) -> dict[str, float]:
    """Seconds for one model under one system, in this process."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()

    def seconds(call: Callable[[], Any]) -> float:
        gc.collect()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    model(x)
    options = {"dynamic": True} if name in SYMBOLIC else {}
    plain = min(seconds(lambda: model(x)) for _ in range(3))
    first = seconds(lambda: compiler(system)(model, **options)(x)) - plain
    again = []
    for _ in range(AGAIN):
        reset(system)
        again.append(seconds(lambda: compiler(system)(model, **options)(x)) - plain)
    return {"first": first, "again": min(again)}


def compiler(system: str) -> Callable[..., Callable]:
    compile = torch.compile if system == "torch.compile" else importlib.import_module("dynacompile").compile
    return partial(compile, backend="eager")


def reset(system: str) -> None:
    if system == "torch.compile":
        torch.compiler.reset()
    else:
        importlib.import_module("dynacompile").reset()


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown. rows: by model, by system, a worker's figures."""
    columns = ("model", "first: torch.compile", "dynacompile", "ratio", "again: torch.compile", "dynacompile", "ratio")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, systems in rows.items():
        rival, ours = systems["torch.compile"], systems["dynacompile"]
        cells = [name]
        for kind in ("first", "again"):
            cells += [f"{rival[kind]:.2f} s", f"{ours[kind]:.2f} s", f"{ours[kind] / rival[kind]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
