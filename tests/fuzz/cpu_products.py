"""python -m tests.fuzz.cpu_products FIRST LAST: products of matrices on CPUs with random surroundings, inference and training, against eager.

A program is its seed: one to three products (mm, addmm with factors, bmm, baddbmm, linear with and without bias) of random extents, layouts and a dtype of six,
with pointwise operations before, between and after them, a reduction or a view at the end. Extents are drawn so that about half of the products become
loops. It runs with small products as loops by the model, always, or never; parameters are frozen in some, and written between calls in those ways that
are seen. Values, gradients and written inputs must be as near to float64 as eager's are, and NaN and infinities where eager has them. Kernels run by the
interpreter; with --native, as C++.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.events import ProductDecided
from dynacompile.lower import products
from dynacompile.ops.product_costs import Choice, Product, choose

FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32)
FORMS = ("mm", "addmm", "linear", "layer", "bmm", "baddbmm")
UNARY: tuple[Callable, ...] = (
    torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.neg, torch.abs, F.hardswish, F.leaky_relu, F.relu6, lambda y: y * 0.37, lambda y: y + 1.5,
    lambda y: y.clamp(-2, 3), lambda y: F.leaky_relu(y, -0.3),
)  # fmt: skip
SMOOTH: tuple[Callable, ...] = (torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.neg, lambda y: y * 0.37, lambda y: y + 1.5)
EXACT: tuple[Callable, ...] = (torch.neg, torch.abs, torch.relu, lambda y: y * 3, lambda y: y + 7, lambda y: y.clamp(-40, 9))
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 33, 48, 64, 65, 100, 130)


@dataclass(frozen=True)
class Layer:
    """One product: its form, its columns, how the right operand lies, the factors of what is added, and the activations around it."""

    form: str
    columns: int
    layout: str
    factors: tuple[float, float]
    added: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """policy: "model", "loops" or "calls". special: where the first operand has a NaN or an infinity. writes: how parameters change between two calls."""

    seed: int
    batch: int
    rows: int
    width: int
    left: str
    dtype: torch.dtype
    layers: tuple[Layer, ...]
    end: str
    residual: bool
    policy: str
    trains: bool
    frozen: bool
    special: str
    writes: str

    def inputs(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """x; then of each layer the right operand, and what is added."""
        generator = torch.Generator().manual_seed(self.seed)

        def made(*size: int, layout: str = "plain") -> torch.Tensor:
            shape = {"turned": (*size[:-2], size[-1], size[-2]), "wide": (*size[:-1], size[-1] + 3)}.get(layout, size) if len(size) > 1 else size
            drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
            drawn = (drawn * 3).round() if self.dtype in INTEGERS else drawn / max(1.0, self.width**0.25)
            drawn = drawn.to(self.dtype).to(dtype or self.dtype)
            return drawn.transpose(-1, -2) if layout == "turned" and len(size) > 1 else drawn[..., 3:] if layout == "wide" and len(size) > 1 else drawn

        batch = (self.batch,) if self.batch else ()
        x = made(*batch, self.rows, self.width, layout=self.left)
        if self.special:
            x[..., 0, -1] = float(self.special)
        found, width = [x], self.width
        for layer in self.layers:
            n = layer.columns
            right = (n, width) if layer.form in ("linear", "layer") else (*batch, width, n)
            found.append(made(*right, layout=layer.layout))
            sizes = {"row": (n,), "column": (*batch, self.rows, 1), "whole": (*batch, self.rows, n)}
            found.append(made(*(sizes[layer.added] if layer.form in ("addmm", "baddbmm") else (n,))))
            width = n
        return found

    def __call__(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        first, unary = x, self.maps()
        for layer, right, added in zip(self.layers, others[::2], others[1::2], strict=True):
            for i in layer.before:
                x = unary[i % len(unary)](x)
            beta, alpha = layer.factors
            match layer.form:
                case "mm" | "bmm":
                    x = x @ right
                case "linear":
                    x = F.linear(x, right)
                case "layer":
                    x = F.linear(x, right, added) if x.is_floating_point() else F.linear(x, right) + added
                case "addmm":
                    x = torch.addmm(added, x, right, beta=beta, alpha=alpha)
                case _:
                    x = torch.baddbmm(added, x, right, beta=beta, alpha=alpha)
            for i in layer.after:
                x = unary[i % len(unary)](x)
        if self.residual and x.shape == first.shape:
            x = x + first
        match self.end:
            case "sum":
                return x.sum(-1)
            case "columns":
                return x.sum(-2)
            case "transposed":
                return x.transpose(-1, -2).contiguous() * 2
            case "norm" if x.is_floating_point() and x.shape[-1] > 4:  # of few columns the deviation may be a rounding alone
                return F.layer_norm(x, x.shape[-1:])
            case _:
                return x

    def maps(self) -> tuple[Callable, ...]:
        """Gradients at a kink depend on the last bit, and eager's gelu of infinity on where it lies."""
        if self.dtype in INTEGERS:
            return EXACT
        return SMOOTH if self.trains else tuple(f for f in UNARY if f is not F.gelu) if self.special else UNARY

    def text(self) -> str:
        return "\n  ".join(f"{name}={value}" for name, value in vars(self).items())


