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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import dynacompile
from tests.fuzz.derivatives import Program, differs, generate, is_error, total

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
    again: a second backward follows. between: results whose gradients are asked for, too. accumulated: gradients go to `.grad` of what is asked for."""

    written: tuple[tuple[int, str], ...]
    some: tuple[int, ...]
    leaves: tuple[int, ...]
    again: bool
    between: tuple[int, ...] = ()
    accumulated: bool = False


def stories(seed: int, program: Program) -> list[Story]:
    """The first ones ask for gradients of leaves alone."""
    rng = random.Random(seed)
    found = []
    for n in range(9):
        targets = rng.sample(range(3 + program.outputs), rng.choice((1, 1, 1, 2)))
        some = tuple(sorted(rng.sample(range(program.outputs), rng.randint(1, program.outputs))))
        leaves = tuple(sorted(rng.sample(range(3), rng.choice((1, 3, 3, 3)))))
        story = Story(tuple((t, rng.choice(list(WRITES))) for t in targets), some, leaves, rng.random() < 0.2)
        if n >= 6:
            between = tuple(sorted(rng.sample(range(program.outputs), rng.randint(0, min(2, program.outputs)))))
            story = replace(story, between=between, accumulated=rng.random() < 0.5)
        found.append(story)
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
    written = {(given, *leaves[1:], *outputs)[index].untyped_storage().data_ptr() for index, _ in story.written}
    asked = [leaves[i] for i in story.leaves]  # a view that was written would have a new node
    asked += [outputs[i] for i in story.between if outputs[i].requires_grad and outputs[i].untyped_storage().data_ptr() not in written]
    found = []
    try:
        for _ in range(2 if story.again else 1):
            found.append(gradients(value, asked, story))
    except RuntimeError as error:
        return ("error", "modified" if NEEDED_ELSEWHERE in str(error) else str(error))
    return [found, [t.detach().clone() for t in (*outputs, *leaves)], torch.rand(2)]


def gradients(value: torch.Tensor, asked: list[torch.Tensor], story: Story) -> Any:
    if not story.accumulated:
        return torch.autograd.grad(value, asked, retain_graph=story.again, allow_unused=True)
    value.backward(inputs=asked, retain_graph=story.again)
    return tuple(None if t.grad is None else t.grad.clone() for t in asked)


def reads_a_written_input(program: Program, story: Story, seed: int, expected: Any, got: Any) -> bool:
    """An input that eager keeps for no gradient that is asked for is read here: for one of them, or to compute a written result again."""
    return not is_error(expected) and got == ("error", "modified") and any(target < 3 for target, _ in story.written)


def has_overflowing_squares(program: Program, story: Story, seed: int, expected: Any, got: Any) -> bool:
    """Eager's layer norm gives NaN or zeros for such rows, by their length."""
    return "layer_norm" in program.source and not is_error(expected) and not is_error(got) and any(t.isnan().any() for t in expected[1])


def accumulates_for_a_result(program: Program, story: Story, seed: int, expected: Any, got: Any) -> bool:
    """Where a gradient is to be accumulated in a result, eager runs what made the result, too, and raises for what that keeps."""
    if not story.accumulated or expected != ("error", "modified") or is_error(got):
        return False
    plain = answer(program, program.function(), replace(story, accumulated=False), seed)
    return not is_error(plain) and not differs(plain[0][0], got[0][0])


KNOWN = (reads_a_written_input, has_overflowing_squares, accumulates_for_a_result)
"""The documented differences, see docs/reliability.md."""


@dataclass(frozen=True)
class Difference:
    """known: the documented difference that it is, or nothing."""

    text: str
    known: str


def differences(program: Program, seed: int, backend: str) -> Iterator[Difference]:
    """What the compiled program does not do as eager does."""
    function = program.function()
    compiled = dynacompile.compile(function, backend=backend, isolate_recompiles=True)
    for story in stories(seed, program):
        expected, got = answer(program, function, story, seed), answer(program, compiled, story, seed)
        if told := differs(expected, got):
            known = next((k.__name__ for k in KNOWN if k(program, story, seed, expected, got)), "")
            yield Difference(f"{story}: {told}", known)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.writes", description="Compare backward passes after writes, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--show", action="store_true", help="print every program")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed, known = 0, Counter[str]()
    for seed in range(given.first, given.last):
        program = generate(seed)
        if given.show:
            print(f"seed {seed}\n{program.source}", flush=True)
        try:
            found = list(differences(program, seed, given.backend))
            known.update(d.known for d in found if d.known)
            told = next((d.text for d in found if not d.known), "")
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            told = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n{program.source}", flush=True)
        if seed % 50 == 49:
            dynacompile.reset()
    documented = ", ".join(f"{count} stories as documented ({name})" for name, count in known.most_common()) or "none as documented"
    print(f"{given.last - given.first} programs, {failed} differ, {documented}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
