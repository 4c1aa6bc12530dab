"""Python's arithmetic on numbers that are read from tensors, as an operation of the graph: `loss.item() / 3`, `round(x.mean().item(), 2)`.

The functions are Python's own, so that results are rounded, and errors raised, as in eager. Operands and the result are tensors of one number.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

OF_MATH = (
    "sqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh fabs hypot degrees radians erf erfc gamma lgamma copysign fmod".split()
)


def in_64_bits(number: float) -> int:
    """int(number), where torch's operations can take it. Raises what they do where they can't, and Python's errors of what is not finite."""
    whole = int(number)
    if not -(2**63) <= whole < 2**63:
        raise OverflowError("int too big to convert")
    return whole


FUNCTIONS: dict[str, Callable[..., float]] = {
    **{name: getattr(operator, name) for name in ("truediv", "floordiv", "mod", "pow")},
    **{name: getattr(math, name) for name in OF_MATH},
    "round": round,
    "max": max,
    "min": min,
    "int": in_64_bits,
}
NAMES = {function: name for name, function in FUNCTIONS.items() if name != "int"}
"""Functions of floats that give floats."""

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("python_number(Tensor[] numbers, str call) -> Tensor")


def call_text(name: str, args: Sequence[float | None]) -> str:
    """The call as text. args: constants, None for each number that a tensor brings."""
    return json.dumps([name, [None if arg is None else [type(arg).__name__, repr(arg)] for arg in args]])


def called_name(call: str) -> str:
    """The name of the function that such a text calls."""
    return str(json.loads(call)[0])


def python_number(numbers: list[torch.Tensor], call: str) -> torch.Tensor:
    name, args = json.loads(call)
    given = iter(numbers)
    values: list[Any] = [next(given).item() if arg is None else (int if arg[0] == "int" else float)(arg[1]) for arg in args]
    return torch.tensor(FUNCTIONS[name](*values), dtype=torch.float64, device="cpu")


LIBRARY.impl("python_number", python_number, "CompositeExplicitAutograd")
torch.library.register_fake("dynacompile::python_number", lambda numbers, call: torch.empty((), dtype=torch.float64, device="cpu"), lib=LIBRARY)
PYTHON_NUMBER = torch.ops.dynacompile.python_number.default
