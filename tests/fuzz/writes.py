"""Random differentiable programs whose inputs and results are written between forward and backward, compared with eager in float64.

python -m tests.fuzz.writes FIRST LAST [--backend NAME] [--show]: runs the programs of seeds FIRST up to LAST, those of tests.fuzz.derivatives; prints
those that differ, and by what. Each call is followed by writes under no_grad, as of an optimizer, and then by a backward for some results and leaves.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile
from tests.fuzz.derivatives import Program, differs, generate, total

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "mul_": lambda t: t.mul_(0.5),
    "copy_": lambda t: t.copy_(torch.linspace(-1, 1, t.numel(), dtype=t.dtype).reshape(t.shape)),
    "zero_": lambda t: t.zero_(),
    "detach().add_": lambda t: t.detach().add_(1.0),
    "first row": lambda t: (t[:1] if t.dim() else t).fill_(7.0),
}
NEEDED_ELSEWHERE = "modified by an inplace operation"


@dataclass(frozen=True)
class Story:
    """written: of the inputs (x, w, b) and then the results, by index, and how. some: the results that are differentiated; leaves: what by.
    again: a second backward follows."""

    written: tuple[tuple[int, str], ...]
    some: tuple[int, ...]
    leaves: tuple[int, ...]
    again: bool


def stories(seed: int, program: Program) -> list[Story]:
    rng = random.Random(seed)
    found = []
    for _ in range(6):
        targets = rng.sample(range(3 + program.outputs), rng.choice((1, 1, 1, 2)))
        some = tuple(sorted(rng.sample(range(program.outputs), rng.randint(1, program.outputs))))
        leaves = tuple(sorted(rng.sample(range(3), rng.choice((1, 3, 3, 3)))))
        found.append(Story(tuple((t, rng.choice(list(WRITES))) for t in targets), some, leaves, rng.random() < 0.2))
    return found


def answer(program: Program, call: Callable[..., tuple[torch.Tensor, ...]], story: Story, seed: int) -> Any:
    """The gradients, or what is raised."""
    torch.manual_seed(seed)
    leaves = tuple(torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 4), (4, 4), (4,)))
    given = leaves[0] * 1.0 if program.computed else leaves[0]
    outputs = call(given, *leaves[1:])
    value = total(outputs, story.some)
    for index, how in story.written:
        with torch.no_grad():
            WRITES[how]((given, *leaves[1:], *outputs)[index])
    found = []
    try:
        for _ in range(2 if story.again else 1):
            found.append(torch.autograd.grad(value, [leaves[i] for i in story.leaves], retain_graph=story.again, allow_unused=True))
    except RuntimeError as error:
        return ("error", "modified" if NEEDED_ELSEWHERE in str(error) else str(error))
    return [found, [t.detach().clone() for t in (*outputs, *leaves)], torch.rand(2)]


def is_known(story: Story, expected: Any, got: Any) -> bool:
    """An input that eager keeps for one gradient is read here for another one, too; of two writes, the second may take what running again needs."""
    return got == ("error", "modified") and (len(story.written) > 1 or story.written[0][0] < 3)


def difference(program: Program, seed: int, backend: str) -> str:
    """What the compiled program does not do as eager does; empty where it does all."""
    function = program.function()
    compiled = dynacompile.compile(function, backend=backend, isolate_recompiles=True)
    for story in stories(seed, program):
        expected, got = answer(program, function, story, seed), answer(program, compiled, story, seed)
        if (told := differs(expected, got)) and not is_known(story, expected, got):
            return f"{story}: {told}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.writes", description="Compare backward passes after writes, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--show", action="store_true", help="print every program")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        if given.show:
            print(f"seed {seed}\n{program.source}", flush=True)
        try:
            told = difference(program, seed, given.backend)
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            told = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n{program.source}", flush=True)
        if seed % 50 == 49:
            dynacompile.reset()
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
