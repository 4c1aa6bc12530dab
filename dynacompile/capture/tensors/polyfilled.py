"""Rows for functions written in C that the polyfills have in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.polyfills import TABLE
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.functions import call_polyfill
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def polyfill(real: Any, function: Callable[..., Any]) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for value in args[:1]:
            if isinstance(value, TensorValue):
                raise unsupported("to-python", f"{real.__name__} of {value.describe()}")
        return call_polyfill(cx, function, args, kwargs)


for _real, _function in TABLE.items():
    polyfill(_real, _function)
