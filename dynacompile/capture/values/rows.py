"""The table of functions that capture knows: a row takes (cx, args, kwargs) and gives the result."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace

Row = Callable[["Trace", list[Value], dict[str, Value]], Value]
HANDLERS: dict[Any, Row] = {}
ONE_OPERATION: set[Any] = set()  # functions of torch in Python whose rows do what they do without a call of torch that a mode could see


def handles(*reals: Any, one_operation: bool = False) -> Callable[[Row], Row]:
    """one_operation: the function calls others of torch, and the row does not."""

    def register(row: Row) -> Row:
        for real in reals:
            HANDLERS[real] = row
        ONE_OPERATION.update(reals if one_operation else ())
        return row

    return register


class BuiltinValue(CallableValue):
    """A function with a row in the table."""

    def __init__(self, real: Any, row: Row, source: Source | None = None):
        self.real, self.row, self.source = real, row, source

    def describe(self) -> str:
        return f"{self.real.__module__ or 'builtins'}.{self.real.__name__}"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.real in ONE_OPERATION:
            cx.overrides.modes.refuse(self.describe())
        asks = isinstance(self.real, types.BuiltinFunctionType) and self.real.__module__ != "builtins"  # those ask nobody, and read no items
        found = cx.overrides.call(self.real, args, kwargs) if asks else None
        return self.row(cx, args, kwargs) if found is None else found

    def get_attr(self, cx: Trace, name: str) -> Value:
        return cx.pure(getattr, [ConstantValue(self.real), ConstantValue(name)], {})

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(self.real, name)

    def rebuild(self, out: Builder) -> None:
        out.const(self.real)
