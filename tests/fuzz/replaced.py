"""Programs that ask one question of an object, or of two, which are replaced by those of any other types between calls.

    python -m tests.fuzz.replaced FIRST LAST [--show]

A program is its seed: a question and some objects. To add one, write a line into QUESTIONS or OBJECTS.
"""

from __future__ import annotations

import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import logging
import math
import operator
import random
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dynacompile
from tests.fuzz.seeds import run_seeds


class Color(enum.Enum):
    RED = 1


class Sized:
    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length


class Text(str):
    pass


class Number(int):
    pass


class Items(list):
    pass


class Table(dict):
    pass


class Never(type):
    """A metaclass by which its classes are false."""

    def __bool__(cls) -> bool:
        return False


class False_(metaclass=Never):
    pass


Pair = collections.namedtuple("Pair", "a b")
OBJECTS: tuple[Callable[[], Any], ...] = (
    *(lambda: np.int64(3), lambda: np.int64(0), lambda: np.float64(0), lambda: np.float64(3), lambda: np.bool_(False), lambda: np.bool_(True)),
    *(lambda: np.datetime64("2020"), lambda: np.timedelta64(0), lambda: np.str_(""), lambda: np.str_("a"), lambda: np.bytes_(b""), lambda: np.dtype("f4")),
    *(lambda: np.array([1]), lambda: np.array(0), lambda: np.array([], dtype="U1"), lambda: np.array(["a"])),
    *(lambda: np.float32, lambda: np.sin, lambda: np.poly1d([0]), lambda: 3, lambda: 0, lambda: 1000, lambda: None, lambda: True, lambda: 2.5, lambda: "a"),
    *(lambda: fractions.Fraction(0), lambda: fractions.Fraction(3), lambda: decimal.Decimal(0), lambda: decimal.Decimal(3), lambda: datetime.timedelta(0)),
    *(lambda: datetime.timedelta(3), lambda: bytearray(), lambda: bytearray(b"a"), lambda: memoryview(b""), lambda: memoryview(b"a"), lambda: re.compile("a")),
    *(lambda: Sized(0), lambda: Sized(1), lambda: range(0), lambda: range(3), lambda: torch.Size([]), lambda: torch.finfo(torch.float32), torch.Generator),
    *(lambda: logging.getLogger(), lambda: Color.RED, lambda: Text("a"), lambda: Pair(1, 2), lambda: (), list, dict, lambda: set(), lambda: frozenset()),
    *(lambda: types.SimpleNamespace(a=1), lambda: types.MappingProxyType({}), lambda: iter([1]), lambda: slice(1, 2), lambda: b"a"),
    *(collections.deque, lambda: torch.float16),
    *(lambda: torch.float32, lambda: torch.device("cpu"), lambda: torch.ones(2), lambda: torch.zeros(()), torch.nn.Identity, lambda: len, lambda: type),
)  # fmt: skip
OBJECTS += (
    *(lambda: Number(0), lambda: Number(3), Items, lambda: Items([1]), Table, lambda: Table(a=1), lambda: False_, lambda: sys.version_info, lambda: 1j),
    *(lambda: np.complex64(1j), lambda: np.uint8(255), lambda: np.float16(2), lambda: np.longdouble(0), lambda: np.void(b"a"), lambda: -0.0, lambda: 10**30),
    *(collections.Counter, collections.OrderedDict, lambda: collections.UserDict(a=1), lambda: zip([1]), lambda: map(abs, [1]), lambda: range(1).index),
    *(lambda: torch.tensor([True]), lambda: torch.tensor(3), lambda: torch.zeros(0), lambda: torch.nn.Parameter(torch.zeros(1)), torch.nn.ModuleList),
    *(lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(2)]), lambda: torch.ones(2).untyped_storage(), lambda: torch.ones(2, device="meta")),
    *(lambda: torch.ops.aten.add, lambda: torch.autograd.profiler.record_function("a"), lambda: weakref.ref(LASTING), lambda: LASTING.__len__),
    *(lambda: contextvars.ContextVar("a"), lambda: functools.partial(max, 1), lambda: ValueError("a"), lambda: list[int], lambda: int | str),
)
LASTING = Sized(1)
QUESTIONS = (
    *("2 if k else 5", "2 if not k else 5", "2 if isinstance(k, np.float64) else 5", "2 if type(k) is np.int64 else 5", "2 if (k and 1) == 1 else 5"),
    *("2 if bool(k) else 5", "2 if callable(k) else 5", "2 if k is None else 5", "2 if hasattr(k, 'item') else 5", "2 if k == 3 else 5", "k", "int(k)"),
    *("float(k)", "2 if any([k]) else 5", "2 if k in (3, 4) else 5", "len(str(k))", "2 if k < 4 else 5", "len(k)", "len(type(k).__name__)", "-k", "abs(k)"),
    *("{3: 7}.get(k, 9)", "TABLE.get(k, 9)", "2 if k in MEMBERS else 5", "len([*k])", "len({k})", "2 if isinstance(k, (int, str)) else 5", "k[0]"),
    *("len(k.__class__.__name__)", "len(getattr(k, '__name__', 'abc'))", "2 if hasattr(k, '__qualname__') else 5", "2 if k.__class__ is type(k) else 5"),
    *("len({**k})", "k.get('a', 3)", "2 if isinstance(k, collections.abc.Callable) else 5", "2 if [k] == [3] else 5", "operator.index(k)", "list(k)[0]"),
    *("getattr(k, 'a', 4)", "2 if k == K else 5", "2 if k is K else 5", "len(f'{k}')", "round(k)", "k + 1", "2 if k else (3 if k is None else 4)", "max(k, 2)"),
)
QUESTIONS_OF_TWO = (
    *("k + j", "k - j", "k * j", "k / j", "k // j", "k % j", "k & j", "k | j", "k ^ j", "k == j", "k != j", "k < j", "k >= j", "k is j", "k in j", "k and j"),
    *("k or j", "(k, j) == (j, k)", "[k] == [j]", "j[k]", "isinstance(k, type(j))", "issubclass(type(k), type(j))", "max(k, j)", "divmod(k, j)", "[*k, *j]"),
    *("{**k, **j}", "{k: 1, j: 2}", "len({k, j})", "sorted([k, j])", "[k, j].index(j)", "[k, j].count(k)", "dict(zip(k, j))", "list(zip(k, j))", "k.update(j)"),
    *("k.append(j)", "k.extend(j)", "type(k) is type(j)", "operator.iadd(k, j)", "k if j else 5", "k % (j,)", "k.get(j, 3)", "k.setdefault(j, 3)", "k.pop(j)"),
    *("k.index(j)", "k.count(j)", "all((k, j))", "any((k, j))", "sum([k, j])", "next(iter(k), j)", "round(k, j)", "math.isclose(k, j)", "range(k, j)"),
    *("k[j:]", "complex(k, j)", "dict.fromkeys(k, j)", "functools.reduce(operator.add, [k, j])", "x + k", "x == k", "x != k", "x[k]", "torch.tensor(k)"),
    *(
        "torch.full((2,), k)",
        "x.new_tensor(k)",
        "x.to(k)",
        "x.reshape(k)",
        "x.sum(k)",
        "torch.where(x > 0, x, k)",
        "x.clamp(k, j)",
        "x.mul(k)",
        "torch.add(x, k)",
    ),
)


