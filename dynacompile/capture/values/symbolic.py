"""Ints that are not the same at every call: sizes of tensors, int arguments, and what is computed from them.

Whatever capture has no symbolic form for asks for the constant, which makes the int one: the entry then serves this value alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.shapes import Expression, as_expression, as_static
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.symbols import Symbols
    from dynacompile.capture.trace import Trace

# Operators that torch.SymInt computes as Python does, for ints of any sign.
ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod"})
COMPARISONS = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
UNCHANGED = frozenset({"pos", "index"})
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
BINARY_OPS = {"add": 0, "floordiv": 2, "mul": 5, "mod": 6}  # arguments of BINARY_OP
BUILTINS: dict[str, Callable] = {"max": max, "min": min}


class SymbolicInt(Value):
    """sym: its value in terms of symbols. source: where the int itself is, when it existed before the frame."""

    def __init__(self, symbols: Symbols, sym: torch.SymInt, source: Source | None = None):
        self.symbols, self.sym, self.source = symbols, sym, source

    def describe(self) -> str:
        return f"the symbolic int {self.source.text() if self.source else self.sym}"

    def pytype(self) -> type:
        return int

    def constant(self) -> int:
        return int(self.sym)

    def truth(self, cx: Trace) -> bool:
        return bool(self.sym != 0)

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name in ("real", "numerator"):
            return self
        if name in ("imag", "denominator"):
            return ConstantValue(0 if name == "imag" else 1)
        return Method(self, name) if hasattr(int, name) else ConstantValue(self.constant()).get_attr(cx, name)

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(int, name)

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return ConstantValue(self.constant()).method(cx, name, args, kwargs)

    def contains(self, cx: Trace, item: Value) -> Value:
        raise unsupported("would-raise", "argument of type 'int' is not iterable")

    def iterate(self, cx: Trace) -> IteratorValue:
        raise unsupported("would-raise", "'int' object is not iterable")

    def argument(self) -> tuple[Any, Any]:
        number = as_static(self.sym)
        return number, number

    def rebuild(self, out: Builder) -> None:
        number = as_static(self.sym)
        if isinstance(number, int):
            out.const(number)
            return
        symbols = sorted(number.node.expr.free_symbols, key=str)
        expression = as_expression(number.node.expr, {s: i for i, s in enumerate(symbols)})
        if expression is None:
            out.const(self.constant())
            return
        emit(out, expression, [self.symbols.quantities[s] for s in symbols])


def emit(out: Builder, expression: Expression, quantities: Sequence[Any]) -> None:
    """Residual code that pushes the value of an expression."""
    operation, *operands = expression
    if operation == "constant":
        out.const(operands[0])
    elif operation == "quantity":
        quantity = quantities[operands[0]]
        out.source(quantity.source)
        if quantity.kind != "value":
            out.load_method(quantity.kind)
            out.const(quantity.dim)
            out.call(1)
    elif operation in BINARY_OPS:
        for operand in operands:
            emit(out, operand, quantities)
        out.emit("BINARY_OP", BINARY_OPS[operation])
    else:
        out.push_null()
        out.const(BUILTINS[operation])
        for operand in operands:
            emit(out, operand, quantities)
        out.call(len(operands))


def is_int(value: Value) -> bool:
    """Whether symbolic arithmetic takes it."""
    return isinstance(value, SymbolicInt) or isinstance(value, ConstantValue) and type(value.value) in (int, bool)


def symbolic_operator(cx: Trace, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args) of ints of which one is symbolic; None where it has no symbolic form."""
    if not any(isinstance(a, SymbolicInt) for a in args) or not all(map(is_int, args)):
        return None
    numbers = [int(a.value) if isinstance(a, ConstantValue) else a.argument()[1] for a in args]  # type: ignore[attr-defined]
    if name in UNCHANGED:
        return args[0]
    if name == "neg":
        return cx.of(-numbers[0])
    if name == "abs":
        return cx.of(numbers[0] if numbers[0] >= 0 else -numbers[0])
    if name in ("floordiv", "mod") and not divides_as_python(numbers[0], numbers[1]):
        return None
    if name in ("lshift", "rshift") and isinstance(numbers[1], int) and 0 <= numbers[1] < 31:
        return cx.of(numbers[0] * 2 ** numbers[1] if name == "lshift" else numbers[0] // 2 ** numbers[1])
    if name == "pow" and isinstance(numbers[1], int) and 1 <= numbers[1] <= 4:
        return cx.of(math.prod([numbers[0]] * numbers[1]))
    if name in ARITHMETIC:
        return cx.of(getattr(operator, name)(*numbers))
    return cx.of(bool(getattr(operator, name)(*numbers))) if name in COMPARISONS else None


def divides_as_python(number: Any, divisor: Any) -> bool:
    """Whether torch's symbolic // and % are Python's: of a positive divisor, and a number that is not negative."""
    return bool(divisor > 0) and bool(number >= 0)


def symbolic_extreme(cx: Trace, function: Callable, args: Sequence[Value]) -> Value | None:
    """max() or min() of ints of which one is symbolic; None where there is none."""
    if len(args) < 2 or not any(isinstance(a, SymbolicInt) for a in args) or not all(map(is_int, args)):
        return None
    numbers = [a.argument()[1] for a in args]
    chosen = numbers[0]
    for number in numbers[1:]:
        chosen = torch.sym_max(chosen, number) if function is max else torch.sym_min(chosen, number)
    return cx.of(chosen)


def number_value(symbols: Symbols, number: Any) -> Value:
    """The value of a number or a size that torch computed symbolically. Floats and truth values become constants."""
    if isinstance(number, torch.SymInt):
        static = as_static(number)
        return ConstantValue(static) if isinstance(static, int) else SymbolicInt(symbols, number)
    if isinstance(number, torch.Size):
        return TupleValue([number_value(symbols, n) for n in number], torch.Size)
    if isinstance(number, torch.SymFloat):
        return ConstantValue(float(number))
    return ConstantValue(bool(number) if isinstance(number, torch.SymBool) else number)


def is_symbolic(real: Any) -> bool:
    """A number of torch that may vary, or a size with one."""
    if isinstance(real, torch.Size):
        return any(type(n) is not int for n in real)
    return isinstance(real, NUMBERS)
