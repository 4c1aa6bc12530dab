"""Numbers and conditions that are computed of a call's sizes, strides, ints and floats, as plain data: guards check them, graphs take them.

Floats are computed as Python computes them, in the order in which the program does; SymPy, which knows no rounding, sees ints alone.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from dynacompile.ir.source import Source, source

Expression = tuple[Any, ...]
"""("constant", int), ("given", bits of a float), ("quantity", index), or (operation, operand, ...), with operands that are expressions."""


@dataclass(frozen=True)
class Quantity:
    """A number that a call brings: a size or stride of the tensor at `source`, or the int ("value") or float ("real") there."""

    source: Source
    kind: Literal["size", "stride", "value", "real"]
    dim: int = 0

    def text(self) -> str:
        return f"{self.source.text()}.{self.kind}({self.dim})" if self.kind in ("size", "stride") else self.source.text()

    def read(self, value: Any) -> Any:
        """The number, from the object at `source`."""
        return value.size(self.dim) if self.kind == "size" else value.stride(self.dim) if self.kind == "stride" else value


@source
class Formula(Source):
    """A number that is computed of others before the graph runs. No quantity's source is a Formula."""

    expression: Expression
    quantities: tuple[Quantity, ...]

    def text(self) -> str:
        return shown(self.expression, [q.text() for q in self.quantities])

    def roots(self) -> Iterator[Source]:
        for quantity in self.quantities:
            yield from quantity.source.roots()

    @property
    def is_real(self) -> bool:
        return is_real(self.expression, self.quantities)


Term = Formula | Quantity | int | float


def formula(operation: str, *operands: Term) -> Formula:
    """operation(*operands), or, for "is", the operand itself."""
    quantities: dict[Quantity, int] = {}
    expressions = [placed(operand, quantities) for operand in operands]
    return Formula(expressions[0] if operation == "is" else (operation, *expressions), tuple(quantities))


def placed(operand: Term, quantities: dict[Quantity, int]) -> Expression:
    """The operand as an expression over `quantities`, which grow."""
    if isinstance(operand, Quantity):
        if isinstance(operand.source, Formula):
            return placed(operand.source, quantities)
        return ("quantity", quantities.setdefault(operand, len(quantities)))
    if isinstance(operand, Formula):
        return moved(operand.expression, operand.quantities, quantities)
    return number(operand)


def moved(expression: Expression, own: Sequence[Quantity], quantities: dict[Quantity, int]) -> Expression:
    """An expression over `own` as one over `quantities`."""
    operation, *operands = expression
    if operation == "quantity":
        return placed(own[operands[0]], quantities)
    return expression if operation in ("constant", "given") else (operation, *(moved(o, own, quantities) for o in operands))


def number(value: float) -> Expression:
    """An int or float; floats bit by bit, for 0.0 is not -0.0 and 2 is not 2.0."""
    return ("given", *struct.unpack("<q", struct.pack("<d", value))) if isinstance(value, float) else ("constant", int(value))


def given(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]


# SymPy's classes, by name, that have a form as plain data: the operation, and whether it takes any number of operands.
OPERATIONS: Mapping[str, tuple[str, bool]] = {
    "Add": ("add", True),
    "Mul": ("mul", True),
    "FloorDiv": ("floordiv", False),
    "CleanDiv": ("floordiv", False),
    "Mod": ("mod", False),
    "PythonMod": ("mod", False),
    "IntTrueDiv": ("truediv", False),
    "CeilToInt": ("ceil", False),
    "FloorToInt": ("floor", False),
    "Max": ("max", True),
    "Min": ("min", True),
    "Equality": ("eq", False),
    "Unequality": ("ne", False),
    "StrictLessThan": ("lt", False),
    "LessThan": ("le", False),
    "StrictGreaterThan": ("gt", False),
    "GreaterThan": ("ge", False),
    "And": ("and", True),
    "Or": ("or", True),
    "Not": ("not", False),
}
MEANINGS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "not": operator.not_,
    "same": lambda a, b: number(a) == number(b),
    "truediv": operator.truediv,
    "pow": lambda a, b: real_power(a, b),
    "decimals": round,
    "neg": operator.neg,
    "abs": abs,
    "finite": math.isfinite,
    "tofloat": float,
    "trunc": int,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
}
REAL = frozenset({"given", "truediv", "pow", "decimals", "tofloat", "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh"})
WHOLE = frozenset({"constant", "trunc", "floor", "ceil", "round"})
PARTIAL = frozenset({"truediv", "pow", "sqrt", "exp", "log", "log2", "sin", "cos", "tan"})
"""Where Python raises for some operands, the result is not finite."""
SIGNS: Mapping[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "truediv": "/",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "and",
    "or": "or",
    "same": "is",
}
NAMES: Mapping[str, str] = {
    "trunc": "int",
    "decimals": "round",
    "tofloat": "float",
    **{n: f"math.{n}" for n in ("floor", "ceil", "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh")},
}
EXACT = 2**53  # ints up to which floats know each
MOST_FACTORS = 8  # of a power that is written as a product


