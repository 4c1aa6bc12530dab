"""python -m tests.fuzz.arrays FIRST LAST [--backend NAME] [--show]: programs over NumPy's arrays, which become operations of torch.

A program is a function of two arrays, of random types and layouts, with values at the edges of their types among them. What it returns, its types and
shapes, what it leaves in its arguments, or the class of what it raises, is eager's: to the bit, but for sums and functions such as exp, which agree
within rounding.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import dynacompile

TYPES = ["float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
EDGES = {"f": [0.0, -0.0, 1.0, -2.5, 0.5, 1.5, 3e38, np.inf, -np.inf, np.nan, 7.0, -7.0, 1e-45], "i": [0, 1, -1, 2, 3, -3, 7, -128, 127, 5], "b": [0, 1]}
BINARY = "+ - * / // % ** & | ^ << >> < <= == != > >= @".split()
FUNCTIONS = """np.add np.subtract np.multiply np.true_divide np.floor_divide np.remainder np.power np.maximum np.minimum np.logical_and np.logical_or
np.less np.equal np.bitwise_and np.matmul np.dot""".split()
OF_ONE = """np.negative np.absolute np.sign np.square np.exp np.log np.sqrt np.sin np.tanh np.floor np.ceil np.trunc np.rint np.isnan np.isinf np.isfinite
np.logical_not np.invert np.ravel np.transpose np.sum np.mean np.max np.min np.prod np.any np.all np.argmax np.argmin np.std np.var np.cumsum np.round
np.log1p np.expm1 np.arctan""".split()
METHODS = """sum() mean() max() min() prod() any() all() argmax() argmin() std() var(ddof=1) cumsum() sum(axis=0) mean(axis=1) max(axis=-1,keepdims=True)
min(axis=0) argmax(axis=1) prod(axis=0) cumsum(axis=1) any(axis=1) reshape(-1) reshape((3,2)) ravel() flatten() transpose() T copy() astype(np.float32)
astype(np.float64) astype(bool) astype(np.int64) round() clip(-1,2) shape dtype size ndim tolist() squeeze()""".split()
ITEMS = ["0", "1", "-1", "(0,1)", "1:", ":1", "...,0", "None", "::2", "(slice(None),1)", "[0,1]", "[1]", "::-1", "V > 0", "1,1:"]
WRITES = ["{one}[0] = 2", "{one}[...] = {one} + 1", "{one} += 1", "{one} *= 2", "torch.from_numpy({one}).add_(1)", "{one}[:1] = b"]
WRITES += ["{one}[[0, -1]] = {other}.ravel()[:1]", "{one}[{one} > 0] = {other}.ravel()[0]", "{one}[np.array([0])] = {other}.ravel()[1:2]"]
CLOSE = ("exp", "log", "sqrt", "sin", "tanh", "expm1", "arctan", "sum", "mean", "prod", "std", "var", "cumsum", "**", "power", "@", "matmul", "dot")


EXTREMES = ("maximum", "minimum", "max(", "min(", "clip")  # of zeros of both signs NumPy gives one or the other


@dataclass(frozen=True)
class Program:
    source: str
    arrays: tuple[np.ndarray, np.ndarray]

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"np": np, "torch": torch}
        exec(self.source, names)
        return names["f"]


def array(pick: random.Random) -> np.ndarray:
    dtype = np.dtype(pick.choice(TYPES))
    shape = pick.choice(((2, 3), (2, 3), (3,), (1, 3), (2, 1), (6,)))
    edges = EDGES.get(dtype.kind, EDGES["i"])
    with np.errstate(all="ignore"):
        made = np.array([pick.choice(edges) for _ in range(int(np.prod(shape)))], dtype=np.float64 if dtype.kind == "f" else np.int64).astype(dtype)
    made = made.reshape(shape)
    way = pick.randrange(5)
    if way == 0:
        return np.asfortranarray(made)
    return np.repeat(made, 2, axis=-1)[..., ::2] if way == 1 else made


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    names, lines = ["a", "b"], ["def f(a, b):"]
    for number in range(pick.randint(1, 5)):
        one, other, new = pick.choice(names), pick.choice(names), f"v{number}"
        other = pick.choice((other, other, other, "2", "1.5", "-3", "np.float32(2)", "np.int64(3)", "True"))
        way = pick.randrange(12)
        if way < 3:
            text = f"{one} {pick.choice(BINARY)} {other}" if pick.random() < 0.8 else f"{other} {pick.choice(BINARY)} {one}"
        elif way < 5:
            text = f"{pick.choice(FUNCTIONS)}({one}, {other})"
        elif way < 7:
            text = f"{pick.choice(OF_ONE)}({one})"
        elif way < 9:
            text = f"{one}.{pick.choice(METHODS)}"
        elif way == 9:
            text = f"{one}[{pick.choice(ITEMS).replace('V', one)}]"
        elif way == 10:
            text = pick.choice(
                (
                    f"np.where({one}, {one}, {other})",
                    f"np.clip({one}, 0, 2)",
                    f"np.stack([{one}, {one}])",
                    f"np.concatenate([a, {one}])",
                    f"-{one}",
                    f"abs({one})",
                )
            )
        else:
            lines.append(f"    {pick.choice(WRITES).format(one=one, other=pick.choice('ab'))}")
            continue
        lines.append(f"    {new} = {text}")
        names.append(new)
    lines.append(f"    return [{', '.join(names)}]")
    return Program("\n".join(lines) + "\n", (array(pick), array(pick)))


def seen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.flags.writeable, value)
    if isinstance(value, np.generic):
        return ("number", type(value).__name__, (), True, np.asarray(value))
    return value


def outcome(function: Callable[..., Any], program: Program) -> Any:
    arrays = copy.deepcopy(program.arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = list(map(seen, function(*arrays)))
        except Exception as error:  # noqa: BLE001 - its class is compared
            found = type(error).__name__  # type: ignore[assignment]
    return found, list(map(seen, arrays))


def agree(got: Any, want: Any, close: bool, signs: bool = True) -> bool:
    if isinstance(want, tuple) and len(want) == 5:
        same = isinstance(got, tuple) and got[:4] == want[:4]
        if not same or want[4].dtype.kind != "f":
            return same and np.array_equal(got[4], want[4])
        with np.errstate(all="ignore"):
            exact = np.array_equal(got[4], want[4], equal_nan=True)
            exact = exact and (not signs or np.array_equal(np.signbit(got[4])[got[4] == 0], np.signbit(want[4])[want[4] == 0]))
            return exact or close and np.allclose(got[4], want[4], rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(agree(g, w, close, signs) for g, w in zip(got, want, strict=True))
    return type(got) is type(want) and (got == want or got != got and want != want)


def difference(program: Program, **options: Any) -> str | None:
    """What the compiled program does otherwise, in two calls."""
    dynacompile.reset()
    compiled = dynacompile.compile(program.function(), isolate_recompiles=True, **options)
    close = any(word in program.source for word in CLOSE)
    signs = not any(word in program.source for word in EXTREMES)
    want = outcome(program.function(), program)
    for call in range(2):
        got = outcome(compiled, program)
        if not agree(list(got), list(want), close, signs):
            return f"call {call}: eager {want}, compiled {got}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.arrays", description="Compare programs over NumPy's arrays, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--show", action="store_true", help="print the programs alone")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        told = program.source if given.show else difference(program, backend=given.backend)
        if told is not None:
            failed += 1
            print(f"seed {seed}: {told}\n{program.source}{program.arrays}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
