"""Random differentiable programs, and everything that autograd can be asked about them, compared with eager in float64.

python -m tests.fuzz.derivatives FIRST LAST [--backend NAME] [--show]: runs the programs of seeds FIRST up to LAST; prints those that differ, and by what.
Where an answer is off, eager runs again with last bits moved at random (stability.py): what it is not sure of itself is no difference, and counted apart.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile
from tests.fuzz.stability import is_unsure, runs
from tests.fuzz.stories import BACKENDS

SMOOTH = ("{a}.sin()", "{a}.cos()", "{a}.tanh()", "({a} * 0.3).exp()", "{a}.sigmoid()", "{a}.square()", "torch.nn.functional.softplus({a})", "{a}.pow(3) * 0.1")
KINKED = ("{a}.relu()", "{a}.abs()", "torch.where({a} > 0, {a}, {a} * 0.5)", "{a}.clamp(-1.0, 1.0)", "torch.nn.functional.leaky_relu({a}, 0.2)")
ROWS = ("{a}.softmax(-1)", "{a}.log_softmax(0)", "torch.nn.functional.layer_norm({a}, (4,))", "{a}.cumsum(1)", "{a} - {a}.mean(1, keepdim=True)", "{a}.flip(0)")
PAIRS = ("{a} + {b}", "{a} * {b}", "{a} - {b} * 0.5", "torch.maximum({a}, {b})", "{a} * {b}.sum()", "{a} / (1.0 + {b}.square())", "torch.lerp({a}, {b}, 0.3)")
PRODUCTS = ("{a} @ w", "torch.nn.functional.linear({a}, w, b)", "({a}.t() @ {b}) .sum() * {a}", "torch.addmm({a}, {b}, w)")
CUT = ("{a}.detach() * {b}", "Cube.apply({a})", "Scale.apply({a}, 1.5)", "Both.apply({a}, {b})")
RANDOM = ("torch.nn.functional.dropout({a}, 0.4, True)", "{a} * torch.rand_like({a})", "{a} + torch.randn(3, 4, dtype=torch.float64)")
WRITES = ("{a} = {a} * 1.0; {a}.mul_({b})", "{a} = {a} + 0.0; {a}[0] = {b}[1]", "{a} = {a}.clone(); {a}.add_(1.0).sin_()")
SHOWN = ("{a}", "{a}", "{a}", "{a}.view(-1)", "{a}[1:]", "{a}.t()", "{a}.sum()", "{a}.square().mean()", "{a}.detach()", "{a}.split(2, 1)[1]")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class Scale(torch.autograd.Function):
    """A gradient of its own, which is not that of its value."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin() * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.cos() * y, g * x.sin()


@dataclass(frozen=True)
class Program:
    source: str
    queries: tuple[tuple[Any, ...], ...]
    outputs: int
    computed: bool  # x is no leaf

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        space = {"torch": torch, "Cube": Cube, "Scale": Scale, "Both": Both}
        exec(compile(self.source, "<derivatives>", "exec"), space)
        return space["program"]


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    lines, names = [], ["x"]
    kinds = [SMOOTH, SMOOTH, SMOOTH, PAIRS, PAIRS, PRODUCTS, ROWS, KINKED, CUT]
    if rng.random() < 0.25:
        kinds.append(RANDOM)
    if rng.random() < 0.25:
        kinds.append(WRITES)
    for i in range(rng.randint(2, 7)):
        kind, a, b = rng.choice(kinds), rng.choice(names[-3:]), rng.choice(names)
        text = rng.choice(kind).format(a=a, b=b)
        if kind is WRITES:
            if a != "x":
                lines.append(text)
            continue
        names.append(f"v{i}")
        lines.append(f"v{i} = {text}")
    shown = []
    for _ in range(rng.randint(1, 4)):
        shown.append(rng.choice(SHOWN).format(a=rng.choice(names[1:] + names[-2:])))
    if rng.random() < 0.5:  # computed from an output
        lines.append(f"o = {rng.choice(SMOOTH + ROWS).format(a=names[-1])}")
        lines.append(f"p = ({rng.choice(PAIRS).format(a='o', b=rng.choice(names))}).sum()")
        shown += ["o", "p"]
    source = "def program(x, w, b):\n" + "".join(f"    {line}\n" for line in lines) + f"    return ({', '.join(shown)},)\n"
    return Program(source, tuple(query(rng, len(shown)) for _ in range(rng.randint(2, 5))), len(shown), rng.random() < 0.3)


