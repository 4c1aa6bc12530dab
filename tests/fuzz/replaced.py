"""Programs that ask one question of an object, which is replaced by one of any other type between calls.

    python -m tests.fuzz.replaced FIRST LAST [--show]

A program is its seed: a question and some objects. To add one, write a line into QUESTIONS or OBJECTS.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import logging
import random
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dynacompile


class Color(enum.Enum):
    RED = 1


class Sized:
    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length


class Text(str):
    pass


Pair = collections.namedtuple("Pair", "a b")
OBJECTS: tuple[Callable[[], Any], ...] = (
    *(lambda: np.int64(3), lambda: np.int64(0), lambda: np.float64(0), lambda: np.float64(3), lambda: np.bool_(False), lambda: np.bool_(True)),
    *(lambda: np.datetime64("2020"), lambda: np.timedelta64(0), lambda: np.str_(""), lambda: np.str_("a"), lambda: np.bytes_(b""), lambda: np.dtype("f4")),
    *(lambda: np.array([1]), lambda: np.array(0), lambda: np.array([], dtype="U1"), lambda: np.array(["a"]), lambda: np.random.default_rng(0)),
    *(lambda: np.float32, lambda: np.sin, lambda: np.poly1d([0]), lambda: 3, lambda: 0, lambda: 1000, lambda: None, lambda: True, lambda: 2.5, lambda: "a"),
    *(lambda: fractions.Fraction(0), lambda: fractions.Fraction(3), lambda: decimal.Decimal(0), lambda: decimal.Decimal(3), lambda: datetime.timedelta(0)),
    *(lambda: datetime.timedelta(3), lambda: bytearray(), lambda: bytearray(b"a"), lambda: memoryview(b""), lambda: memoryview(b"a"), lambda: re.compile("a")),
    *(lambda: Sized(0), lambda: Sized(1), lambda: range(0), lambda: range(3), lambda: torch.Size([]), lambda: torch.finfo(torch.float32), torch.Generator),
    *(lambda: logging.getLogger(), lambda: Color.RED, lambda: Text("a"), lambda: Pair(1, 2), lambda: (), list, dict, lambda: set(), lambda: frozenset()),
    *(lambda: types.SimpleNamespace(a=1), lambda: types.MappingProxyType({}), lambda: iter([1]), lambda: slice(1, 2), lambda: b"a"),
    *(collections.deque, lambda: torch.float16),
    *(lambda: torch.float32, lambda: torch.device("cpu"), lambda: torch.ones(2), lambda: torch.zeros(()), torch.nn.Identity, lambda: len, lambda: type),
)  # fmt: skip
QUESTIONS = (
    *("2 if k else 5", "2 if not k else 5", "2 if isinstance(k, np.float64) else 5", "2 if type(k) is np.int64 else 5", "2 if (k and 1) == 1 else 5"),
    *("2 if bool(k) else 5", "2 if callable(k) else 5", "2 if k is None else 5", "2 if hasattr(k, 'item') else 5", "2 if k == 3 else 5", "k", "int(k)"),
    *("float(k)", "2 if any([k]) else 5", "2 if k in (3, 4) else 5", "len(str(k))", "2 if k < 4 else 5", "len(k)", "len(type(k).__name__)", "-k", "abs(k)"),
    *("{3: 7}.get(k, 9)", "TABLE.get(k, 9)", "2 if k in MEMBERS else 5", "len([*k])", "len({k})", "2 if isinstance(k, (int, str)) else 5", "k[0]"),
    *("getattr(k, 'a', 4)", "2 if k == K else 5", "2 if k is K else 5", "len(f'{k}')", "round(k)", "k + 1", "2 if k else (3 if k is None else 4)", "max(k, 2)"),
)


def program_of(question: str) -> Callable[[torch.Tensor], Any]:
    world = {"np": np, "TABLE": {3: 7, Color.RED: 8, "a": 6, None: 5}, "MEMBERS": {3, "a", Color.RED, torch.float32}, "K": 3, "k": None}
    exec(compile(f"def program(x):\n    return x * ({question})\n", "<program>", "exec", dont_inherit=True), world)
    return world["program"]  # type: ignore[return-value]


def outcome(call: Callable[[torch.Tensor], Any]) -> str:
    try:
        return repr(call(torch.tensor([1.0, 2.0])))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng = random.Random(seed)
    question = QUESTIONS[seed % len(QUESTIONS)]
    program = program_of(question)
    dynacompile.reset()
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True, recompile_limit=1000, options={"fallback": "none"})
    history = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in rng.choices(range(len(OBJECTS)), k=5):
            program.__globals__["k"] = OBJECTS[place]()
            history.append(f"{type(program.__globals__['k']).__name__} {str(program.__globals__['k'])[:20]}")
            want = outcome(program)
            program.__globals__["k"] = OBJECTS[place]()  # an iterator has been used
            got = outcome(compiled)
            if want != got:
                return f"x * ({question}) after {history}\n    eager {want}\n    ours  {got}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--show", action="store_true", help="print each question before it is asked")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = 0
    for seed in range(given.first, given.last):
        if given.show:
            print(f"seed {seed}: {QUESTIONS[seed % len(QUESTIONS)]}", flush=True)
        told = difference(seed)
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
