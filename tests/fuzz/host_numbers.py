"""python -m tests.fuzz.host_numbers FIRST LAST: programs for a GPU that compute with numbers on the CPU, against eager. They need no GPU.

A program is its seed: some tensors, which its graph has on a GPU, some numbers and a small vector, which it has on the CPU, and steps that combine numbers,
elements of the vector, tensors with numbers, lists of tensors with a number for each, and sums of tensors with numbers. At the end it writes some of its
inputs. The graph is traced on the CPU and gets its devices afterwards. The loop program is interpreted, and so is its schedule, with both arenas in one.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.ir.schedule import Launch, Place, Schedule
from tests.lower.tracing import check_same, copies, stages, trace

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
COMBINED = (
    torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: torch.where(a > b, a, b), lambda a, b: a / (b * b + 1), lambda a, b: (a == b).float() + a,
)  # fmt: skip
CHANGED = (lambda a: a + 1, lambda a: a * 0.5, lambda a: a.double(), lambda a: (a * a + 1).sqrt(), lambda a: 0.9 ** (a.abs() + 1), torch.neg, torch.sigmoid)


@dataclass(frozen=True)
class Program:
    seed: int
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    steps: tuple[tuple, ...]
    written: tuple[bool, ...]

    def inputs(self) -> list[torch.Tensor]:
        """The tensors, the numbers, the vector."""
        generator = torch.Generator().manual_seed(self.seed)
        tensors = [torch.randn(size, generator=generator) for size in self.sizes]
        return [*tensors, *(torch.randn((), generator=generator).mul(3).to(d) for d in self.dtypes), torch.randn(4, generator=generator)]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        count = len(self.sizes)
        tensors, numbers, vector = list(inputs[:count]), list(inputs[count:-1]), inputs[-1]
        for what, i, j, k in self.steps:
            a, b = numbers[i % len(numbers)], numbers[j % len(numbers)]
            b = b if b.dtype != torch.bool else b.int()
            match what:
                case "combine":
                    numbers.append(COMBINED[k % len(COMBINED)](a.float(), b))
                case "change":
                    numbers.append(CHANGED[k % len(CHANGED)](a if a.dtype != torch.bool else a.float()))
                case "element":
                    numbers.append(vector[k % 4] + a)
                case "scale":
                    tensors[i % count] = COMBINED[k % len(COMBINED)](tensors[i % count], b)
                case "each":
                    tensors = [COMBINED[k % 2](t, numbers[(j + n) % len(numbers)]) for n, t in enumerate(tensors)]
                case "sum":
                    tensors[i % count] = tensors[i % count] - tensors[j % count].sum() * b
                case _:
                    tensors[i % count] = tensors[i % count] * vector[k % 4]
        results = [*tensors, *numbers[len(self.dtypes) :]]
        for memory, value, written in zip(inputs, [*tensors, *reversed(numbers)], self.written):
            if written and value.dim() <= memory.dim():
                memory.copy_(value)
        return results

    def text(self) -> str:
        return f"{self.sizes} {self.dtypes} written {self.written}\n  " + "\n  ".join(map(str, self.steps))


def generate(seed: int) -> Program:
    r = random.Random(seed)
    sizes = tuple(r.choice(((5,), (3, 4), (40,), (), (7, 1), (300,))) for _ in range(r.randint(1, 5)))
    dtypes = tuple(r.choice(DTYPES) for _ in range(r.randint(1, 5)))
    kinds = ("combine", "change", "change", "element", "scale", "each", "each", "sum", "part")
    steps = tuple((r.choice(kinds), r.randrange(12), r.randrange(12), r.randrange(12)) for _ in range(r.randint(2, 9)))
    return Program(seed, sizes, dtypes, steps, tuple(r.random() < 0.4 for _ in range(len(sizes) + len(dtypes))))


class Placement(torch.fx.Interpreter):
    """Gives the nodes fakes on the devices that follow from their inputs'."""

    def run_node(self, n: torch.fx.Node) -> object:
        n.meta["val"] = result = super().run_node(n)
        return result


def placed(graph: torch.fx.GraphModule, count: int) -> torch.fx.GraphModule:
    """The graph with its first inputs on a GPU."""
    fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    mode = FakeTensorMode(static_shapes=True, allow_non_fake_inputs=True)
    with mode, torch._C._AutoDispatchBelowAutograd():
        given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda:0" if i < count else "cpu") for i, t in enumerate(fakes)]
        Placement(graph).run(*given)
    return graph


def on_the_cpu(plan: Schedule) -> Schedule:
    """The schedule with all of its memory on the CPU, the arena of its temps there behind the other one."""
    here = {n for n, b in plan.buffers.items() if b.device == CPU and plan.device != CPU}
    steps = tuple(replace(s, offset=s.offset + plan.arena) if isinstance(s, Place) and s.buffer in here else s for s in plan.steps)
    buffers = {n: replace(b, device=CPU) for n, b in plan.buffers.items()}
    return replace(plan, steps=steps, buffers=buffers, arena=plan.arena + plan.host_arena, host_arena=0, device=CPU)


def check(program: Program) -> Counter:
    """Raises where results or written inputs differ. Gives how many launches and calls there are on each device."""
    inputs = program.inputs()
    loops, plan = stages(placed(trace(program, inputs), len(program.sizes)))
    wanted = copies(inputs)
    with torch.no_grad():
        eager = program(*wanted)
    moved = replace(loops, buffers={n: replace(b, device=CPU) for n, b in loops.buffers.items()})
    for level, run in (("program", lambda given: run_program(moved, given)), ("schedule", lambda given: run_schedule(on_the_cpu(plan), given))):
        given = copies(inputs)
        check_same(run(given), eager, level, {"rtol": 1e-3, "atol": 1e-3})
        check_same(given, wanted, level + ", inputs", {"rtol": 1e-3, "atol": 1e-3})
    return Counter(plan.kernels[s.kernel].device.type if isinstance(s, Launch) else "calls" for s in plan.steps if isinstance(s, Launch) or hasattr(s, "op"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.host_numbers", description="Compare programs with numbers on the CPU beside a GPU with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            counts += check(program)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:400]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; {dict(counts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
