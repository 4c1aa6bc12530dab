"""Operations of torch on operands of random types, written in place, to `out=`, or not at all: eager refuses many of these, and fakes take part of them.

`python -m tests.fuzz.operand_types FIRST LAST [--backend NAME]`: each point is one call; its result and type, or the kind of its error, are compared.
From seed 500000 on, calls are given numbers that the types may not hold, most of them in a clause that takes the error; from seed 1000000 on, these are
operations over lists, of few members and of many. From seed 2000000 on the numbers are arguments that vary, and what the types may not hold comes last.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import dynacompile

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
INSIDE = ("requires_grad_", "share_memory_", "rename_", "set_", "resize_", "resize_as_", "detach_", "apply_", "map_", "map2_")
"""What is no arithmetic, or takes functions."""
WITHOUT = ("sparse", "mkldnn", "quant", "register", "storage", "numpy", "random", "record", "names", "reduce", "data_ptr", "empty", "pin_memory")
"""Parts of the names of what gives other things than numbers, or numbers that nothing was written to."""


def is_arithmetic(name: str) -> bool:
    return not name.startswith("_") and name not in INSIDE and not any(part in name for part in WITHOUT)


IN_PLACE = [n for n in sorted(dir(torch.Tensor)) if n.endswith("_") and is_arithmetic(n)]
WRITING = [n for n in sorted(dir(torch)) if n in dir(torch.Tensor) and "out=" in str(getattr(torch, n).__doc__) and is_arithmetic(n)]
MULTIPLIED = ["add", "sub", "rsub", "subtract", "addcmul", "addcdiv", "addmm", "lerp", "clamp_min", "clamp_max", "clamp"]
OPERANDS = ("", "y", "y, y", "y, y.clone()", "2", "1.5", "1j", "True", "0", "y, 1.5", "y, 2", "1.5, 2.5", "0, k, y", "0, i, y", "m, y", "m, 1.5")
OPERANDS += ("y, alpha=1.5", "y, alpha=2", "y, alpha=True", "y, alpha=1j", "y, y, value=1.5", "y, rounding_mode='floor'", "y, k", "k")
SIZES = ("", "[0]", "[:, :2]")
NUMBERED = (
    "torch.full((2,), {n}, dtype=y.dtype)", "torch.full_like(x, {n}, dtype=y.dtype)", "x.fill_({n})", "x.masked_fill(m, {n})", "x.masked_fill_(m, {n})",
    "torch.where(m, x, {n})", "torch.where(m, {n}, x)", "x.clamp({n})", "x.clamp_(max={n})", "x.clamp_min_({n})", "x.clip({n}, {o})", "x ** {n}", "x.pow_({n})",
    "torch.add(x, y, alpha={n})", "torch.rsub(x, y, alpha={n})", "torch.addcmul(x, y, y, value={n})", "torch.addmm(x, y[:, :2], y[:2], beta={n}, alpha={o})",
    "torch.linspace({n}, {o}, 3, dtype=y.dtype)", "torch.nn.functional.pad(x, (1, 2), value={n})", "torch.nn.functional.threshold(x, {n}, {o})",
    "torch.nn.functional.hardtanh(x, {n}, {o})", "torch._foreach_clamp_max([x, x], {n})[0]", "torch._foreach_pow([x], {n})[0]", "x + {n}", "x * {n}", "x < {n}",
    "torch.eq(x, {n})", "x // {n}", "torch.lerp(x, x, {n})", "torch.scatter(x, 1, k, {n})", "x.index_fill(0, i, {n})",
    "x.new_full((2,), {n})", "x.clone()[0].fill_({n})",
)  # fmt: skip
NUMBERS = (
    "2",
    "-1",
    "300",
    "-300",
    "40000",
    "2**31",
    "-2**63",
    "1.5",
    "-1e5",
    "7e4",
    "1e39",
    "-1e300",
    "float('inf')",
    "float('nan')",
    "1j",
    "2 + 1e39j",
    "True",
)
NARROW = (*DTYPES, torch.int8, torch.int32, torch.float16)
FROM_NUMBERED = 500_000
FROM_LISTED = 1_000_000
FROM_VARYING = 2_000_000
VARYING = (*NUMBERED, "x.__setitem__(0, {n})", "torch.tensor({n}, dtype=y.dtype)", "torch.scalar_tensor({n}, dtype=y.dtype)", "x.fill_diagonal_({n})")
HARMLESS = (("2", "3", "4"), ("1.5", "2.25", "0.5"))
OF_LISTS = [n for n in sorted(dir(torch)) if n.startswith("_foreach_") and n not in ("_foreach_mm", "_foreach_powsum", "_foreach_norm")]
FOR_LISTS = ("", "{n}", "[{n}] * {c}", "[y] * {c}", "[y] * {c}, alpha={n}", "[y] * {c}, [y] * {c}", "[y] * {c}, [y] * {c}, value={n}", "torch.tensor(1.5)")


@dataclass(frozen=True)
class Point:
    """source: an expression of the operands x and y, of `out`, of numbers to index with, and of n and o. numbers: what n and o are, call by call."""

    source: str
    types: tuple[torch.dtype, torch.dtype, torch.dtype]
    is_caught: bool = False
    numbers: tuple[tuple[Any, Any], ...] = ((0, 0),)

    def run(self, backend: dict[str, Any] | None) -> tuple[str, torch.Tensor | None]:
        """Of the last call: (the kind of the error, or nothing; what was written, or else the result)"""
        scope: dict[str, Any] = {"torch": torch}
        taken = f"try:\n        result = {self.source}\n    except Exception as error:\n        return torch.tensor(len(type(error).__name__) * 1000), x, out"
        line = taken if self.is_caught else f"result = {self.source}"
        exec(compile(f"def call(x, y, out, k, i, m, n, o):\n    {line}\n    return result, x, out", "<point>", "exec"), scope)
        call: Callable[..., Any] = scope["call"]
        if backend is not None:
            dynacompile.reset()
            call = dynacompile.compile(call, **backend)
        for numbers in self.numbers:
            made = self.call(call, *numbers)
        return made

    def call(self, call: Callable[..., Any], *numbers: Any) -> tuple[str, torch.Tensor | None]:
        torch.manual_seed(0)
        x, y, out = (torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).to(dtype) for dtype in self.types)
        places = (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]), torch.tensor([[True, False, True], [False, True, True]]))
        try:
            found = call(x, y, out, *places, *numbers)
        except Exception as error:  # noqa: BLE001  (the point is to compare it)
            return type(error).__name__, None
        return "", torch.stack([t.to(torch.complex128).sum() for t in found if isinstance(t, torch.Tensor)])


def point(seed: int) -> Point:
    """The first call drawn that some overload of its operation takes."""
    rng = random.Random(seed)
    if seed >= FROM_VARYING:
        return varying(rng)
    if seed >= FROM_LISTED:
        return next(at for at in iter(lambda: listed(rng), None) if at.run(None)[0] != "TypeError")
    if seed >= FROM_NUMBERED:
        source = rng.choice(NUMBERED).format(n=rng.choice(NUMBERS), o=rng.choice(NUMBERS))
        return Point(source, (rng.choice(NARROW), rng.choice(NARROW), rng.choice(NARROW)), rng.random() < 0.7)
    return next(at for at in iter(lambda: drawn(rng), None) if at.run(None)[0] != "TypeError")


def varying(rng: random.Random) -> Point:
    """Numbers of one type in three calls, of which the last may be one that the types can't hold."""
    odd = [eval(rng.choice(NUMBERS)) for _ in "no"]
    first = [[eval(n) for n in rng.sample(HARMLESS[isinstance(number, float)], 2)] for number in odd]
    source = rng.choice(VARYING).format(n="n", o="o")
    return Point(source, (rng.choice(NARROW), rng.choice(NARROW), rng.choice(NARROW)), rng.random() < 0.5, (*zip(*first), tuple(odd)))