def query(rng: random.Random, count: int) -> tuple[Any, ...]:
    kind = rng.choice(("backward", "grad", "between", "order", "order", "hook", "retain", "inputs", "batched", "partial", "batched_twice", "by_outputs"))
    some = tuple(sorted(rng.sample(range(count), rng.randint(1, count))))
    return kind, some, rng.randrange(count), rng.randrange(count), rng.choice((2, 2, 3))


def answers(program: Program, call: Callable[..., tuple[torch.Tensor, ...]], seed: int) -> list[Any]:
    """What the queries give; an error as its type and first words."""
    torch.manual_seed(seed)
    x, w, b = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 4), (4, 4), (4,)))
    given = x * 1.0 if program.computed else x
    outputs = call(given, w, b)
    found: list[Any] = [[t.detach().clone() for t in outputs], [t.requires_grad for t in outputs]]
    leaves = (x, w, b)
    for kind, *rest in program.queries:
        for tensor in (*leaves, *outputs):
            tensor.grad = None
        torch.manual_seed(seed + 1)
        try:
            found.append(ASK[kind](outputs, leaves, *rest))
        except RuntimeError as error:
            found.append(("error", str(error)))
    found.append(torch.rand(2))
    return found


def total(outputs: Sequence[torch.Tensor], some: Sequence[int]) -> torch.Tensor:
    return sum((outputs[i] * weights(outputs[i])).sum() * (i + 1) for i in some)  # type: ignore[return-value]


def weights(t: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)


def backward(outputs, leaves, some, i, j, order):
    total(outputs, some).backward(retain_graph=True)
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def grad(outputs, leaves, some, i, j, order):
    return torch.autograd.grad(total(outputs, some), leaves, retain_graph=True, allow_unused=True)


def between(outputs, leaves, some, i, j, order):
    return torch.autograd.grad(total(outputs, some), (outputs[j], *leaves), retain_graph=True, allow_unused=True)


def partial(outputs, leaves, some, i, j, order):
    return torch.autograd.grad(outputs[i].sum(), leaves[1:2], retain_graph=True, allow_unused=True)


def in_order(outputs, leaves, some, i, j, order):
    found: list[Any] = []
    value = total(outputs, some)
    for n in range(order):
        grads = torch.autograd.grad(value, leaves, create_graph=n + 1 < order, retain_graph=True, allow_unused=True)
        found.append(grads)
        terms = [g.square().sum() for g in grads if g is not None and g.requires_grad]
        if not terms or n + 1 == order:
            break
        value = sum(terms)  # type: ignore[assignment]
    return found


def hook(outputs, leaves, some, i, j, order):
    handle = outputs[j].register_hook(lambda g: None if g is None else g * 3 + 1)
    try:
        return grad(outputs, leaves, some, i, j, order)
    finally:
        handle.remove()


def retain(outputs, leaves, some, i, j, order):
    outputs[j].retain_grad()
    outputs[j].grad = None
    total(outputs, some).backward(retain_graph=True)
    return None if outputs[j].grad is None else outputs[j].grad.clone()


def inputs(outputs, leaves, some, i, j, order):
    total(outputs, some).backward(inputs=[leaves[0], outputs[j]], retain_graph=True)
    return [None if t.grad is None else t.grad.clone() for t in (leaves[0], outputs[j])]


def batched(outputs, leaves, some, i, j, order):
    tangents = torch.stack([weights(outputs[i]) * k for k in range(3)])
    return torch.autograd.grad(outputs[i], (leaves[0], leaves[2]), tangents, is_grads_batched=True, retain_graph=True, allow_unused=True)


