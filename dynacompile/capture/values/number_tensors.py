"""Tensors that stand for Python floats, such as an optimizer's count of steps, and what is computed of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.capture.values.tensor_scalars import double_tensor

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


def as_number(value: Value) -> Value:
    """The tensor, noted as one that stands for a Python float."""
    if isinstance(value, TensorValue):
        value.is_number = True
    return value


def number_operator(cx: Trace, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args) of tensors that stand for Python floats, and of numbers, rounded as Python does; None for all others.

    torch divides a number by a tensor by way of the reciprocal, and has square roots for some powers.
    """
    if not any(isinstance(a, TensorValue) and a.is_number for a in args) or not all(map(is_real_number, args)):
        return None
    if name not in ("add", "sub", "mul", "truediv", "pow", "neg"):
        return None
    operands = [double_tensor(cx, a) if name in ("truediv", "pow") and not isinstance(a, TensorValue) else a for a in args]
    return as_number(cx.op("call_function", getattr(operator, name), operands, {}))


def is_real_number(value: Value) -> bool:
    if isinstance(value, TensorValue):
        return value.is_number
    return isinstance(value, (SymbolicInt, SymbolicFloat)) or isinstance(value, ConstantValue) and type(value.value) in (int, float)
