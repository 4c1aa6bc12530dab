"""python -m tests.fuzz.products FIRST LAST: products of matrices with random epilogues as one kernel, against eager; no GPU is needed.

A program is its seed: one product or several, of operands of half precision in some layout, whose results go through a chain of pointwise operations with
vectors, matrices and each other, are kept, reshaped, transposed, cut or summed. It is scheduled as for a GPU, and every product that can be one kernel
with its reader is. The schedule is run by the interpreter; with --triton, the text of its kernels by Triton's, with pointers or with descriptors of
tensors. Both must be as near to float64 as eager is.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F

from dynacompile.codegen.reference import run_schedule
from dynacompile.codegen.triton.products import BLOCKS
from dynacompile.events import ProductDecided
from dynacompile.ir.schedule import Launch, Schedule
from tests.codegen.interpreted import interpret
from tests.codegen.product_cases import ENV, always, multiplied, on_cpu, plan_on_gpu, with_copies

UNARY: tuple[Callable, ...] = (
    torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.neg, torch.abs, lambda y: F.gelu(y, approximate="tanh"), lambda y: y * 0.37, lambda y: y + 1.5,
    lambda y: y.clamp(-2, 3), lambda y: torch.where(y > 0, y, -0.2 * y), lambda y: y * torch.sigmoid(1.7 * y),
)  # fmt: skip
BINARY: tuple[Callable, ...] = (torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a * 0.9 + b * 0.1)
SHAPES = ("whole", "rows", "columns", "transposed", "number", "product")
EXTENTS = (64, 72, 80, 96, 100, 128, 65, 67, 130)
TILES = ((32, 32, 32, 2, 0, 1, 0), (64, 32, 16, 3, 3, 2, 0), (32, 64, 32, 2, 0, 1, 1), (32, 64, 16, 2, 5, 4, 1))


@dataclass(frozen=True)
class Program:
    """products: for each its operands' layouts, how it is written, and whether it has the operand on the left of the first one. steps: of the chain. batch: how
    many matrices each operand has; 0: they are matrices. factors: alpha and beta of sums. precision: torch's setting for float32."""

    seed: int
    extents: tuple[int, int, int]
    dtype: torch.dtype
    products: tuple[tuple[str, str, str, bool], ...]
    steps: tuple[tuple, ...]
    end: str
    precise: bool
    batch: int
    factors: tuple[float, float]
    precision: str

    def inputs(self) -> list[torch.Tensor]:
        """Of each product the left operand, the right one and what is added; then of each step what it joins."""
        generator = torch.Generator().manual_seed(self.seed)
        m, n, k = self.extents

        def made(rows: int, columns: int, layout: str = "plain") -> torch.Tensor:
            count = (self.batch,) if self.batch else ()
            if layout == "turned":
                return (torch.randn(*count, columns, rows, generator=generator) * 0.3).to(self.dtype).mT
            if layout == "sliced":
                return (torch.randn(*count, rows, columns + 8, generator=generator) * 0.3).to(self.dtype)[..., 8:]
            if layout == "heads" and count:  # side by side
                return (torch.randn(rows, *count, columns, generator=generator) * 0.3).to(self.dtype).transpose(0, 1)
            found = (torch.randn(rows, columns, generator=generator) * 0.3).to(self.dtype) if layout == "same" or not count else None
            return torch.randn(*count, rows, columns, generator=generator).mul(0.3).to(self.dtype) if found is None else found.expand(*count, rows, columns)

        found = []
        for left, right, form, _ in self.products:
            sizes = {"added": (m, n, "plain"), "column": (m, 1, "same"), "row": (1, n, "same")}
            added = made(*sizes[form]) if form in sizes else made(1, n) if self.batch else made(1, n)[0]
            found += [made(m, k, left), made(k, n, right), added]
        for what, *rest in self.steps:
            shape = rest[1] if what == "join" else "number"
            size = {"whole": (m, n), "transposed": (n, m), "rows": (m, 1), "columns": (1, n)}.get(shape, (1, 1))
            found.append(made(*size).mT if shape == "transposed" else made(*size))
        return found

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        results, given = [], iter(tensors)
        first = None
        for _, _, form, shared in self.products:
            a, b, c = next(given), next(given), next(given)
            first = a if first is None else first
            a = first if shared else a
            alpha, beta = self.factors
            if form == "plain":
                results.append(torch.bmm(a, b) if self.batch else a @ b)
            else:
                results.append(torch.baddbmm(c, a, b, beta=beta, alpha=alpha) if self.batch else torch.addmm(c, a, b, beta=beta, alpha=alpha))
        y, *others = results
        kept = []
        for what, *rest in self.steps:
            joined = next(given)
            match what:
                case "map":
                    y = UNARY[rest[0]](y)
                case "join":
                    other = others.pop(0) if rest[1] == "product" and others else joined.flatten()[0] * 0.5 if rest[1] in ("number", "product") else joined
                    y = BINARY[rest[0]](y, other)
                case "keep":
                    kept.append(y)
        return [self.ended(y), *kept, *others]

    def ended(self, y: torch.Tensor) -> torch.Tensor:
        match self.end:
            case "heads":
                return y.unflatten(-1, (2, -1)).transpose(-3, -2).contiguous() if y.shape[-1] % 2 == 0 else y
            case "side by side":
                return y.transpose(0, 1).contiguous()
            case "transposed":
                return y.mT.contiguous() * 0.5
            case "part":
                return y[..., 3:, 5:] * 2
            case "sum":
                return y.sum(0)
            case _:
                return y

    def text(self) -> str:
        return (
            f"{self.batch} of {self.extents} {self.dtype} {self.precision} {self.factors} {'precise ' if self.precise else ''}{self.end}\n  {self.products}\n  "
            + "\n  ".join(map(str, self.steps))
        )