def batched_twice(outputs, leaves, some, i, j, order):
    tangents = torch.stack([weights(outputs[i]) * k for k in range(2)])
    rows = torch.autograd.grad(outputs[i], leaves[:2], tangents, is_grads_batched=True, create_graph=True, allow_unused=True)
    terms = [r.square().sum() for r in rows if r is not None and r.requires_grad]
    return rows, torch.autograd.grad(sum(terms), leaves, allow_unused=True, retain_graph=True) if terms else None  # type: ignore[arg-type]


def by_outputs(outputs, leaves, some, i, j, order):
    """Gradients of gradients with respect to outputs, which the formulas of the first may read."""
    grads = torch.autograd.grad(total(outputs, some), leaves, create_graph=True, allow_unused=True)
    terms = [g.square().sum() for g in grads if g is not None and g.requires_grad]
    asked = tuple(t for t in (outputs[i], outputs[j]) if t.requires_grad)
    return torch.autograd.grad(sum(terms), (*asked, *leaves), retain_graph=True, allow_unused=True) if terms else None  # type: ignore[arg-type]


ASK: dict[str, Callable[..., Any]] = {
    "backward": backward,
    "grad": grad,
    "between": between,
    "order": in_order,
    "hook": hook,
    "retain": retain,
    "inputs": inputs,
    "batched": batched,
    "batched_twice": batched_twice,
    "partial": partial,
    "by_outputs": by_outputs,
}
REFUSALS = ("double backward through this compiled region is not supported: the graph writes",)


def differs(expected: Any, got: Any) -> str:
    """Why two answers differ; empty where they agree."""
    if is_error(expected) or is_error(got):
        if is_error(got) and any(r in got[1] for r in REFUSALS):
            return ""
        words = [e[1].splitlines()[0][:40] if is_error(e) else "no error" for e in (expected, got)]
        return "" if words[0] == words[1] else f"eager: {words[0]}; compiled: {got[1][:300] if is_error(got) else words[1]}"
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return f"{expected} and {got}"
        return next((f"[{n}] {d}" for n, (e, g) in enumerate(zip(expected, got, strict=True)) if (d := differs(e, g))), "")
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        same = expected.shape == got.shape and torch.allclose(expected, got, rtol=1e-7, atol=1e-9, equal_nan=True)
        return "" if same else f"{expected.flatten()[:4].tolist()} and {got.flatten()[:4].tolist()}"
    return "" if type(expected) is type(got) and expected == got else f"{expected} and {got}"


def is_error(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "error"


def difference(program: Program, seed: int, backend: str, unsure: list[str] | None = None) -> str:
    """What the compiled program does not do as eager does; empty where it does all. unsure: is told of answers that eager is not sure of itself."""
    function = program.function()
    expected = answers(program, function, seed)
    others: tuple[list[Any], bool] | None = None
    compiled = dynacompile.compile(function, isolate_recompiles=True, **BACKENDS.get(backend, {"backend": backend}))
    for call in ("first", "second"):
        got = answers(program, compiled, seed)
        for n, (e, g) in enumerate(zip(expected, got, strict=True)):
            if told := differs(e, g):
                asked = ("outputs", "requires_grad", *program.queries, "random state")[n]
                others = others or runs(lambda: answers(program, function, seed), seed)
                if not is_unsure(e, g, [other[n] for other in others[0]], others[1]):
                    return f"{call} call, {asked}: {told}"
                if unsure is not None:
                    unsure.append(f"{call} call, {asked}: {told}")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.derivatives", description="Compare derivatives of random programs, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--show", action="store_true", help="print every program")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed = 0
    unsure: dict[int, list[str]] = {}
    for seed in range(given.first, given.last):
        program = generate(seed)
        if given.show:
            print(f"seed {seed}\n{program.source}{program.queries}", flush=True)
        found: list[str] = []
        try:
            told = difference(program, seed, given.backend, found)
            unsure |= {seed: found} if found else {}
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            told = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n{program.source}", flush=True)
        if seed % 50 == 49:
            dynacompile.reset()
    answers_left = sum(map(len, unsure.values()))
    print(f"{given.last - given.first} programs, {failed} differ; {answers_left} answers that eager is not sure of, of seeds {sorted(unsure)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
