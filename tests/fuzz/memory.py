"""python -m tests.fuzz.memory FIRST LAST: memory that is given up and used again in the backward, against eager.

A program is its seed: a few products, maps, normalisations and joins of matrices of one size; some of the results are returned, as they are, as views, or
detached. Its schedules take every buffer for a large one, so whatever dies is freed or written over. The backward comes from some of the results, and is asked for
once, or twice with a graph that is retained; hooks on saved tensors are there or not. What is compared: results before the backward and after it, which nobody may have
written, gradients, errors of one backward more, and all of it in a second call. Kernels are interpreted, or, with --native, built.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.schedule import memory

SIZE = 6
MAPS: tuple[Callable, ...] = (
    torch.tanh, torch.sigmoid, torch.sin, lambda t: t * 0.5, lambda t: t + 1, lambda t: t.softmax(-1), lambda t: F.layer_norm(t, (SIZE,)), torch.exp,
    lambda t: t.square(), lambda t: t.t(), lambda t: t - t.mean(0), lambda t: t.flip(0), lambda t: F.gelu(t), lambda t: t.cumsum(0), lambda t: t.log_softmax(0),
    lambda t: t.double().float(), lambda t: t.view(2, SIZE // 2, SIZE).sum(1).repeat(SIZE // 2, 1), lambda t: torch.cat([t[3:], t[:3]]),
)  # fmt: skip
JOINS: tuple[Callable, ...] = (torch.mm, torch.add, torch.mul, lambda a, b: a @ b.t(), torch.maximum, lambda a, b: torch.where(a > b, a, b * 0.5))
RETURNS: tuple[Callable, ...] = (lambda t: t, lambda t: t, lambda t: t.sum(), lambda t: t[1:], lambda t: t.t(), lambda t: t.detach(), lambda t: t.mean(0))


@dataclass(frozen=True)
class Program:
    """steps: (a map or a join, the values that it takes), by their numbers: the inputs come first. returned: (how, which value)."""

    seed: int
    inputs: int
    steps: tuple[tuple[Callable, tuple[int, ...]], ...]
    returned: tuple[tuple[Callable, int], ...]
    retain: bool
    hooks: str

    def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(given)
        for what, operands in self.steps:
            values.append(what(*(values[i] for i in operands)))
        return tuple(how(values[i]) for how, i in self.returned)


def generate(seed: int) -> Program:
    choose = random.Random(seed)
    inputs = choose.randint(1, 3)
    steps: list[tuple[Callable, tuple[int, ...]]] = []
    for _ in range(choose.randint(2, 9)):
        known = inputs + len(steps)
        operand = choose.choice([known - 1, known - 1, choose.randrange(known)])
        if choose.random() < 0.4:
            steps.append((choose.choice(JOINS), (operand, choose.randrange(known))))
        else:
            steps.append((choose.choice(MAPS), (operand,)))
    known = inputs + len(steps)
    returned = [(choose.choice(RETURNS), choose.randrange(inputs, known)) for _ in range(choose.randint(0, 3))]
    returned.append((choose.choice(RETURNS[:4]), known - 1))
    hooks = choose.choice(["none", "none", "none", "same", "kept", "moved"])
    return Program(seed, inputs, tuple(steps), tuple(returned), choose.random() < 0.25, hooks)


def hooks_of(kind: str, kept: list[torch.Tensor]):
    if kind == "none":
        return nullcontext()
    if kind == "moved":
        return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy)

    def pack(t: torch.Tensor) -> torch.Tensor:
        if kind == "kept":
            kept.append(t.detach())
        return t

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)


def answers(program: Program, function: Callable) -> list:
    """All that one call and its backward passes give, None where there is no gradient."""
    generator = torch.Generator().manual_seed(program.seed)
    args = [torch.randn(SIZE, SIZE, generator=generator).mul_(0.7).requires_grad_() for _ in range(program.inputs)]
    kept: list[torch.Tensor] = []
    with hooks_of(program.hooks, kept):
        results = function(*args)
    found: list = [r.detach().clone() for r in results]
    copies = [t.clone() for t in kept]
    ends = [r for r in results if r.requires_grad]
    tangents = [torch.randn(r.shape, generator=generator) for r in ends]
    before = [t.clone() for t in tangents]
    for retain in (True, False, False) if program.retain else (False, False):
        try:
            found += torch.autograd.grad(ends, args, tangents, retain_graph=retain, allow_unused=True) if ends else []
        except RuntimeError as error:
            found.append("a second time" if "a second time" in str(error) else str(error))
    found += [r.detach().clone() for r in results]
    found.append(all(torch.equal(a, b) for a, b in zip(copies, kept, strict=True)) or "a saved tensor that a hook keeps was written")
    found.append(all(torch.equal(a, b) for a, b in zip(before, tangents, strict=True)) or "a tangent was written")
    return found


def differs(expected: object, got: object) -> bool:
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return not torch.allclose(expected, got, rtol=1e-3, atol=1e-4, equal_nan=True)
    return type(expected) is not type(got) or expected != got


@contextmanager
def all_large() -> Iterator[None]:
    """Every buffer is worth an allocation of its own."""
    before = memory.LARGE
    memory.LARGE = 1
    try:
        yield
    finally:
        memory.LARGE = before


def difference(program: Program, native: bool = False) -> str:
    """What the compiled program does not do as eager does; empty where it does all."""
    expected = answers(program, program)
    with all_large():
        compiled = dynacompile.compile(lambda *args: program(*args), isolate_recompiles=True, options={} if native else {"reference": True})
        for call in ("first", "second"):
            got = answers(program, compiled)
            for n, (e, g) in enumerate(zip(expected, got, strict=True)):
                if differs(e, g):
                    return f"{call} call, answer {n}: {g} and not {e}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.memory", description="Compare programs whose memory is used again with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="build the kernels")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            told = difference(program, given.native)
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            told = f"{type(error).__name__}: {str(error)[:300]}"
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n{program}", flush=True)
        if seed % 50 == 49:
            dynacompile.reset()
    print(f"{given.last - given.first} programs, {failed} differ")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