def generate(seed: int) -> Program:
    r = random.Random(seed)
    batch = r.choice((0, 0, 0, 2, 3))
    layouts = ("plain", "turned", "plain", "turned", "sliced", *(("heads", "same") if batch else ()))
    count = r.choice((1, 1, 1, 2, 2, 3))
    products = tuple(
        (r.choice(layouts), r.choice(layouts), r.choice(("plain", "plain", "plain", "bias", "bias", "added", "column", "row")), r.random() < 0.7)
        for _ in range(count)
    )
    steps: list[tuple] = []
    for _ in range(r.randint(1, 6)):
        what = r.choice(("map", "map", "join", "join", "keep"))
        steps.append((what, r.randrange(len(UNARY))) if what == "map" else (what, r.randrange(len(BINARY)), r.choice(SHAPES)) if what == "join" else (what,))
    extents = tuple(r.choice(EXTENTS) for _ in range(3))
    end = r.choice(("", "", "", "", "heads", "side by side", "transposed", "part", "sum"))
    dtype, precise = r.choice((torch.bfloat16, torch.float16, torch.bfloat16, torch.float16, torch.float32)), r.random() < 0.15
    factors = r.choice(((1.0, 1.0), (1.0, 1.0), (0.125, 1.0), (1.0, -0.5), (2.0, 0.0)))
    extents = (min(extents), *extents[1:]) if batch else extents
    return Program(seed, extents, dtype, products, tuple(steps), end, precise, batch, factors, r.choice(("none", "tf32")))  # type: ignore[arg-type]


def planned(program: Program) -> tuple[Schedule, list[ProductDecided]]:
    events: list = []
    env = ENV.with_config(precise=program.precise)
    with multiplied(program.precision):
        plan = plan_on_gpu(program, tuple(program.inputs()), replace(env, emit=events.append), always)
    return plan, [e for e in events if isinstance(e, ProductDecided)]


