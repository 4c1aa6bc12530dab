"""inspect.signature of functions that exist before the frame."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


@handles(inspect.signature)
def row_signature(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a plain function or method: its parameters' names."""
    function = args[0].function if isinstance(args[0], BoundMethod) else args[0]
    real = function.real if isinstance(function, FunctionValue) else None
    if len(args) != 1 or kwargs or real is None or {"__wrapped__", "__signature__"} & set(real.__dict__):
        raise unsupported("unknown-function", f"inspect.signature of {args[0].describe()}")
    return SignatureValue(list(inspect.signature(real).parameters)[isinstance(args[0], BoundMethod) :])


class SignatureValue(Value):
    """An inspect.Signature, of which the names of the parameters are known."""

    def __init__(self, names: list[str]):
        self.names = names

    def pytype(self) -> type:
        return inspect.Signature

    def get_attr(self, cx: Trace, name: str) -> Value:
        return DictValue.of([(ConstantValue(n), ParameterValue()) for n in self.names]) if name == "parameters" else super().get_attr(cx, name)


class ParameterValue(Value):
    def pytype(self) -> type:
        return inspect.Parameter
