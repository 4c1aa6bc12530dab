"""Functions with a row in the table, as values."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.arities import check_call
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import ONE_OPERATION, Row
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


def asks_overrides(real: Any) -> bool:
    """Whether a function asks its arguments for `__torch_function__`. Those of builtins ask nobody, and read no items."""
    if isinstance(real, types.BuiltinFunctionType):
        return real.__module__ != "builtins"
    return isinstance(real, types.FunctionType) and any(name.startswith("has_torch_function") for name in real.__code__.co_names)


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

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.real in ONE_OPERATION:
            cx.overrides.modes.refuse(self.describe())
        check_call(self.real, args, kwargs)
        found = cx.overrides.call(self.real, args, kwargs) if asks_overrides(self.real) else None
        return self.row(cx, args, kwargs) if found is None else found

    def get_attr(self, cx: Context, name: str) -> Value:
        return cx.pure(getattr, [ConstantValue(self.real), ConstantValue(name)], {})

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)