def judge(program: Program, got: Sequence[torch.Tensor | None]) -> None:
    """Raises AssertionError where a result is further from float64 than eager's rounding explains."""
    inputs = program.inputs()
    for i, (ours, eager, exact) in enumerate(zip(got, program(*inputs), program(*(t.double() for t in inputs)), strict=True)):
        assert ours is not None and ours.shape == eager.shape and ours.stride() == eager.stride() and ours.dtype == eager.dtype, (i, ours, eager)
        largest = exact.abs().max().item()
        allowed = 2 * (eager.double() - exact).abs().max().item() + 2 * torch.finfo(program.dtype).eps * largest
        worst = (ours.double() - exact).abs().max().item()
        assert worst <= allowed, f"result {i} is off by {worst}, {allowed} is allowed"


def interpreted(program: Program) -> Counter:
    """Runs the schedule. What was decided, by reason."""
    plan, told = planned(program)
    with torch.no_grad():
        judge(program, run_schedule(on_cpu(plan), program.inputs()))
    return Counter(e.reason for e in told)


def triton_jobs(program: Program) -> list[tuple]:
    """What Triton's interpreter runs of a program that is one kernel: none else."""
    plan, _ = planned(program)
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    if len(launches) != 1 or plan.facts()["externs"] or not plan.kernels[launches[0].kernel].nest.is_product:
        return []
    (launch,) = launches
    source = with_copies(plan.kernels[launch.kernel])
    narrow = "add_product_ieee" in source.text  # candidates of which take 16 numbers of the sum at a time, so that masks are for those
    blocks = dict(zip(BLOCKS, TILES[1 if narrow else program.seed % len(TILES)], strict=True))
    if blocks["TMA"] and "_desc" not in source.text:
        blocks["TMA"] = 0
    batch, *sizes = (prod(a.size for a in source.kernel.nest.x_axes if a.var.name[0] == dim) for dim in "bmn")
    tiles = batch * prod(-(-n // blocks[b]) for n, b in zip(sizes, ("MBLOCK", "NBLOCK"), strict=True))
    given = dict(zip(plan.inputs, program.inputs(), strict=True))
    tensors = [memory(plan, b, given) for b, p in zip(launch.buffers, source.kernel.params, strict=True) if p.mode != "scratch"]
    return [(source.text, source.entry, blocks, (blocks["PROGRAMS"] or tiles, 1, 1), tensors)]


def memory(plan: Schedule, name: str, given: dict) -> torch.Tensor:
    """A buffer's memory from its first element on."""
    if name in given:
        tensor = given[name]
        return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset(),), (1,)).clone()
    return torch.full((plan.buffers[name].storage_elements,), float("nan"), dtype=plan.buffers[name].dtype)


def by_triton(programs: Sequence[Program]) -> int:
    """Runs the text of those that are one kernel, in one process. How many those are."""
    jobs = [(program, job) for program in programs for job in triton_jobs(program)]
    with tempfile.TemporaryDirectory() as folder:
        found = interpret([job for _, job in jobs], Path(folder), timeout=1200)
    for (program, _), got in zip(jobs, found, strict=True):
        plan, _ = planned(program)
        (launch,) = [s for s in plan.steps if isinstance(s, Launch)]
        outputs = [got[launch.buffers.index(o)].as_strided(plan.buffers[o].size, plan.buffers[o].stride) for o in plan.outputs if o is not None]
        try:
            judge(program, outputs)
        except AssertionError as error:
            raise AssertionError(f"seed {program.seed}: {program.text()}\n{error}") from error
    return len(jobs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.products", description="Compare products with epilogues as one kernel with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--triton", action="store_true", help="run the kernels' text by Triton's interpreter")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    if given.triton:
        count = sum(by_triton([generate(s) for s in range(first, min(first + 40, given.last))]) for first in range(given.first, given.last, 40))
        print(f"{given.last - given.first} programs, {count} of them one kernel, none differs")
        return 0
    failed, reasons = 0, Counter[str]()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            reasons += interpreted(program)
        except Exception as error:  # noqa: BLE001 a fuzzer tells of every failure, and goes on
            failed += 1
            print(f"seed {seed}: {program.text()}\n{type(error).__name__}: {error}", flush=True)
    print(f"{given.last - given.first} programs, {failed} failed; " + ", ".join(f"{n} times: {reason}" for reason, n in reasons.most_common()))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
