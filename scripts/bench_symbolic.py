"""Measures what symbolic sizes cost in kernels: each program compiled with constant sizes and with symbolic ones, called on the same shapes.

    python scripts/bench.py symbolic                            # the table of this machine's device
    python scripts/bench.py symbolic --only "*norm*" --device cpu
    python scripts/bench.py symbolic --write                    # put it into docs/performance.md

One entry with symbolic sizes, made for the first shape, serves both shapes of a program; the second has a prime number of rows or columns. The
two compiles take turns in one process, batch by batch, and medians are compared. Call overhead is left aside: on a GPU a batch waits behind a
kernel that sleeps until all of it is launched, and CUDA events measure it; on the CPU the kernels of a program take a hundred calls' time or more.
"""

from __future__ import annotations

import fnmatch
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled, FrameSkipped
from scripts.workload_models import Block
from scripts.workloads import chain

STATIC: dict[str, Any] = {"dynamic": False}
SYMBOLIC: dict[str, Any] = {"dynamic": True}
BATCH_SECONDS = 0.02
LIMIT = 1.10  # of a static kernel's time that a symbolic one may take
CYCLES = 2_000_000_000  # of a GPU in a second, or more

Step = Callable[[], Any]


class Program(NamedTuple):
    """make(device): a function or module. Its arguments are `inputs` of a shape. trains: the step is its backward, too."""

    make: Callable[[str], Callable]
    inputs: Callable[..., tuple[torch.Tensor, ...]]
    cpu: tuple[tuple[int, ...], tuple[int, ...]]
    cuda: tuple[tuple[int, ...], tuple[int, ...]]
    trains: bool = False


