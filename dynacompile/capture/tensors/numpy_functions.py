"""Functions of NumPy without side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.arrays import call_numpy
from dynacompile.capture.tensors.numpy_numbers import is_pure
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.functions import CallableValue, RefusedValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class NumpyFunction(CallableValue):
    """A function of NumPy's without side effects."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"numpy.{self.real.__name__}"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if {"out", "where"} & set(kwargs):
            raise unsupported("unknown-function", f"{self.describe()} with out= or where=")
        return call_numpy(cx, self.real, args, kwargs)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)


@wraps(np.ufunc)
def wrap_ufunc(cx: Context, real: np.ufunc, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return NumpyFunction(real, source)


DISPATCHED = type(np.prod)


@wraps(DISPATCHED)
def wrap_dispatched(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    if is_pure(real):
        return NumpyFunction(real, source)
    return RefusedValue(real, "unknown-function", source, f"numpy.{real.__name__}")
