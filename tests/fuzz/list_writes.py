"""python -m tests.fuzz.list_writes FIRST LAST: operations that write lists of tensors in place, through views and over inputs of any layout, against eager.

A program is its seed: two matrices, dense or with gaps, each perhaps computed anew, views of both, one to three of the `torch._foreach_*_` operations over
lists of these (views beside what they are views of, one tensor twice, members that read what earlier ones have written), other writes between, and results
that show values, layouts and views. Two programs in three have gradients. Results, strides, all memory of the inputs, gradients, and kinds of errors are
compared. Nothing may run as Python, but for what a break leaves (at a tensor that is twice in a list, at members with gradients that read what earlier ones
have written): a frame whose inputs share memory, or a part of one that eager can't differentiate either.
"""

from __future__ import annotations

import argparse
import logging
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import FrameSkipped
from tests.scenarios import strides

WRITES = (
    "mul_({l}, 0.5)", "add_({l}, {m})", "lerp_({l}, {m}, 0.3)", "copy_({l}, {m})", "zero_({l})", "addcmul_({l}, {m}, {m}, 0.5)", "clamp_min_({l}, -0.2)",
    "add_({l}, {m}, alpha=2)", "mul_({l}, [0.5] * {n})", "mul_({l}, torch.tensor(0.5))", "sigmoid_({l})", "pow_({l}, 2)", "div_({l}, [2.0] * {n})",
    "addcdiv_({l}, {m}, [t.abs() + 1 for t in {m}])", "addcmul_({l}, {m}, {m}, [0.5] * {n})", "sub_({l}, {m})", "maximum_({l}, {m})", "neg_({l})",
    "minimum_({l}, {l})", "mul_({l}, {l})",
)  # fmt: skip
VIEWS = ("{t}", "{t}[:, 1:]", "{t}.t()", "{t}[:, ::2]", "{t}[1]", "{t}.view(-1)", "{t}[:2].t()", "{t}.diagonal()", "{t}.unsqueeze(0)", "{t}[:1]", "{t}[:, :1]")
LISTS = ("[v]", "[v, w]", "[a, b]", "[v, b]", "[v, v]", "[a, v]")
OTHERS = (
    "[torch.full_like(t, 0.3) for t in {l}]", "[t.flip(0) * 0.5 for t in {l}]",
    "{l}[::-1]",  # eager writes one member after the other, and differentiates as if it read all before
)  # fmt: skip
BETWEEN = ("a.mul_(0.9)", "v.add_(0.1)", "w = w * 1", "c = c + v.sin().sum()")
SHOWN = (
    "a.sum()", "a * 2", "a.view(-1)[:3] * 1", "b.t().contiguous()", "a.as_strided((3,), (2,), a.storage_offset()) * 1", "torch._foreach_norm([a, b])",
    "v.clone()", "v.stride()", "a.clone()", "w + 1", "a[0]", "b", "v", "c",
)  # fmt: skip
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.zeros(4, 6),
    "columns": lambda: torch.zeros(4, 11)[:, 2:8],
    "transposed": lambda: torch.zeros(6, 4).t(),
    "steps": lambda: torch.zeros(4, 12)[:, ::2],
    "a row": lambda: torch.zeros(1, 9)[:, 2:8],
}


@dataclass(frozen=True)
class Program:
    seed: int
    lines: tuple[str, ...]
    layouts: tuple[str, str]
    has_gradients: bool

    def text(self) -> str:
        return "\n".join(["def f(a, b):", *(f"    {line}" for line in self.lines)])

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch}
        exec(self.text(), scope)
        return scope["f"]

    def inputs(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        made = [LAYOUTS[layout]() for layout in self.layouts]
        return [t.copy_(torch.randn(t.shape, generator=generator)).requires_grad_(self.has_gradients) for t in made]


def generate(seed: int) -> Program:
    r = random.Random(seed)
    has_gradients = r.random() < 0.65
    lines = [f"{name} = {name} * 1" for name in "ab" if has_gradients or r.random() < 0.4]
    lines += ["c = b.sum() * 0"]
    of_a, of_b = r.choice(VIEWS), r.choice(VIEWS)
    lines += [f"v = {of_a.format(t='a')}", f"w = {(of_a if r.random() < 0.6 else of_b).format(t='b')}"]
    for _ in range(r.choice((1, 1, 2, 3))):
        members = r.choice(LISTS)
        lines.append("torch._foreach_" + r.choice(WRITES).format(l=members, m=r.choice(OTHERS).format(l=members), n=members.count(",") + 1))
        if r.random() < 0.4:
            lines.append(r.choice(BETWEEN))
    lines.append(f"return {', '.join(r.sample(SHOWN, 3))}")
    row = r.random() < 0.15
    kinds = list(LAYOUTS)[:-1]
    return Program(seed, tuple(lines), ("a row", "a row") if row else (r.choice(kinds), r.choice(kinds)), has_gradients)


def outcome(call: Callable, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Results and their strides, gradients and all memory of the inputs; or the kind of the error."""
    try:
        results = pytree.tree_leaves(call(*inputs))
        differentiable = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        weighed = [(t * torch.linspace(-1, 1, t.numel()).view(t.shape)).sum() for t in differentiable]
        grads = torch.autograd.grad(sum(weighed), list(inputs), allow_unused=True) if weighed else ()
    except (RuntimeError, IndexError) as error:
        return [type(error).__name__]
    whole = [t.detach().as_strided((t.untyped_storage().nbytes() // 4,), (1,), 0) for t in inputs]
    return [*results, *(strides(t) for t in results if isinstance(t, torch.Tensor)), *grads, *whole, *(t._version > 0 for t in inputs)]


def has_refused_part(program: Program) -> bool:
    """Whether eager has no gradients of all that the program computes, of which its results may be a part."""
    whole = replace(program, lines=(*program.lines[:-1], "return a, b, c, v, w"))
    return outcome(whole.function(), whole.inputs()) == ["RuntimeError"]


def check(program: Program, native: bool = False) -> bool:
    """Raises AssertionError where the compiled program differs. Gives whether there was something to compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = outcome(program.function(), program.inputs())
        dynacompile.reset()
        events: list = []
        end = dynacompile.subscribe(events.append)
        try:
            compiled = dynacompile.compile(program.function(), isolate_recompiles=True, options={"reference": not native})
            given = outcome(compiled, program.inputs())
        finally:
            end()
    assert len(given) == len(wanted), f"{given}\nis not eager's\n{wanted}"
    for have, want in zip(given, wanted, strict=True):
        if not isinstance(want, torch.Tensor):
            assert have == want, f"{have} is not eager's {want}"
            continue
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    raised = isinstance(wanted[0], str)
    allowed = ("[aliased-mutation]", "[no-gradient]") if has_refused_part(program) else ("[aliased-mutation]",)
    skipped = [e.reason for e in events if isinstance(e, FrameSkipped) and not any(code in e.reason for code in allowed)]
    assert raised or not skipped, f"runs as Python: {skipped}"
    return not raised


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.list_writes", description="Compare writes to lists of tensors with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="compile with built kernels")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, compared = 0, 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            compared += check(program, given.native)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed} {program.layouts}: {type(error).__name__}: {str(error)[:600]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ, {given.last - given.first - failed - compared} raise")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
