"""Values of a body under construction, with operators, so that a table's row reads as a formula."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable

import torch

from dynacompile.ir.body import Body
from dynacompile.ir.index import Index, Symbol
from dynacompile.ir.loops import Buffer
from dynacompile.ops.scalars import NEAREST, SCALARS

BOOLEAN = {"add": "or", "mul": "and", "max": "or", "min": "and"}


def wrapped(value: float | Index, dtype: torch.dtype) -> float | Index:
    """A number as eager has it beside a tensor: an int takes part in the arithmetic of a smaller integral type by its low bits."""
    if type(value) is not int or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        return value
    known = torch.iinfo(dtype)
    return value if known.min <= value <= known.max else (value - known.min) % (known.max - known.min + 1) + known.min


class Value:
    """One value of a body. Numbers beside it take its dtype; two values must agree in theirs."""

    __slots__ = ("o", "id", "dtype")

    def __init__(self, o: Expander, id: int, dtype: torch.dtype):
        self.o, self.id, self.dtype = o, id, dtype

    def __add__(self, other: Value | float | Index) -> Value:
        return self.o.apply("add", self, other)

    def __radd__(self, other: float | Index) -> Value:
        return self.o.apply("add", other, self)

    def __sub__(self, other: Value | float | Index) -> Value:
        return self.o.apply("sub", self, other)

    def __rsub__(self, other: float | Index) -> Value:
        return self.o.apply("sub", other, self)

    def __mul__(self, other: Value | float | Index) -> Value:
        return self.o.apply("mul", self, other)

    def __rmul__(self, other: float | Index) -> Value:
        return self.o.apply("mul", other, self)

    def __truediv__(self, other: Value | float | Index) -> Value:
        return self.o.apply("truediv", self, other)

    def __rtruediv__(self, other: float | Index) -> Value:
        return self.o.apply("truediv", other, self)

    def __neg__(self) -> Value:
        return self.o.apply("neg", self)

    def __lt__(self, other: Value | float | Index) -> Value:
        return self.o.apply("lt", self, other)

    def __le__(self, other: Value | float | Index) -> Value:
        return self.o.apply("le", self, other)

    def __gt__(self, other: Value | float | Index) -> Value:
        return self.o.apply("lt", other, self)

    def __ge__(self, other: Value | float | Index) -> Value:
        return self.o.apply("le", other, self)

    def __and__(self, other: Value | int) -> Value:
        return self.o.apply("and", self, other)

    def __or__(self, other: Value | int) -> Value:
        return self.o.apply("or", self, other)

    def __xor__(self, other: Value | int) -> Value:
        return self.o.apply("xor", self, other)

    def __invert__(self) -> Value:
        return self.o.apply("not", self)


class Expander:
    """Emits scalar ops into a body: `o.exp(x)` for each row of the scalar table, and a few that take more than operands.

    compute: dtype of the operands that a row's formula gets. out: dtype of the result in memory.
    """

    def __init__(self, body: Body, compute: torch.dtype, out: torch.dtype):
        self.body, self.compute, self.out = body, compute, out

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in SCALARS:
            raise AttributeError(name)
        return lambda *operands: self.apply(name, *operands)

    def apply(self, name: str, *operands: Value | float | Index) -> Value:
        row = SCALARS[name]
        typed = operands[1:] if name == "where" else operands
        dtype = next((v.dtype for v in typed if isinstance(v, Value)), self.compute)
        values = [v if isinstance(v, Value) else self.constant(v, dtype) for v in typed]
        if name == "where":
            values.insert(0, operands[0])  # type: ignore[arg-type]
        if dtype == torch.bool:
            name = BOOLEAN.get(name, name)
        result = torch.bool if row.result == "bool" else dtype
        return Value(self, self.body.emit(name, tuple([v.id for v in values]), result), result)

    def constant(self, value: float | Index, dtype: torch.dtype | None = None) -> Value:
        dtype = dtype or self.compute
        if type(value) is Index:
            return self.cast(self.index(value), dtype)
        return Value(self, self.body.emit("constant", (), dtype, wrapped(value, dtype)), dtype)

    def given(self, symbol: Symbol) -> Value:
        """A float that each call brings."""
        return Value(self, self.body.emit("given", (), torch.float64, symbol), torch.float64)

    def cast(self, value: Value | float | Index, dtype: torch.dtype) -> Value:
        if not isinstance(value, Value):
            return self.constant(value, dtype)
        if value.dtype == dtype:
            return value
        return Value(self, self.body.emit("cast", (value.id,), dtype), dtype)

    def test(self, value: Value | float | Index) -> Value:
        """value != 0, as bool."""
        return self.cast(value, torch.bool)

    def index(self, index: Index, dtype: torch.dtype = torch.int64) -> Value:
        if index.is_constant:
            return self.constant(index.constant, dtype)
        return Value(self, self.body.emit("index", (), dtype, index), dtype)

    def uniform(self, *operands: Value) -> Value:
        """A random number in (0, 1] of float32: see ops.philox. The operands are int64."""
        return Value(self, self.body.emit("uniform", tuple(v.id for v in operands), torch.float32), torch.float32)

    def require(self, condition: Value, value: Value) -> Value:
        """The value; the device asserts that the condition holds."""
        return Value(self, self.body.emit("require", (value.id, condition.id), value.dtype), value.dtype)

    def select(self, condition: Value, a: Value | float | Index, b: Value | float | Index) -> Value:
        return self.apply("where", condition, a, b)

    @staticmethod
    def both(conditions: Iterable[Value | None]) -> Value | None:
        """Whether all conditions hold; None, which always holds, of none."""
        given = [c for c in conditions if c is not None]
        return functools.reduce(operator.and_, given) if given else None

    def power(self, x: Value, exponent: int) -> Value:
        """x multiplied by itself; exponent >= 0."""
        result, square = None, x
        while exponent:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            square = square * square if exponent else square
        return self.constant(1, x.dtype) if result is None else result


def nearest(o: Expander, value: Value, buffer: Buffer) -> Value:
    """The value of a buffer as its memory holds it. Of a temp of half precision it may be read from a register, in float32."""
    return getattr(o, NEAREST[buffer.dtype])(value) if buffer.kind == "temp" and buffer.dtype in NEAREST else value