def question_of(seed: int) -> str:
    questions = (*QUESTIONS, *QUESTIONS_OF_TWO)
    return questions[seed % len(questions)]


def program_of(question: str) -> Callable[[torch.Tensor], Any]:
    world: dict[str, Any] = {"np": np, "collections": collections, "operator": operator, "math": math, "functools": functools, "torch": torch}
    world |= {"TABLE": {3: 7, Color.RED: 8, "a": 6, None: 5}, "MEMBERS": {3, "a", Color.RED, torch.float32}, "K": 3, "k": None}
    asked = f"x * 2, {question}" if question in QUESTIONS_OF_TWO else f"x * ({question})"
    exec(compile(f"def program(x):\n    return {asked}\n", "<program>", "exec", dont_inherit=True), world)
    return world["program"]  # type: ignore[no-any-return]


ADDRESS = re.compile(" at 0x[0-9a-f]+")


def outcome(call: Callable[[torch.Tensor], Any], world: dict[str, Any], places: tuple[int, int]) -> tuple[str, str]:
    """What a call gives with these objects as k and j, and k after it. An object that is drawn twice is one object."""
    world["k"] = OBJECTS[places[0]]()
    world["j"] = world["k"] if places[0] == places[1] else OBJECTS[places[1]]()
    try:
        result = repr(call(torch.tensor([1.0, 2.0])))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        result = type(error).__name__
    return ADDRESS.sub("", result), ADDRESS.sub("", repr(world["k"]))


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng = random.Random(seed)
    question = question_of(seed)
    program = program_of(question)
    dynacompile.reset()
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True, recompile_limit=1000, options={"fallback": "none"})
    history = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            first, second = rng.choices(range(len(OBJECTS)), k=2)
            places = (first, first if rng.random() < 0.1 else second)
            want = outcome(program, program.__globals__, places)
            history.append(" and ".join(f"{type(program.__globals__[name]).__name__} {str(program.__globals__[name])[:20]!r}" for name in "kj"))
            got = outcome(compiled, program.__globals__, places)
            if want != got:
                return f"{question} after {history}\n    eager {want}\n    ours  {got}"
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, question_of))