def generate(seed: int) -> Program:
    r = random.Random(seed)
    dtype = r.choice(FLOATS) if r.random() < 0.85 else r.choice(INTEGERS)
    batch = r.choice((0, 0, 0, 1, 2, 3, 9, 40))
    forms = [f for f in FORMS if f.endswith("bmm") == bool(batch) or (f == "linear" and batch)]
    factors = (1, 1) if dtype in INTEGERS or r.random() < 0.6 else (r.choice((0, 0.5, 1, 2.0)), r.choice((1, -1.5, 0.25)))
    layers = tuple(
        Layer(
            r.choice(forms), r.choice(EXTENTS), r.choice(("plain", "plain", "turned", "wide")), factors, r.choice(("row", "column", "whole")),
            tuple(r.randrange(100) for _ in range(r.choice((0, 0, 1)))), tuple(r.randrange(100) for _ in range(r.choice((0, 1, 1, 2)))),
        )
        for _ in range(r.choice((1, 1, 2, 3)))
    )  # fmt: skip
    trains = dtype not in INTEGERS and r.random() < 0.4
    special = r.choice(("nan", "inf", "-inf")) if dtype not in INTEGERS and not trains and r.random() < 0.1 else ""
    return Program(
        seed, batch, r.choice(EXTENTS), r.choice(EXTENTS), r.choice(("plain", "plain", "turned", "wide")), dtype, layers,
        r.choice(("", "", "", "sum", "columns", "transposed", "norm")), r.random() < 0.2, r.choice(("model", "model", "loops", "calls")), trains,
        not trains and r.random() < 0.5, special, r.choice(("", "in place", "new", "data")),
    )  # fmt: skip


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Small products are loops as the model has it, or all are, or none."""
    ways: dict[str, Callable[[Product], Choice]] = {"model": choose, "loops": lambda _: Choice(True, "the test"), "calls": lambda _: Choice(False, "the test")}
    with patch.object(products, "choose", ways[name]):
        yield


def allowed(exact: torch.Tensor, eager: torch.Tensor, dtype: torch.dtype, steep: bool) -> float:
    """What a result may be off: about what eager is, and a few roundings of the largest number. steep: it is divided by a deviation, which may be small."""
    finite = exact.isfinite() & eager.isfinite()
    if not finite.any():
        return 0.0
    largest = exact[finite].abs().max().item()
    if dtype == torch.float64:  # eager's own error is not known
        return 1e-10 * max(1.0, largest)
    least = 1e-5 if dtype == torch.float32 else 0.0
    return least + (30 if steep else 6) * (eager.double() - exact)[finite].abs().max().item() + 32 * torch.finfo(dtype).eps * largest


def judge(what: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, program: Program) -> None:
    dtype, steep = program.dtype, program.end == "norm"
    assert ours.shape == eager.shape and ours.dtype == eager.dtype, f"{what}: {ours.shape} {ours.dtype}, eager {eager.shape} {eager.dtype}"
    apart = [(a, b) for n, a, b in zip(ours.shape, ours.stride(), eager.stride(), strict=True) if n > 1 and a != b]
    assert not apart or not ours.numel() or what.startswith("gradient"), f"{what} has strides {ours.stride()}, eager's {eager.stride()}"
    if dtype in INTEGERS:
        assert torch.equal(ours, eager), f"{what} differs"
        return
    if exact.isfinite().all() and eager.isfinite().all():
        worst = (ours.double() - exact).abs().max().item() if ours.numel() else 0.0
        assert worst <= allowed(exact, eager, dtype, steep), f"{what} is off by {worst}, {allowed(exact, eager, dtype, steep)} is allowed"
    else:
        # eager's vectors have a gelu of infinity that is NaN, and its products of 16-bit numbers spread a NaN to rows that float64 has numbers in
        apart = (ours.isnan() != eager.isnan()) & (ours.isnan() != exact.isnan())
        assert not apart.any(), f"{what} has NaN elsewhere than eager and float64"


def gradients(program: Program, run: Callable, dtype: torch.dtype) -> list[torch.Tensor]:
    """The result, and the gradients of all inputs that it depends on."""
    inputs = [t.detach().requires_grad_() for t in program.inputs(dtype)]
    result = run(*inputs)
    tangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(program.seed + 1), dtype=torch.float64).to(program.dtype).to(dtype)
    found = torch.autograd.grad(result, inputs, tangent, allow_unused=True)
    return [result.detach(), *(torch.zeros(()) if g is None else g for g in found)]


def changed(program: Program, given: Sequence[torch.Tensor]) -> None:
    """Parameters change between two calls, in a way that is seen."""
    with torch.no_grad():
        for p in given[1::2]:
            match program.writes:
                case "in place":
                    p.mul_(2)
                case "data":
                    p.data = p.data.clone() * 3
                case "new":
                    p.set_(p.clone() * 2)  # type: ignore[call-overload]


def check(program: Program, native: bool) -> Counter:
    """Raises AssertionError where a result is further from float64 than eager's. What was decided of products."""
    told: Counter = Counter()

    def note(event: object) -> None:
        if isinstance(event, ProductDecided):
            told["loops" if event.fused else "calls"] += 1

    options = {"reference": not native, "freeze": program.frozen, "fuse": program.seed % 11 != 0}
    compiled = dynacompile.compile(program, dynamic=False, options=options, fullgraph=True, isolate_recompiles=True, recompile_limit=64)
    integer = program.dtype in INTEGERS
    with ExitStack() as stack:
        stack.callback(dynacompile.subscribe(note))
        stack.enter_context(policy(program.policy))
        if program.trains:
            wanted = [gradients(program, run, dtype) for run, dtype in ((program, program.dtype), (program, torch.float64))]
            for _ in range(2):
                for i, (ours, eager, exact) in enumerate(zip(gradients(program, compiled, program.dtype), *wanted, strict=True)):
                    judge("the result" if i == 0 else f"gradient {i - 1}", ours, eager, exact, program)
            return told
        given = [torch.nn.Parameter(t) if i % 2 and not integer else t for i, t in enumerate(program.inputs())]
        with torch.no_grad():
            for call in range(3):
                eager = program(*given)
                exact = eager if integer else program(*(t.detach().double() for t in given))
                judge(f"call {call}", compiled(*given), eager, exact, program)
                if call == 1 and not integer:
                    changed(program, given)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cpu_products", description="Compare products of matrices on CPUs with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="run kernels as C++ rather than by the interpreter")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed, told = 0, Counter[str]()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            told += check(program, given.native)
        except Exception as error:  # noqa: BLE001 a fuzzer tells of every failure, and goes on
            failed += 1
            print(f"seed {seed}: {program.text()}\n{type(error).__name__}: {str(error)[:600]}", flush=True)
        if seed % 50 == 0:
            dynacompile.reset()
    print(f"{given.last - given.first} programs, {failed} failed; {told['loops']} products are loops, {told['calls']} calls")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
