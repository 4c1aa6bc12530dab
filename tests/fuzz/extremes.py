"""python -m tests.fuzz.extremes FIRST LAST: numbers at the edges of their dtypes, through built kernels, against float64.

A program is its seed: some dozens of expressions that are compiled as one graph and called with several inputs. A point is one expression on one
input. Expressions are chains, reductions, norms with their gradients, comparisons, and masks made of counters, of any dtype and size; inputs
are far from zero beside how they spread, subnormal, huge, infinite, NaN, or nothing special. A result is right where it is as near to float64's
as eager's is, within a few roundings, or equal to eager's; under `precise`, half precision must agree with eager within one rounding.

How far roundings lead depends on the chain: `log(cos(x))` near 0 is as uncertain as cos is beside 1. Where a chain's result is off, the chain runs
again in float64 with each operation's result moved by a random rounding (Monte Carlo arithmetic, Parker 1997), and what such runs reach is right.
A norm's result may also be off by what the rounding of a mean to the dtype moves it, which is a tenth of a deviation where numbers lie 10^6 of them
from 0. It is so in eager, too, but not everywhere.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dynacompile

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
EXPRESSIONS, CALLS = 20, 10  # of a program
RUNS = 12  # with random roundings
aten = torch.ops.aten
SELECTIONS = {
    aten.abs, aten.neg, aten.relu, aten.floor, aten.round, aten.sign, aten.clamp, aten.maximum, aten.minimum, aten.where, aten.nan_to_num, aten.gt,
    aten.detach, aten._to_copy, aten.clone, aten.lift_fresh,
}  # fmt: skip
POSITIVE = {aten.exp, aten.sigmoid}  # also where its result is too small for the dtype, and 0 by one formula and a subnormal number by another
ROUNDED_ONCE = {aten.add, aten.sub, aten.mul, aten.div, aten.rsub}  # by eager and by kernels alike
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 100, 128, 130)
UNARY = (
    "{x}.abs()", "-{x}", "{x}.square()", "{x}.sqrt()", "{x}.rsqrt()", "{x}.reciprocal()", "{x}.exp()", "{x}.expm1()", "{x}.log()", "{x}.log1p()",
    "{x}.clamp(-99, 99).sin()", "{x}.clamp(-99, 99).cos()", "{x}.tanh()", "{x}.sigmoid()", "{x}.erf()", "F.relu({x})", "F.gelu({x})",
    "F.silu({x})", "F.softplus({x})",
    "F.logsigmoid({x})", "{x}.floor()", "{x}.round()", "{x}.sign()", "{x}.clamp(-3, 1e4)", "({x} + 2048) - 2048", "({x} * 3) / 3", "{x}.nan_to_num()",
)  # fmt: skip
BINARY = (
    "({x} + {y})", "({x} - {y})", "({x} * {y})", "({x} / {y})", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "torch.where({x} > {y}, {x}, {y})",
    "torch.hypot({x}, {y})", "({x} + {y}) - {x}", "{x}.lerp({y}, 0.25)", "torch.atan2({x}, {y})", "torch.logaddexp({x}, {y})",
)  # fmt: skip
REDUCED = (
    "{x}.sum({d})", "{x}.mean({d})", "{x}.var({d})", "{x}.var({d}, correction=0)", "{x}.std({d})", "torch.var_mean({x}, {d})[0]",
    "torch.var_mean({x}, {d})[1]",
    "torch.std_mean({x}, {d}, keepdim=True)[1]",
    "{x}.logsumexp({d})", "{x}.amax({d})", "{x}.amin({d})", "torch.linalg.vector_norm({x}, dim={d})", "{x}.softmax({l})", "{x}.log_softmax({l})",
    "{x}.argmax({l})", "({x} > 0).any({l})", "({x} > 0).all({l})", "({x} - {x}.mean({d}, keepdim=True)).square().mean({d})", "{x}.cumsum({l})",
)  # fmt: skip
NORMS = (
    "F.layer_norm({x}, {x}.shape[-1:])", "F.rms_norm({x}, {x}.shape[-1:])", "F.batch_norm({x}, None, None, training=True)", "F.group_norm({x}, 1)",
    "F.instance_norm({x}[None])", "F.cosine_similarity({x}, {y}, -1)", "F.normalize({x}, dim=-1)", "F.mse_loss({x}, {y})",
)  # fmt: skip
LOGICAL = (
    "{x} < {y}", "{x} <= {y}", "{x} == {y}", "{x} != {y}", "{x}.isnan()", "{x}.isinf()", "{x}.nan_to_num().signbit()",
    "torch.where({x} >= {y}, {x}, {y})",
    "{x}.masked_fill({x} > {y}, 2)", "torch.where({x}.isnan(), 0, {x})",
)  # fmt: skip
MASKS = (
    "torch.tril(torch.ones({n}, {m}, dtype={t}), {k})", "torch.triu(torch.ones({n}, {m}, dtype={t}), {k})",
    "torch.arange({n})[:, None] >= torch.arange({m}) + {k}",
    "torch.where(torch.arange({n})[:, None] < torch.arange({m}) - {k}, -math.inf, 0.0)", "torch.arange({m}, dtype={c}) == {k}",
    "torch.arange({m}, dtype={c}) < {n}",
    "torch.eye({n}, {m}, dtype={t})", "(torch.arange({m})[None] < torch.arange({n})[:, None]).to({t})",
    "torch.arange({m}).remainder(3).eq(1).to({t})",
    "torch.ones({n}, {m}, dtype={t}).tril({k}).sum(-1)", "torch.full(({n}, {m}), 3, dtype={t}).masked_fill(torch.arange({m}) > {k}, 1)",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    seed: int
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    precise: bool
    expressions: tuple[str, ...]

    def source(self) -> str:
        lines = "".join(f"        {e},\n" for e in self.expressions)
        return f"def program(x, y):\n    return (\n{lines}    )\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        scope: dict[str, object] = {"torch": torch, "F": torch.nn.functional, "math": math}
        exec(compile(self.source(), f"<extremes {self.seed}>", "exec"), scope)
        return scope["program"]  # type: ignore[return-value]


KINDS = ("chains", "reductions", "norms", "comparisons", "masks")


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    dtype = rng.choice(FLOATS[:3] if kind in ("reductions", "norms") else FLOATS)  # float64 is what those are measured by
    shape = {
        "reductions": rng.choice([(rng.choice(SIZES), rng.choice(SIZES)), (3, rng.choice(SIZES), 5), (2, 3000), (3000, 3), (70000,), (2, 70000), (40000, 4)]),
        "norms": rng.choice([(4, rng.choice(SIZES)), (rng.choice(SIZES[1:]), 5), (6, 3, 7), (300, 6), (3, 4000)]),
    }.get(kind, (rng.choice(SIZES), rng.choice(SIZES)))
    making = {"chains": chain, "reductions": reduction, "norms": norm, "comparisons": comparison, "masks": mask}[kind]
    return Program(seed, kind, dtype, shape, rng.random() < 0.5, tuple(making(rng, shape) for _ in range(EXPRESSIONS)))


def chain(rng: random.Random, shape: tuple[int, ...]) -> str:
    text = "x"
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(UNARY).format(x=text) if rng.random() < 0.6 else rng.choice(BINARY).format(x=text, y=rng.choice(("y", "x", "y.exp()")))
        text = text if text.startswith("(") and text.endswith(")") else f"({text})"
    return text


def reduction(rng: random.Random, shape: tuple[int, ...]) -> str:
    last = rng.randrange(len(shape))
    dims = tuple(d for d in range(len(shape)) if rng.random() < 0.5) or (last,)
    return rng.choice(REDUCED).format(x=rng.choice(("x", "x", "x", "(x - y)", "(x * 2)")), d=dims, l=last)


def norm(rng: random.Random, shape: tuple[int, ...]) -> str:
    return rng.choice([n for n in NORMS if shape[-1] > 1 or "instance_norm" not in n]).format(x=rng.choice(("x", "x", "(x + y)")), y="y")


def comparison(rng: random.Random, shape: tuple[int, ...]) -> str:
    return rng.choice(LOGICAL).format(x=rng.choice(("x", "x.abs()", "(x + y)")), y=rng.choice(("y", "-y", "0")).replace("0", "torch.zeros_like(y)"))


def mask(rng: random.Random, shape: tuple[int, ...]) -> str:
    n, m = rng.choice(SIZES), rng.choice(SIZES)
    return rng.choice(MASKS).format(n=n, m=m, k=rng.randint(-3, max(n, m)), t=rng.choice(DTYPES), c=rng.choice((torch.int64, torch.int32, torch.float32)))


def inputs(program: Program, call: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(program.seed * CALLS + call)
    limits = torch.finfo(program.dtype)
    # where float32 sums and squares, the ends of its own range are known to differ: eager's CPU kernels accumulate in float64
    power = 0.4 if program.kind in ("reductions", "norms") and program.dtype != torch.float16 else 1.0
    made = []
    for _ in range(2):
        x = torch.randn(program.shape, generator=generator, dtype=torch.float64)
        match call % CALLS:
            case 1:
                x = x + 0.1 / limits.eps  # far from 0 beside how it spreads
            case 2:
                x = x + 1e-3 / limits.eps
            case 3:
                x = x * limits.smallest_normal**power  # partly subnormal
            case 4:
                x = x * limits.max ** (power / 2)
            case 5:
                x = x * (limits.max / 8) ** power
            case 6:
                x = scattered(x, generator, (math.inf, -math.inf, 0.0, -0.0))
            case 7:
                x = scattered(x, generator, (math.nan, limits.max**power, -(limits.max**power), limits.tiny**power))
            case 8:
                x = torch.full_like(x, float(x.reshape(-1)[0]) * 100)
            case 9:
                x = x.round()
        made.append(x.clamp(-limits.max, limits.max).to(program.dtype) if call % CALLS != 6 else x.to(program.dtype))
    return made


def scattered(x: torch.Tensor, generator: torch.Generator, special: tuple[float, ...]) -> torch.Tensor:
    picks = torch.randint(0, 12 * len(special), x.shape, generator=generator)
    for i, number in enumerate(special):
        x = torch.where(picks == i, torch.tensor(number, dtype=x.dtype), x)
    return x


def differences(program: Program, device: str = "cpu", **options: object) -> Iterator[str]:
    """What is wrong, as lines of text; one for each expression and input. device: where eager and compiled programs run; masks are made on CPUs."""
    dynacompile.reset()
    function = program.function()
    compiled = dynacompile.compile(function, dynamic=False, options={"precise": program.precise, **options})
    for call in range(1 if program.kind == "masks" else CALLS):
        given = inputs(program, call)
        there = [t.to(device) for t in given]
        wanted, exact = [t.cpu() for t in function(*there)], function(*(t.double() for t in given))
        others = [function(*nudged(given, program.seed + k)) for k in range(3)]
        for i, (text, *results) in enumerate(zip(program.expressions, (t.cpu() for t in compiled(*there)), wanted, exact, strict=True)):
            told = wrong(*results, [other[i] for other in others], program)
            if told and program.kind == "norms":
                told = wrong(*results, [other[i] for other in others], program, None, by_rounded_mean(text, given))
            if told and program.kind == "chains":
                told = wrong(*results, [other[i] for other in others], program, reachable(*results[::2], replace(program, expressions=(text,)), given))
            if told:
                yield f"call {call}, {text}: {told}"


def nudged(given: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """The inputs in float64, off by the rounding of their dtype."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(given[0].dtype).eps
    return [t.double() * (1 + eps * (2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1)) for t in given]