def listed(rng: random.Random) -> Point:
    """One operation over a list, of which from eight members on capture records one of each kind."""
    name, count = rng.choice(OF_LISTS), rng.choice((1, 3, 8, 10))
    other = rng.choice(("", "", "[:-1] + [y.clone()]"))
    operands = rng.choice(FOR_LISTS).format(n=rng.choice(NUMBERS), c=count)
    call = f"torch.{name}(l{f', {operands}' if operands else ''})"
    types = (rng.choice(NARROW), rng.choice(NARROW), rng.choice(NARROW))
    both = f"(l := [x.clone() for _ in range({count})]{other}, {call})"
    return Point(f"torch.stack([*map(torch.Tensor.cdouble, {both}[{0 if name.endswith('_') else 1}])])", types, rng.random() < 0.7)


def drawn(rng: random.Random) -> Point:
    kind = rng.choices(("in place", "out", "plain"), (5, 4, 2))[0]
    size, operands = rng.choices(SIZES, (6, 1, 1))[0], rng.choice(OPERANDS)
    operands = operands.replace("y", f"y{size}")
    types = (rng.choice(DTYPES), rng.choice(DTYPES), rng.choice(DTYPES))
    if kind == "in place":
        fresh = "(x * 1)" if rng.random() < 0.3 else "x"
        smaller = "[0]" if rng.random() < 0.15 else size
        return Point(f"{fresh}{smaller}.{rng.choice(IN_PLACE)}({operands})", types)
    if kind == "plain":
        return Point(f"torch.{rng.choice(MULTIPLIED)}(x{size}, {operands})", types)
    return Point(f"torch.{rng.choice(WRITING)}({', '.join(filter(None, (f'x{size}', operands)))}, out=out{size})", types)


def unlike(at: Point, backend: dict[str, Any]) -> str:
    """How the compiled call differs from eager's."""
    want, expected = at.run(None)
    got, result = at.run(backend)
    if got != want:
        return f"{got or 'no error'}, eager: {want or 'no error'}"
    same = expected is None or result is not None and result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-2, atol=1e-2, equal_nan=True)
    return "" if same else f"{result}, eager: {expected}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", choices=("reference", "eager", "aot_eager"), default="reference")
    given = parser.parse_args()
    backend: dict[str, Any] = {"options": {"reference": True}} if given.backend == "reference" else {"backend": given.backend}
    wrong = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(given.first, given.last):
            at = point(seed)
            if found := unlike(at, backend):
                wrong += 1
                print(f"point {seed}: {at.source} of {', '.join(map(str, at.types))}, {at.numbers}: {found}", flush=True)
    print(f"{given.last - given.first} points, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