def real_power(a: float, b: float) -> float:
    """a ** b where it is a float."""
    found = float(a) ** float(b)
    if isinstance(found, complex):
        raise ArithmeticError(f"{a} ** {b} is complex")
    return found


def magnitudes(expression: Expression) -> list[Expression] | None:
    """Numbers that no result of the ints' arithmetic in `expression` exceeds, in whatever order its sums and products are computed: the last is a
    bound for its value, those before it for what is divided. None where it has an operation that none is known for."""
    operation, *operands = expression
    if operation == "constant":
        return [("constant", abs(operands[0]))]
    if operation == "quantity":
        return [("abs", expression)]
    if operation not in ("add", "sub", "mul", "floordiv", "mod", "max", "min", "neg", "abs"):
        return None
    parts = [magnitudes(o) for o in operands]
    if None in parts:
        return None
    inner = [m for part in parts for m in part[:-1]]  # type: ignore[index]
    last = [part[-1] for part in parts]  # type: ignore[index]
    if operation in ("neg", "abs"):
        return [*inner, last[0]]
    if operation in ("floordiv", "mod"):
        return [*inner, *last, last[0] if operation == "floordiv" else last[1]]
    return [*inner, ({"sub": "add", "min": "max"}.get(operation, operation), *last)]


def largest(magnitude: Expression, limits: Sequence[int]) -> int:
    """The most that a magnitude can be where the absolute value of each quantity is at most its limit."""
    operation, *operands = magnitude
    if operation == "constant":
        return operands[0]
    if operation == "abs":
        return limits[operands[0][1]]
    return MEANINGS[operation](*(largest(o, limits) for o in operands))


def is_real(expression: Expression, quantities: Sequence[Quantity]) -> bool:
    """Whether the value is a float."""
    operation, *operands = expression
    if operation == "quantity":
        return quantities[operands[0]].kind == "real"
    return operation in REAL or operation not in WHOLE and any(is_real(o, quantities) for o in operands)


def as_expression(expr: Any, quantities: Mapping[Any, int]) -> Expression | None:
    """A SymPy expression over symbols as plain data over the numbers of `quantities`; None where it has a form that has none."""
    if expr.is_Integer:
        return ("constant", int(expr))
    if expr.is_Float:
        return number(float(expr))
    if expr.is_Symbol:
        return ("quantity", quantities[expr]) if expr in quantities else None
    if expr.is_Boolean and expr in (True, False):
        return ("constant", int(bool(expr)))
    name = type(expr).__name__
    if name in ("Pow", "PowByNatural"):
        base, exponent = expr.args
        if not exponent.is_Integer or not 1 <= int(exponent) <= MOST_FACTORS:
            return None
        factor = as_expression(base, quantities)
        return None if factor is None else folded("mul", [factor] * int(exponent))
    found = OPERATIONS.get(name)
    if found is None:
        return None
    operands = [as_expression(a, quantities) for a in expr.args]
    if any(o is None for o in operands):
        return None
    return folded(found[0], operands) if found[1] else (found[0], *operands)


def folded(operation: str, operands: Sequence[Any]) -> Expression:
    return reduce(lambda left, right: (operation, left, right), operands)


def evaluated(expression: Expression, values: Sequence[Any]) -> Any:
    """The value of an expression, as the native machine computes it: ints in 64 bits. Raises ArithmeticError or ValueError where that can't be."""
    operation, *operands = expression
    if operation == "constant":
        return operands[0]
    if operation == "given":
        return given(operands[0])
    result = values[operands[0]] if operation == "quantity" else MEANINGS[operation](*exact_together(operation, [evaluated(o, values) for o in operands]))
    if isinstance(result, bool):
        return int(result)
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise OverflowError(result)
    return result


def exact_together(operation: str, operands: list[Any]) -> list[Any]:
    """The operands. Raises OverflowError for an int that a float does not know, beside a float or divided: Python computes with all its digits there."""
    as_reals = len(operands) == 2 and (operation in REAL or any(isinstance(o, float) for o in operands))
    if as_reals and any(isinstance(o, int) and abs(o) > EXACT for o in operands):
        raise OverflowError(operands)
    return operands


def shown(expression: Expression, names: Sequence[str]) -> str:
    """An expression as a user would write it."""
    operation, *operands = expression
    if operation == "constant":
        return str(operands[0])
    if operation == "given":
        return repr(given(operands[0]))
    if operation == "quantity":
        return names[operands[0]]
    texts = [shown(o, names) if o[0] in ("constant", "given", "quantity") else bracketed(operation, o, names) for o in operands]
    if operation == "not":
        return f"not {texts[0]}"
    if operation == "neg":
        return f"-{texts[0]}"
    return f" {SIGNS[operation]} ".join(texts) if operation in SIGNS else f"{NAMES.get(operation, operation)}({', '.join(texts)})"


def bracketed(outer: str, inner: Expression, names: Sequence[str]) -> str:
    text = shown(inner, names)
    loose = outer in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or") or outer == inner[0] and outer in ("add", "mul")
    return text if loose or outer not in SIGNS and outer != "neg" or inner[0] not in SIGNS and inner[0] != "neg" else f"({text})"
