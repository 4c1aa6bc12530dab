"""python -m tests.fuzz.jumps FIRST LAST: what jumps where rounding moves a number, right behind an operation of half precision, against eager.

A program is its seed: a dtype, operands (near 0, near a threshold, or so large that their product is inf in float16), an operation that eager rounds, and one
whose result is a bool, an int, a place, or a number with jumps: comparisons, questions, whole parts, remainders, greatest elements and where they are. Its one
kernel computes in float32 and must see the rounded number, so the results are eager's to the bit. From seed 100000 on one to three operations lie between the
first one and the jump.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

import dynacompile

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gradient(name: str, t: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of a function that has another slope from some number on, by its operator."""
    aten = torch.ops.aten
    match name:
        case "leaky_relu":
            return aten.leaky_relu_backward(b, t, 0.5, False)
        case "hardtanh" | "relu6":
            return aten.hardtanh_backward(b, t, *((0.0, 6.0) if name == "relu6" else (-1.0, 0.5)))
        case _:
            return getattr(aten, f"{name}_backward")(b, t)


ROUNDED: dict[str, Operation] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "div": lambda a, b: a / b,
    "times a number": lambda a, b: a * 0.3,
    "square": lambda a, b: a.square(),
    "sub": lambda a, b: a - b,
    "large ints": lambda a, b: (a * 1000).float().nan_to_num().clamp(-1e6, 1e6).int(),
}
JUMPS: dict[str, Operation] = {
    **{name: lambda t, b, name=name: getattr(torch, name)(t) for name in ("isinf", "isnan", "isfinite", "isposinf", "floor", "ceil", "trunc", "round", "sign")},
    **{name: lambda t, b, name=name: getattr(torch, name)(t) for name in ("logical_not", "argmax", "argmin", "frac", "count_nonzero", "nan_to_num", "signbit")},
    **{f"{name} of a number": lambda t, b, name=name: getattr(t, name)(0.5) for name in ("gt", "ge", "lt", "le", "eq", "ne", "fmod", "remainder")},
    **{f"{name} of a tensor": lambda t, b, name=name: getattr(t, name)(b) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{f"{name} of rows": lambda t, b, name=name: getattr(t, name)(-1) for name in ("argmax", "argmin", "any", "all")},
    "rows' greatest": lambda t, b: t.max(-1)[1],
    "rows' least": lambda t, b: t.min(-1)[1],
    "running": lambda t, b: t.cummax(-1)[1],
    "and": torch.logical_and,
    "fmod of a tensor": lambda t, b: torch.fmod(t, b.abs() + 1),
    "remainder of a tensor": lambda t, b: torch.remainder(t, b),
    "bool": lambda t, b: t.bool(),
    "int": lambda t, b: t.clamp(-1000, 1000).int(),
    "whole parts": lambda t, b: torch.div(t, 0.5, rounding_mode="floor"),
    "bins": lambda t, b: torch.bucketize(t, torch.linspace(-1, 1, 9, dtype=t.dtype, device=t.device)),
    "chosen": lambda t, b: torch.where(t > 0.25, b, -b),
    **{f"gradient of {name}": lambda t, b, name=name: gradient(name, t, b) for name in ("relu6", "hardtanh", "hardsigmoid", "hardswish", "leaky_relu")},
    "threshold": lambda t, b: torch.nn.functional.threshold(t, 0.25, 9.0),
    "hard shrink": lambda t, b: torch.nn.functional.hardshrink(t, 0.25),
}
MORE: dict[str, Operation] = {
    "plus": lambda t, b: t + b,
    "minus a number": lambda t, b: t - 0.3,
    "times": lambda t, b: t * b,
    "times a number": lambda t, b: t * 1.7,
    "a share": lambda t, b: t / 3,
    "relu": lambda t, b: t.relu(),
    "sizes": lambda t, b: t.abs(),
    "negated": lambda t, b: -t,
    "chosen": lambda t, b: torch.where(b > 0, t, t * 0.5),
    "turned": lambda t, b: t.t().contiguous().t(),
    "square": lambda t, b: t * t,
    "clamped": lambda t, b: t.clamp(-3, 3),
    "plus the greatest": lambda t, b: t + t.amax(-1, keepdim=True),
    "joined": lambda t, b: torch.cat([t, b], 0)[6:18],
}
CHAINED = 100_000


@dataclass(frozen=True)
class Program:
    seed: int
    dtype: torch.dtype
    scale: float
    near: bool
    rounded: str
    jump: str
    more: tuple[str, ...] = ()

    def inputs(self) -> list[torch.Tensor]:
        """near: products and sums lie around the threshold of comparisons."""
        generator = torch.Generator().manual_seed(self.seed)
        a, b = (torch.randn(12, 37, generator=generator) * self.scale for _ in range(2))
        if self.near:
            a, b = 1 + a / 100, 0.5 + b / 100
        return [a.to(self.dtype), b.to(self.dtype)]

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        t = ROUNDED[self.rounded](a, b)
        for name in self.more:
            t = MORE[name](t, b)
        return JUMPS[self.jump](t, b)


def generate(seed: int) -> Program:
    draw = random.Random(seed)
    scale, dtype = draw.choice((1.0, 1.0, 1e-4, 300.0)), draw.choice((torch.float16, torch.bfloat16))
    near, rounded, jump = draw.random() < 0.4, draw.choice([*ROUNDED]), draw.choice([*JUMPS])
    if rounded == "large ints" and jump in ("frac", "hard shrink"):  # which eager has not
        jump = "fmod of a tensor"
    more = tuple(draw.choice([*MORE]) for _ in range(draw.choice((1, 1, 2, 3)))) if seed >= CHAINED and rounded != "large ints" else ()
    if more and jump == "signbit":  # of NaN, which a chain may lead to, it is any
        jump = "sign"
    return Program(seed, dtype, scale, near, rounded, jump, more)


def check(program: Program, reference: bool = True, device: str = "cpu") -> None:
    inputs = [t.to(device) for t in program.inputs()]
    dynacompile.reset()
    compiled = dynacompile.compile(lambda a, b: program(a, b), isolate_recompiles=True, options={"reference": reference, "fallback": "none"})
    have, want = compiled(*inputs), program(*inputs)
    assert have.dtype == want.dtype and torch.equal(have.nan_to_num(7), want.nan_to_num(7)), f"{(have != want).sum()} of {want.numel()} differ"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.jumps", description="Compare what jumps behind rounded numbers with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--native", action="store_true", help="by built kernels")
    given = parser.parse_args()
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            check(program, not given.native, given.device)
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]} {program}", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
