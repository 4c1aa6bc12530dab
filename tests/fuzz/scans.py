"""python -m tests.fuzz.scans FIRST LAST: scans with random producers, consumers and gradients, against eager and float64; no GPU is needed.

A program is its seed: a chain of pointwise operations, flips, scans of every kind along any dimension, reductions and joins, over tensors of any dtype and
layout, whose results are kept, and mostly differentiated. It is scheduled as for a GPU, and the schedule run by the interpreter; with --triton, the text of
its kernels by Triton's; with --native, it is compiled for the CPU. All must be as near to float64 as eager is, and equal where numbers are exact.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import dynacompile
from dynacompile.codegen.reference import run_schedule
from dynacompile.codegen.triton import emit_kernel
from dynacompile.ir.index import evaluated
from dynacompile.ir.loops import root
from dynacompile.ir.schedule import Launch, Schedule
from dynacompile.ops import scans
from tests.codegen.interpreted import interpret
from tests.codegen.product_cases import ENV, on_cpu, plan_on_gpu

EXACT: tuple[Callable, ...] = (torch.neg, torch.abs, torch.relu, lambda y: y * 0.5, lambda y: torch.where(y > 0, y, -1.0), lambda y: y.clamp(-2, 3))
ROUNDED: tuple[Callable, ...] = (torch.sin, torch.tanh, torch.sigmoid, lambda y: y * 0.37 + 0.1, lambda y: (y * 0.3).exp())
SCANS: dict[str, Callable] = {
    "sum": lambda of, y, d: y.cumsum(d) * 0.1,
    "sum of float64": lambda of, y, d: y.cumsum(d, dtype=torch.float64).to(y.dtype) * 0.1,
    "prod": lambda of, y, d: of.cumprod(1 + 0.02 * y.sin(), d),
    "prod with zeros": lambda of, y, d: of.cumprod(torch.where(y == 0.5, 0.0, 1 + 0.02 * y.sin()), d),
    "logsumexp": lambda of, y, d: y.logcumsumexp(d),
    "count": lambda of, y, d: (y > 0).cumsum(d).to(y.dtype) * 0.125,
    "from the end": lambda of, y, d: y.flip(d).cumsum(d).flip(d) * 0.1,
    "logsumexp from the end": lambda of, y, d: y.flip(d).logcumsumexp(d).flip(d),
}  # fmt: skip
STEPWISE = ("count", "prod with zeros")  # of rounded numbers another count is as good
EXTREMA = ("cummax", "cummin")
SHORT, LONG = (1, 2, 3, 5, 7, 8, 16, 17, 33, 40, 64, 100), (1000, 1024, 1500, 4100)
DTYPES = (torch.float32,) * 4 + (torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("plain", "plain", "turned", "sliced", "expanded")


@dataclass(frozen=True)
class Program:
    """steps: of the chain, each a kind and its choices. special: infinities and NaN are among the numbers."""

    seed: int
    size: tuple[int, ...]
    dtype: torch.dtype
    layouts: tuple[str, str]
    steps: tuple[tuple, ...]
    special: bool
    differentiated: bool

    def inputs(self) -> list[torch.Tensor]:
        """Two tensors, and what gradients start from. Their numbers are quarters, which the exact steps keep."""
        generator = torch.Generator().manual_seed(self.seed)

        def made(layout: str) -> torch.Tensor:
            size = self.size
            if layout == "turned":
                return filled(size[::-1]).permute(*range(len(size))[::-1])
            if layout == "sliced":
                return filled((*size[:-1], size[-1] + 3))[..., 3:]
            if layout == "expanded":
                return filled((1, *size[1:])).expand(size)
            return filled(size)

        def filled(size: Sequence[int]) -> torch.Tensor:
            values = torch.randint(-12, 13, tuple(size), generator=generator) / 4
            if self.special:
                places = torch.rand(tuple(size), generator=generator)
                for i, value in enumerate((float("inf"), -float("inf"), float("nan"), -0.0)):
                    values[(places > i * 0.01) & (places < i * 0.01 + 0.01)] = value
            return values.to(self.dtype)

        return [*(made(layout) for layout in self.layouts), torch.randn(self.size, generator=generator).to(self.dtype)]

    def forward(self, a: torch.Tensor, b: torch.Tensor, of: object = torch) -> list[torch.Tensor]:
        """The results. of: what has the functions whose gradients are ours in graphs."""
        kept: list[torch.Tensor] = []
        y = a
        for what, *rest in self.steps:
            match what:
                case "exact":
                    y = EXACT[rest[0]](y)
                case "rounded":
                    y = ROUNDED[rest[0]](y)
                case "join":
                    y = y + b if rest[0] else torch.maximum(y, b)
                case "flip":
                    y = y.flip(rest[0])
                case "scan":
                    y = SCANS[rest[0]](of, y, rest[1])
                case "extremum":
                    y, places = getattr(of, rest[0])(y, rest[1])
                    kept += [places] if rest[2] else []
                case "center":
                    y = y - y.mean(rest[0], keepdim=True)
                case "scale":
                    y = y / (1 + y.square().mean(rest[0], keepdim=True))
                case "keep":
                    kept.append(y)
                case "total":
                    kept.append(y.sum(rest[0]))
        return [y, *kept]

    @torch.enable_grad()
    def __call__(self, *tensors: torch.Tensor, of: object = torch, forward: Callable | None = None) -> list[torch.Tensor]:
        """The results, and gradients of the two tensors. forward: what gives the results, else `self.forward`."""
        a, b, tangent = tensors
        if self.differentiated:
            a, b = (t.detach().requires_grad_() for t in (a, b))
        results = forward(a, b) if forward is not None else self.forward(a, b, of)
        if not self.differentiated:
            return results
        floats = [t for t in results if t.requires_grad]
        start = [tangent if t.shape == tangent.shape else tangent.sum().expand(t.shape) for t in floats]
        starts = [s.to(t.dtype) for s, t in zip(start, floats, strict=True)]
        grads = torch.autograd.grad(floats, [a, b], starts, allow_unused=True) if floats else ()
        return [*(t.detach() for t in results), *(g for g in grads if g is not None)]

    def text(self) -> str:
        flags = f"{' special' if self.special else ''}{' with gradients' if self.differentiated else ''}"
        return f"{self.size} {self.dtype} {self.layouts}{flags}\n  " + "\n  ".join(map(str, self.steps))


def generate(seed: int) -> Program:
    r = random.Random(seed)
    rank = r.choice((1, 2, 2, 2, 3))
    size = [r.choice(SHORT) for _ in range(rank)]
    if r.random() < 0.3:
        size = [min(n, 8) for n in size]
        size[r.randrange(rank)] = r.choice(LONG)
    if r.random() < 0.03:
        size[r.randrange(rank)] = 0
    steps: list[tuple] = []
    dtype = r.choice(DTYPES)
    exact, scanned = True, 0
    count = r.randint(2, 7)
    while len(steps) < count or not scanned:
        d = r.randrange(rank)
        what = r.choice(("exact", "rounded", "join", "flip", "scan", "scan", "extremum", "extremum", "center", "scale", "keep", "total"))
        if what == "extremum" and not exact:  # of rounded numbers the greatest may be another one
            continue
        was_exact = exact
        exact = exact and what not in ("rounded", "scan", "center", "scale")
        scanned += what in ("scan", "extremum")
        choices: dict[str, tuple] = {
            "exact": (r.randrange(len(EXACT)) if exact else r.choice((0, 3)),), "rounded": (r.randrange(len(ROUNDED)),),
            "join": (r.random() < 0.5 and not exact,), "keep": (),
            "scan": (r.choice([name for name in SCANS if was_exact or name not in STEPWISE]), d), "extremum": (r.choice(EXTREMA), d, r.random() < 0.5),
        }  # fmt: skip
        steps.append((what, *choices.get(what, (d,))))
    special = r.random() < 0.15
    return Program(seed, tuple(size), dtype, (r.choice(LAYOUTS), r.choice(LAYOUTS)), tuple(steps), special, not special and r.random() < 0.6)


def judge(program: Program, got: Sequence[torch.Tensor | None]) -> None:
    """Raises AssertionError where a result is further from float64 than eager's rounding explains, or not where eager's is infinite or NaN."""
    inputs = program.inputs()
    for i, (ours, eager, exact) in enumerate(zip(got, program(*inputs), program(*(t.double() for t in inputs)), strict=True)):
        assert ours is not None and ours.shape == eager.shape and ours.dtype == eager.dtype, (i, ours, eager)
        if not eager.is_floating_point():
            assert torch.equal(ours, eager), f"result {i}: {int((ours != eager).sum())} of {ours.numel()} differ"
            continue
        odd = ~eager.isfinite()
        if program.dtype == torch.float16 and not program.special:  # numbers between operations leave its range in eager alone
            odd &= ~ours.isfinite()
        assert torch.equal(ours[odd].nan_to_num(), eager[odd].nan_to_num()) and ours[~odd].isfinite().all(), f"result {i}: other infinities"
        if odd.all():
            continue
        exact = torch.where(odd | ~exact.isfinite(), 0.0, exact)
        eager = torch.where(eager.isfinite(), eager.double(), exact)
        ours, eager = (torch.where(odd, 0.0, t.double()) for t in (ours, eager))
        allowed = 8 * (eager - exact).abs().max().item() + torch.finfo(program.dtype).eps * (
            16 * exact.abs().max().item() + 64 + max(program.size)
        )  # where large numbers cancel
        worst = (ours - exact).abs().max().item()
        assert worst <= allowed, f"result {i} is off by {worst}, {allowed} is allowed"


def planned(program: Program) -> Schedule:
    return plan_on_gpu(lambda *tensors: program(*tensors, of=scans), tuple(program.inputs()), ENV, None)


def interpreted(program: Program) -> Schedule:
    """Runs the schedule for a GPU by the interpreter."""
    plan = planned(program)
    judge(program, run_schedule(on_cpu(plan), program.inputs()))
    return plan


def native(program: Program) -> None:
    """Runs the program compiled for the CPU."""
    compiled = dynacompile.compile(lambda a, b: program.forward(a, b), isolate_recompiles=True, fullgraph=True)
    judge(program, program(*program.inputs(), forward=compiled))


def triton_jobs(plan: Schedule, inputs: Sequence[torch.Tensor], seed: int) -> tuple[list[tuple], dict[str, torch.Tensor]]:
    """What Triton's interpreter runs of a program, one kernel after the other, and the buffers' memory; nothing where it calls ATen."""
    memory: dict[str, torch.Tensor] = {}
    for name, tensor in zip(plan.inputs, inputs, strict=True):
        if name is not None:
            length = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
            memory[name] = tensor.as_strided((length,), (1,)).clone()
    for name, buffer in plan.buffers.items():
        if buffer.base is None and name not in memory:
            memory[name] = (
                plan.constants[name].reshape(-1).clone() if name in plan.constants else torch.zeros(evaluated(buffer.storage_elements, {}), dtype=buffer.dtype)
            )
    jobs = []
    for step in plan.steps:
        if not isinstance(step, Launch):
            continue
        source = emit_kernel(plan.kernels[step.kernel], ENV)
        choice = seed % len(source.candidates)
        tensors = [memory[root(plan.buffers, b)] for b in step.buffers]
        jobs.append((source.text, source.entry, dict(source.candidates[choice].blocks), tuple(int(n) for n in source.grids[choice]), tensors))
    return jobs, memory


def by_triton(programs: Sequence[Program]) -> int:
    """Runs the text of those that are kernels alone, in one process. How many those are."""
    batch: list[tuple[Program, Schedule, list[tuple], dict[str, torch.Tensor]]] = []
    for program in programs:
        plan = planned(program)
        if not plan.facts()["externs"] and not any(isinstance(s, Launch) and s.sizes for s in plan.steps):
            batch.append((program, plan, *triton_jobs(plan, program.inputs(), program.seed)))
    with tempfile.TemporaryDirectory() as folder:
        found = iter(interpret([job for _, _, jobs, _ in batch for job in jobs], Path(folder), timeout=3600))
    for program, plan, jobs, memory in batch:
        launches = [s for s in plan.steps if isinstance(s, Launch)]
        for launch, _ in zip(launches, jobs, strict=True):
            memory.update({root(plan.buffers, b): t for b, t in zip(launch.buffers, next(found), strict=True)})
        buffers = [plan.buffers[o] for o in plan.outputs if o is not None]
        outputs = [memory[root(plan.buffers, b.name)].as_strided(b.size, b.stride, b.offset) for b in buffers]
        try:
            judge(program, outputs)
        except AssertionError as error:
            raise AssertionError(f"seed {program.seed}: {program.text()}\n{error}") from error
    return len(batch)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.scans", description="Compare scans and what is around them with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--triton", action="store_true", help="run the kernels' text by Triton's interpreter")
    parser.add_argument("--native", action="store_true", help="compile for the CPU")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    if given.triton:
        count = sum(by_triton([generate(s) for s in range(first, min(first + 40, given.last))]) for first in range(given.first, given.last, 40))
        print(f"{given.last - given.first} programs, {count} of them kernels alone, none differs")
        return 0
    failed = launches = externs = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            if given.native:
                native(program)
            else:
                facts = interpreted(program).facts()
                launches, externs = launches + facts["launches"], externs + facts["externs"]
        except Exception as error:  # noqa: BLE001 a fuzzer tells of every failure, and goes on
            failed += 1
            print(f"seed {seed}: {program.text()}\n{type(error).__name__}: {str(error)[:600]}", flush=True)
    print(f"{given.last - given.first} programs, {failed} failed, {launches} kernels, {externs} calls of ATen")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
