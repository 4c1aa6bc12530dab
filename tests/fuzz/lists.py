"""python -m tests.fuzz.lists FIRST LAST: programs over lists of tensors, which become kernels over lists, against eager.

A program is its seed: a few steps over two lists of some tensors of few or many shapes, contiguous or not, that differ from member to member or do not.
A step maps every tensor, joins the two lists, reduces each tensor, joins all by a number that each has (a norm), writes the second list in place, or does
something else to a few members. Seeds from 100000 on clip inputs in place, in phases; from 200000 on they pass views of what they made; from 300000 on they
pass a number of all, and read it and a rate between writes of them. The schedule is run by the interpreter. Then the program is compiled, as like parts where
it falls apart into such, and run by the interpreter, or, with --native, by built kernels.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import dynacompile
from dynacompile.autograd import alike
from dynacompile.events import StageFinished
from dynacompile.ir.schedule import Launch, Schedule
from tests.lower.tracing import compare, trace

Tensors = list[torch.Tensor]
WIDER = 100000  # from this seed on, programs also write their inputs in place, and clip them by a norm of all
VIEWED = 200000
NUMBERED = 300000
UNARY: tuple[tuple[str, Callable], ...] = (
    ("sin", torch.sin), ("abs", torch.abs), ("times", lambda t: t * 0.75), ("plus", lambda t: t + 1), ("clamp", lambda t: t.clamp(-1, 1)),
    ("mask", lambda t: torch.where(t > 0, t, -2 * t)), ("round trip", lambda t: t.double().to(t.dtype)), ("flip", lambda t: t.flip(0) if t.dim() else t),
    ("own mean", lambda t: t - t.mean()), ("rows", lambda t: t - t.amax(-1, keepdim=True) if t.dim() else t), ("columns", lambda t: t + t.sum(0)),
    ("doubled", lambda t: torch.cat([t, t])[: t.shape[0]] if t.dim() else t),
)  # fmt: skip
VIEWS: tuple[tuple[str, Callable], ...] = (  # of memory that is larger, or lies otherwise
    ("first", lambda t: torch.cat([t, t + 1])[: t.shape[0]] if t.dim() else t), ("last", lambda t: torch.cat([t, t + 1])[t.shape[0] :] if t.dim() else t),
    ("one of two", lambda t: torch.stack([t, t.abs()])[1]), ("transposed", lambda t: (t * 2).t() if t.dim() == 2 and t.shape[0] == t.shape[1] else t + 1),
    ("within", lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2] if t.dim() else t), ("in rows", lambda t: (t - 1).reshape(-1).view(t.shape)),
)  # fmt: skip
BINARY: tuple[tuple[str, Callable], ...] = (
    ("add", torch.add), ("mul", torch.mul), ("lerp", lambda a, b: torch.lerp(a, b, 0.1)), ("choose", lambda a, b: torch.where(a > b, a, b * 0.5)),
    ("addcmul", lambda a, b: torch.addcmul(a, b, b, value=0.1)), ("max", torch.maximum),
)  # fmt: skip
NUMBERS: tuple[tuple[str, Callable], ...] = (
    ("norm", lambda t: t.square().sum()), ("largest", lambda t: t.abs().sum().clamp(max=5.0)), ("mean", lambda t: t.sum() * (1 / max(t.numel(), 1))),
)  # fmt: skip
NUMBER_WRITES: tuple[tuple[str, Callable], ...] = (  # of a rate and of the number of all
    ("rate", lambda rate, number: rate.mul_(0.5)), ("rate through a view", lambda rate, number: rate.view(1).mul_(0.5)),
    ("rate through data", lambda rate, number: rate.data.add_(0.25)), ("rate of a list", lambda rate, number: torch._foreach_mul_([rate, number], 0.5)),
    ("rate by an activation", lambda rate, number: torch.nn.functional.hardtanh(rate, -0.1, 0.1, True)), ("number", lambda rate, number: number.mul_(2.0)),
    ("number as out", lambda rate, number: torch.add(number, 1.0, out=number)), ("number of two", lambda rate, number: torch.add(rate, number, out=number)),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    seed: int
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    dtype: torch.dtype
    steps: tuple[tuple, ...]

    def inputs(self) -> Tensors:
        generator = torch.Generator().manual_seed(self.seed)
        found = []
        for shape, kind in zip(self.shapes * 2, self.kinds * 2, strict=True):
            if kind == "transposed" and len(shape) == 2:
                found.append(torch.randn(shape[::-1], generator=generator, dtype=self.dtype).t())
            elif kind == "sliced" and shape:
                found.append(torch.randn((*shape[:-1], shape[-1] + 3), generator=generator, dtype=self.dtype)[..., 2 : 2 + shape[-1]])
            else:
                found.append(torch.randn(shape, generator=generator, dtype=self.dtype))
        return [*found, torch.full((), 0.75, dtype=self.dtype)] if self.seed >= NUMBERED else found

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        n = len(self.shapes)
        first, second = list(tensors[:n]), list(tensors[n : 2 * n])
        number = rate = tensors[-1]
        kept = list(second)
        results: Tensors = []
        for what, *rest in self.steps:
            match what, rest:
                case "map", (k, odd):
                    first = [UNARY[k + (i in odd) - len(UNARY)][1](t) for i, t in enumerate(first)]
                case "view", (k, odd):
                    first = [VIEWS[k + (i in odd) - len(VIEWS)][1](t) for i, t in enumerate(first)]
                case "join", (k, odd):
                    first = [BINARY[k + (i in odd) - len(BINARY)][1](a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))]
                case "numbers", (k,):
                    results += [NUMBERS[k][1](t) for t in first]
                case "clip", (k,):
                    total = torch.stack([NUMBERS[k][1](t) for t in first]).sum()
                    first = [t * (1 / (1 + total.abs())) for t in first]
                case "clip inputs", (k,):
                    total = torch.stack([NUMBERS[k][1](t) for t in kept]).sum()
                    factor = 1 / (1 + total.abs())
                    for t in kept:
                        t.mul_(factor)
                    results.append(total)
                case "write inputs", (k,):
                    for t in kept[k:]:
                        t.mul_(0.5).add_(0.25)
                case "average inputs", _:
                    torch._foreach_lerp_(kept, list(tensors[:n]), 0.1)
                case "number of all", (k,):
                    number = torch.stack([NUMBERS[k][1](t) for t in first]).sum()
                    copy = number.clone()
                    first = [t * (1 / (1 + copy.abs())) for t in first]
                    number, copy = (copy, number) if k else (number, copy)
                    results.append(copy.expand(2) if k == 2 else copy + 1)
                case "write a number", (k,):
                    NUMBER_WRITES[k][1](rate, number)
                case "by a number", _:
                    factor = 1 / (1 + (number * rate).abs())
                    first = [t * factor for t in first]
                case "swap", _:
                    first, second = second, first
                case _:
                    second = [b * 0.9 + a * 0.1 for a, b in zip(first, second, strict=True)]
        for memory, value in zip(kept, second, strict=True):
            memory.copy_(value)
        return [*first, *results]

    def text(self) -> str:
        return f"{self.shapes} {self.kinds} {self.dtype}\n  " + "\n  ".join(map(str, self.steps))


def generate(seed: int) -> Program:
    r = random.Random(seed)
    count = r.randint(2, 9) if seed < WIDER else r.randint(4, 12)
    pool = [tuple(r.choice((1, 2, 3, 5, 8, 16, 17, 40)) for _ in range(r.choice((0, 1, 1, 1, 2, 2, 3)))) for _ in range(r.randint(1, 5))]
    if r.random() < 0.2:
        pool.append((r.choice((300, 2000, 9000)),))
    shapes = tuple(r.choice(pool) for _ in range(count))
    kinds = tuple(r.choice(("plain", "plain", "plain", "transposed", "sliced")) if r.random() < 0.5 else "plain" for _ in range(count))

    def odd() -> tuple[int, ...]:
        return tuple(sorted(r.sample(range(count), r.randint(1, count)))) if r.random() < 0.3 else ()

    steps: list[tuple] = []
    for _ in range(r.randint(1, 5)):
        what = r.choice(("map", "map", "join", "join", "numbers", "clip", "swap", "update"))
        if VIEWED <= seed < NUMBERED and r.random() < 0.6:
            view = ("view", r.randrange(len(VIEWS)), odd()), ("clip", r.randrange(len(NUMBERS)))
            steps.extend(view[: r.randint(1, 2)])
            continue
        if seed >= NUMBERED and r.random() < 0.8:
            write = ("write a number", r.randrange(len(NUMBER_WRITES)))
            steps += r.choice(([("number of all", r.randrange(len(NUMBERS))), write, ("by a number",)], [write], [("by a number",)], [("write inputs", 1)]))
            continue
        if seed >= WIDER and r.random() < 0.7:
            what = r.choice(("clip inputs", "clip inputs", "write inputs", "average inputs"))
            steps.append((what, r.randrange(len(NUMBERS))) if what != "average inputs" else (what,))
            continue
        argument = {"map": UNARY, "join": BINARY, "numbers": NUMBERS, "clip": NUMBERS}.get(what, ())
        own = (r.randrange(len(argument)),) if argument else ()
        steps.append((what, *own, odd()) if what in ("map", "join") else (what, *own))
    return Program(seed, shapes, kinds, r.choice((torch.float32, torch.float32, torch.float64)), tuple(steps))


def scheduled(program: Program) -> Schedule:
    """The program's schedule; its interpreted results, and what it leaves in its inputs, are eager's."""
    inputs = program.inputs()
    return compare(trace(program, inputs), inputs, rtol=1e-4, atol=1e-4)


def check_compiled(program: Program, native: bool = False) -> int:
    """The same of the compiled program. Gives how many parts occur again."""
    wanted, given = program.inputs(), program.inputs()
    dynacompile.reset()
    compiled = dynacompile.compile(lambda ts: program(*ts), isolate_recompiles=True, options={"fallback": "none", "reference": not native})
    events: list = []
    end = dynacompile.subscribe(events.append)
    before, alike.WORTH = alike.WORTH, 1
    try:
        for _ in range(2):
            torch.testing.assert_close(compiled(given), program(*wanted), rtol=1e-3, atol=1e-3, equal_nan=True)
            torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3, equal_nan=True)
    finally:
        alike.WORTH = before
        end()
    facts = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "lower"]
    return sum(f.get("copies", 0) - f.get("parts", 0) for f in facts)


def lists_of(plan: Schedule) -> Sequence[int]:
    return [len(s.sizes) for s in plan.steps if isinstance(s, Launch) and s.sizes]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.lists", description="Compare programs over lists of tensors, scheduled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="compile with built kernels")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, copies, members = 0, 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            members.update(lists_of(scheduled(program)))
            copies += check_compiled(program, given.native)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:400]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; {copies} copies of parts; lists by their members: {dict(sorted(members.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