class Attention(nn.Module):
    """Norm, projections and attention of a transformer's layer, with the addition of its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm, self.qkv, self.projection = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.heads, c // self.heads).transpose(1, 2) for s in self.qkv(self.norm(x)).split(c, dim=2))
        weights = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(-1)
        return x + self.projection((weights @ v).transpose(1, 2).reshape(b, t, c))


def normal(*size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(*size, requires_grad=True),)


def norm_inputs(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(*size, requires_grad=True) for size in ((rows, columns), (columns,), (columns,)))


def loss_inputs(rows: int, classes: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, classes, requires_grad=True), torch.randint(0, classes, (rows,))


def two(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, columns), torch.randn(rows, columns // 2)


def channels_last(*size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(*size).to(memory_format=torch.channels_last).requires_grad_(),)


def function(fn: Callable) -> Callable[[str], Callable]:
    return lambda device: fn


def mlp(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10)).to(device)


IMAGES = {"cpu": ((4, 64, 56, 56), (3, 64, 61, 43)), "cuda": ((32, 64, 112, 112), (31, 64, 113, 127))}
PLANES = {"cpu": ((2048, 1024), (2039, 1021)), "cuda": ((16384, 4096), (16381, 4093))}

PROGRAMS: dict[str, Program] = {
    "11 pointwise ops": Program(function(chain), lambda *n: (torch.randn(*n),), **PLANES),
    "addition of a row, and a transposed one": Program(
        function(lambda x, y: (x + y).t() * x.t()[:, :1]), lambda n, m: (torch.randn(n, m), torch.randn(m)), **PLANES
    ),
    "softmax of rows": Program(function(lambda x: F.softmax(x * 0.5 + 1, -1)), lambda *n: (torch.randn(*n),), **PLANES),
    "layer norm, training": Program(function(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)), norm_inputs, **PLANES, trains=True),
    "sums of rows": Program(function(lambda x: x.sum(1)), lambda *n: (torch.randn(*n),), **PLANES),
    "sums of columns": Program(function(lambda x: x.sum(0)), lambda *n: (torch.randn(*n),), **PLANES),
    "variance of rows": Program(function(lambda x: x.var(1)), lambda *n: (torch.randn(*n),), **PLANES),
    "variance of columns": Program(function(lambda x: x.var(0)), lambda *n: (torch.randn(*n),), **PLANES),
    "concatenation": Program(function(lambda x, y: torch.cat([x, y * 2, x + 1], 1)), two, **PLANES),
    "cross entropy, training": Program(function(F.cross_entropy), loss_inputs, **PLANES, trains=True),
    "attention block, training": Program(
        lambda device: Attention(256, 4).to(device), lambda b, t: normal(b, t, 256), ((8, 128), (7, 127)), ((32, 512), (31, 509)), trains=True
    ),
    "GPT block, training": Program(
        lambda device: Block(256, 4).to(device), lambda b, t: normal(b, t, 256), ((8, 128), (7, 127)), ((32, 512), (31, 509)), trains=True
    ),
    "group norm, channels last, training": Program(lambda device: nn.GroupNorm(8, 64).to(device), channels_last, **IMAGES, trains=True),
    "relu, max_pool2d 3x3": Program(function(lambda x: F.max_pool2d(x.relu(), 3, 2, 1)), channels_last, **IMAGES),
    "relu, max_pool2d 2x2, training": Program(function(lambda x: F.max_pool2d(x.relu(), 2)), channels_last, **IMAGES, trains=True),
    "relu, avg_pool2d 3x3, training": Program(function(lambda x: F.avg_pool2d(x.relu(), 3, 2, 1)), channels_last, **IMAGES, trains=True),
    "bilinear interpolation, training": Program(function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), normal, **IMAGES, trains=True),
    "nearest interpolation by 1.5": Program(function(lambda x: F.interpolate(x, scale_factor=1.5)), normal, **IMAGES),
    "MLP with a changing batch, training": Program(mlp, lambda n: normal(n, 256), ((1024,), (1021,)), ((16384,), (16381,)), trains=True),
}


def step_of(program: Program, compiled: Callable, inputs: tuple[torch.Tensor, ...]) -> Step:
    if not program.trains:
        return lambda: compiled(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    wanted += compiled.parameters() if isinstance(compiled, nn.Module) else []
    ones = torch.ones_like(compiled(*inputs))
    return lambda: torch.autograd.grad(compiled(*inputs), wanted, ones)


def cpu_seconds(step: Step, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def cuda_seconds(step: Step, count: int) -> float:
    """Device seconds of a step. The stream sleeps until all steps are launched, so that none waits for Python."""
    sleep = 0.002
    while True:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(sleep * CYCLES))
        begin.record()
        for _ in range(count):
            step()
        end.record()
        covered = not begin.query()
        torch.cuda.synchronize()
        if covered:
            return begin.elapsed_time(end) / 1e3 / count
        sleep *= 2
        if sleep > 1:  # the launch queue is full before the steps are launched
            count, sleep = max(1, count // 4), 0.002


def medians(steps: dict[str, Step], device: str, seconds: float) -> dict[str, float]:
    measure = cuda_seconds if device == "cuda" else cpu_seconds
    for step in steps.values():
        for _ in range(3):
            step()
    once = max(measure(step, 1) for step in steps.values())
    count = max(1, min(20 if device == "cuda" else 1000, int(BATCH_SECONDS / max(once, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds * len(steps)
    order = list(steps)
    while min(map(len, times.values())) < 8 or time.perf_counter() < end:
        for name in order:
            times[name].append(measure(steps[name], count))
        order.reverse()
    return {name: statistics.median(found) for name, found in times.items()}


class Row(NamedTuple):
    """What one program on one shape took, and how many graphs the entry with symbolic sizes is made of, over all shapes."""

    name: str
    shape: tuple[int, ...]
    static: float
    symbolic: float
    entries: int


def rows_of(name: str, device: str, seconds: float) -> list[Row]:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    fn = program.make(device)
    symbolic = dynacompile.compile(fn, isolate_recompiles=True, **SYMBOLIC)
    entries, found = 0, []

    def count(event: Any) -> None:
        nonlocal entries
        entries += isinstance(event, Compiled)
        if isinstance(event, FrameSkipped):
            raise SystemExit(f"{name}: {event}")

    for shape in getattr(program, device):
        inputs = tuple(t.detach().to(device).requires_grad_(t.requires_grad) for t in program.inputs(*shape))
        end = dynacompile.subscribe(count)
        steps = {"symbolic": step_of(program, symbolic, inputs)}
        expected, got = fn(*inputs), symbolic(*inputs)
        end()
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
        steps["static"] = step_of(program, dynacompile.compile(fn, isolate_recompiles=True, **STATIC), inputs)
        times = medians(steps, device, seconds)
        found.append(Row(name, shape, times["static"], times["symbolic"], entries))
    return found


def in_units(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(only: str, device: str, seconds: float) -> str:
    """Markdown: medians of a step and their ratio, program by program."""
    lines = ["| program | shape | static | symbolic | symbolic / static |", "|---|---|---|---|---|"]
    rows: list[Row] = []
    for name in fnmatch.filter(PROGRAMS, only):
        for row in rows_of(name, device, seconds):
            rows.append(row)
            late = "" if row.symbolic <= LIMIT * row.static else " (over the limit)"
            cells = (name, "x".join(map(str, row.shape)), in_units(row.static), in_units(row.symbolic), f"{row.symbolic / row.static:.2f}{late}")
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], f"{row.entries} compiled", file=sys.stderr, flush=True)
    if not rows:
        sys.exit(f"no program matches {only!r}; there are: {', '.join(PROGRAMS)}")
    over = sum(row.symbolic > LIMIT * row.static for row in rows)
    many = {row.name for row in rows if row.entries > 1}
    mean = statistics.geometric_mean(row.symbolic / row.static for row in rows)
    lines.append(f"\nGeometric mean {mean:.2f}; {over} of {len(rows)} over {LIMIT:.2f}.")
    lines[-1] += " One entry serves both shapes of each program." if not many else f" Several entries were made for {', '.join(sorted(many))}."
    return "\n".join(lines)
