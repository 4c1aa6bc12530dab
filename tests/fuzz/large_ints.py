"""python -m tests.fuzz.large_ints FIRST LAST [--backend NAME]: arithmetic on ints of any size, and on floats at their edges, that became symbols.

A program is a function of a tensor, two ints and a float. It is called with small numbers that change, so that they are symbols, and then with
numbers at and beyond the boundaries of 32 and 64 bits. What it returns, or the class of what it raises, is eager's. Kernels round each result
(`precise`), as eager does: float16 has infinities where float32 has large numbers.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile

EDGES = [
    0,
    1,
    -1,
    7,
    255,
    -128,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    2**64 + 3,
    10**30,
]
FLOATS = [0.0, -0.0, 1.0, -2.5, 0.1, 1e308, -1e308, 5e-324, 2.0**53 + 2, 1e19, math.inf, -math.inf, math.nan, 3e38, 1e-45]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]


@dataclass(frozen=True)
class Program:
    source: str
    dtype: str
    calls: tuple[tuple[int, int, float], ...]

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch, "math": math}
        exec(self.source, names)
        return names["f"]


def generate(seed: int) -> Program:
    choose = random.Random(seed)
    lines = ["def f(x, a, b, r):"]
    numbers = ["a", "b"]
    for i in range(choose.randint(1, 3)):
        lines.append(f"    n{i} = {whole(choose, numbers, 2)}")
        numbers.append(f"n{i}")
    reals = ["r"]
    if choose.random() < 0.5:
        lines.append(f"    s = {real(choose, reals, numbers)}")
        reals.append("s")
    if choose.random() < 0.4:
        lines += [f"    if {comparison(choose, numbers, reals)}:", "        x = x + 1"]
    lines.append(f"    return {used(choose, numbers, reals)}, {', '.join(choose.sample(numbers, min(2, len(numbers))))}, {reals[-1]}")
    small = [(choose.randint(2, 9), choose.randint(2, 9), choose.uniform(0.5, 3)) for _ in range(3)]
    large = [(edge(choose), edge(choose), choose.choice(FLOATS)) for _ in range(5)]
    return Program("\n".join(lines), choose.choice(DTYPES), (*small, *large))


def edge(choose: random.Random) -> int:
    return choose.choice(EDGES) + choose.choice((0, 0, 1, -1))


def whole(choose: random.Random, names: list[str], depth: int) -> str:
    """An expression of ints."""
    if depth == 0 or choose.random() < 0.15:
        return choose.choice(names) if choose.random() < 0.75 else str(choose.choice([2, 3, 5, 2**31, 2**62, 2**63, 2**65]))
    first, second = whole(choose, names, depth - 1), whole(choose, names, depth - 1)
    return choose.choice(
        [
            *(f"({first} {sign} {second})" for sign in ("+", "-", "*", "+", "*")),
            f"({first} // {second})",
            f"({first} % {second})",
            f"({first} << {choose.randint(0, 40)})",
            f"({first} >> {choose.randint(0, 40)})",
            f"({first} {choose.choice('&|^')} {second})",
            f"(-{first})",
            f"(~{first})",
            f"abs({first})",
            f"({first} ** {choose.randint(1, 4)})",
            f"max({first}, {second})",
            f"min({first}, {second})",
            f"divmod({first}, {second})[{choose.randint(0, 1)}]",
            f"({first} if {first} < {second} else {second})",
        ]
    )


def real(choose: random.Random, reals: list[str], names: list[str]) -> str:
    name, number = choose.choice(reals), whole(choose, names, 1)
    return choose.choice(
        [
            f"{name} * {number}",
            f"{name} + {number}",
            f"{number} / {choose.choice(names)}",
            f"float({number})",
            f"-{name}",
            f"{name} * {name} - 1.5",
            f"max({name}, 0.5)",
        ]
    )


def comparison(choose: random.Random, names: list[str], reals: list[str]) -> str:
    sign = choose.choice(["<", "<=", ">", ">=", "==", "!="])
    left = whole(choose, names, 1) if choose.random() < 0.7 else choose.choice(reals)
    return f"{left} {sign} {whole(choose, names, 1)}"


def used(choose: random.Random, names: list[str], reals: list[str]) -> str:
    """The number beside a tensor."""
    number, other = choose.choice(names), choose.choice(reals)
    return choose.choice(
        [
            f"x + {number}",
            f"x * {number}",
            f"{number} - x",
            f"x < {number}",
            f"x // {number}",
            f"x.new_full((2,), {number})",
            f"torch.full((2,), {number}, dtype=torch.int64)",
            f"torch.tensor({number}) + 1",
            f"torch.arange(3) * {number}",
            f"x.clamp(max={number})",
            f"x.masked_fill(x == 0, {number})",
            f"torch.where(x == 0, {number}, x)",
            f"torch.add(x, x, alpha={number})",
            f"x * {other}",
            f"x + {other}",
            f"x[{number} % 2]",
            f"x + ({number} + {choose.choice(names)})",
            f"x.sum() * {number} + {other}",
        ]
    )


def outcome(function: Callable[..., Any], program: Program, call: tuple[int, int, float]) -> Any:
    """What a call gives: its value as text, for floats tell -0.0 and nan apart so; or the class of its error."""
    try:
        result = function(torch.ones(2, dtype=getattr(torch, program.dtype)), *call)
    except Exception as error:  # noqa: BLE001 - its class is compared
        return type(error).__name__
    return repr([(str(r.dtype), r.tolist()) if isinstance(r, torch.Tensor) else r for r in result])


def difference(program: Program, **options: Any) -> str | None:
    """The first call in which the compiled program differs, as text."""
    dynacompile.reset()
    if "backend" not in options or options["backend"] == "default":
        options["options"] = {"precise": True, **options.get("options", {})}
    plain, compiled = program.function(), dynacompile.compile(program.function(), **options)
    for call in program.calls:
        expected, got = outcome(plain, program, call), outcome(compiled, program, call)
        if got != expected:
            return f"{call}: eager {expected}, compiled {got}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.large_ints", description="Compare arithmetic on large numbers, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="eager", help="eager, aot_eager, default, or reference: default by the interpreter")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"options": {"reference": True}} if given.backend == "reference" else {"backend": given.backend}
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        if told := difference(program, **options):
            failed += 1
            print(f"seed {seed}, {program.dtype}: {told}\n{program.source}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