CENTRED = re.compile(r"F\.(batch|layer|group|instance)_norm\((x|\(x \+ y\))[,[]")


def by_rounded_mean(expression: str, given: list[torch.Tensor]) -> torch.Tensor | float:
    """How far a norm's result is off where its mean is rounded to the dtype, and all else is exact."""
    found = CENTRED.match(expression)
    if found is None:
        return 0.0
    x, y = (t.double() for t in given)
    value, one = (x if found[2] == "x" else x + y), {"batch": 1, "layer": x.dim() - 1}.get(found[1], 0)
    dims = [one] if found[1] == "layer" else [d for d in range(x.dim()) if d != one]
    spread = (value.var(dims, correction=0, keepdim=True) + 1e-5).sqrt()
    return (torch.finfo(given[0].dtype).eps / 2 * value.mean(dims, keepdim=True).abs() / spread).nan_to_num(0, 0)


class Roundings(TorchDispatchMode):
    """Moves the result of each operation by a random rounding of `dtype`. Numbers are float64, but where each is stored in half precision: then it is the
    nearest of those, or, of operations whose last bit is nobody's promise, a neighbour. Every second run has the dtype's range, the others float64's."""

    def __init__(self, dtype: torch.dtype, stored: bool, seed: int, shape: tuple[int, ...]):
        super().__init__()
        self.left = torch.zeros(shape, dtype=torch.bool)  # where a number was beyond the dtype's range
        self.dtype, self.stored, self.bounded = dtype, stored, seed % 2 == 1
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in POSITIVE and isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            least = torch.finfo(self.dtype).smallest_normal * self.random(result).abs()
            result = torch.where((result == 0) & args[0].isfinite(), least, result)
        if isinstance(result, tuple):
            return (self.moved(result[0], operation), *result[1:])
        return self.moved(result, operation) if isinstance(result, torch.Tensor) else result

    def moved(self, result: torch.Tensor, operation: object) -> torch.Tensor:
        if result.dtype != torch.float64:
            return result
        limits = torch.finfo(self.dtype)
        if operation in (aten.maximum, aten.minimum):  # which zero of two it is depends on where in a vector it stands
            return torch.where(result == 0, result * self.random(result), result)
        if operation not in SELECTIONS:
            size = 0 if self.stored and operation in ROUNDED_ONCE else 1
            spacing = limits.eps * result.abs().clamp(min=limits.smallest_normal)
            result = torch.where((result == 0) | ~result.isfinite(), result, result + size * spacing * self.random(result))
        if self.stored:
            return result.to(self.dtype).double()
        beyond = result.abs() > limits.max
        self.left = self.left | (beyond & result.isfinite()) if beyond.shape == self.left.shape else self.left
        return torch.where(beyond, result * math.inf, result) if self.bounded else result

    def random(self, like: torch.Tensor) -> torch.Tensor:
        return 2 * torch.rand(like.shape, generator=self.generator, dtype=torch.float64) - 1


def reachable(got: torch.Tensor, exact: torch.Tensor, program: Program, given: list[torch.Tensor]) -> torch.Tensor:
    """Where a program's only result is no further from float64's than random roundings lead. Of half precision also where numbers within the chain leave
    the dtype's range: eager has infinities there, and kernels have numbers."""
    limits, doubles = torch.finfo(program.dtype), [t.double() for t in given]
    a, e = got.double(), exact.double()
    furthest, left = torch.zeros_like(e), torch.zeros_like(e, dtype=torch.bool)
    for k in range(RUNS):
        with Roundings(program.dtype, program.precise and narrow(program), program.seed * RUNS + k, tuple(e.shape)) as mode:
            (other,) = program.function()(*doubles)
        alike = (other == e) | (other.isnan() & e.isnan())
        furthest = furthest.maximum(torch.where(alike, 0, (other.double() - e).abs().nan_to_num(math.inf)))
        left |= mode.left
    near = e.isfinite() & ((a - e).abs() <= 4 * furthest + 2 * limits.eps * e.abs() + limits.smallest_normal)
    return near | furthest.isinf() | (a == e) | (a.isnan() & e.isnan()) | (left & narrow(program))


def wrong(
    got: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    others: list[torch.Tensor],
    program: Program,
    reached: torch.Tensor | None = None,
    shifted: torch.Tensor | float = 0.0,
) -> str | None:
    """How a result differs, None where it is right. reached: where roundings within a chain lead as far. shifted: what a mean's rounding moves it."""
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype} {tuple(got.shape)} for {eager.dtype} {tuple(eager.shape)}"
    same = (got == eager) | (got.isnan() & eager.isnan()) if got.is_floating_point() else got == eager
    if same.all():
        return None
    if not got.is_floating_point():
        # narrow numbers that were not rounded compare otherwise: right where float64 says the same
        unlike = ~same & (got != exact.to(got.dtype))
        return f"{got[unlike][0]} for {eager[unlike][0]}" if unlike.any() and not narrow(program) else None
    a, b, e = got.double(), eager.double(), exact.double()
    eps = max(torch.finfo(got.dtype).eps, torch.finfo(program.dtype).eps)
    tiny = torch.finfo(program.dtype).smallest_normal
    if program.precise and narrow(program) and program.kind == "chains":
        right = same | ((a - b).abs() <= 2 * eps * b.abs() + tiny) | ((a - e).abs() <= (b - e).abs()) | ~torch.isfinite(b)
    else:
        noise = torch.stack([(other.double() - e).abs().nan_to_num(0, 0, 0) for other in others]).amax(0)
        noise = noise.maximum(noise[noise > 0].median()) if program.kind in ("reductions", "norms") and (noise > 0).any() else noise
        # long sums, and roundings within a chain, of which the inputs' tell little
        loose = 64 if program.kind == "reductions" else 4096 if program.dtype == torch.float64 else 16
        allowed = max(loose / 2, 8) * eps * e.abs() + loose * noise + 8 * (b - e).abs() + 4 * tiny + shifted
        right = same | ((a - e).abs() <= allowed) | ((a - b).abs() <= 8 * eps * b.abs())
        right |= ~torch.isfinite(b)  # eager overflowed
        right |= (got == exact.to(got.dtype)) | (a.isnan() & e.isnan())
    if reached is not None:
        right |= reached
    if right.all():
        return None
    at = (~right).nonzero()[0].tolist()
    place = tuple(at)
    return f"at {at}: {a[place].item():.8g}, eager {b[place].item():.8g}, float64 {e[place].item():.8g}; {int((~right).sum())} of {a.numel()}"


def narrow(program: Program) -> bool:
    return program.dtype in (torch.float16, torch.bfloat16) and program.kind != "masks"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.extremes", description="Compare numbers at the edges of their dtypes.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--cpp-flags", default="", help="for the C++ compiler, such as -march=x86-64-v4")
    parser.add_argument("--device", default="cpu", help="for all kinds but masks")
    parser.add_argument("--kind", choices=KINDS, help="programs of this kind alone")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = points = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        if given.kind and program.kind != given.kind:
            continue
        points += EXPRESSIONS * (1 if program.kind == "masks" else CALLS)
        device = "cpu" if program.kind == "masks" else given.device
        told = list(differences(program, device, cpp_flags=given.cpp_flags))
        failed += bool(told)
        for line in told:
            print(f"seed {seed}, {program.kind}, {program.dtype}{', precise' if program.precise else ''}, {program.shape}: {line}", flush=True)
    print(f"{given.last - given.first} programs, {points} points, {failed} programs differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
