"""Tensors that stand for Python floats, such as an optimizer's count of steps, and what is computed of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operator_names import COMPARISONS
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.tensor_scalars import double_tensor
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

ARITHMETIC = frozenset(("add", "sub", "mul", "truediv", "pow", "neg"))


def as_number(value: Value) -> Value:
    """The tensor, noted as one that stands for a Python float, or for a bool that floats gave."""
    if isinstance(value, TensorValue):
        value.is_number = True
    return value


def number_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args) of tensors that stand for Python floats, and of numbers, rounded as Python does; None for all others.

    torch divides a number by a tensor by way of the reciprocal, and has square roots for some powers.
    """
    if not any(isinstance(a, TensorValue) and a.is_number for a in args):
        return None
    if not all(map(is_real_number, args)):
        return number_and_tensor(cx, name, args)
    if name not in ARITHMETIC and name not in COMPARISONS:
        return None
    if name == "truediv" and isinstance(args[1], ConstantValue) and args[1].value == 0:
        raise unsupported("would-raise", "float division by zero")
    operands = [as_double(cx, a) if name in ("truediv", "pow") else a for a in args]
    return as_number(cx.op("call_function", getattr(operator, name), operands, {}))


def number_and_tensor(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Of a tensor of one number, such as a rate, and a Python float: the tensor says how many digits the result has."""
    tensors = [a for a in args if isinstance(a, TensorValue) and not a.is_number]
    if name not in ARITHMETIC or len(tensors) != 1 or tensors[0].fake.dim() or not tensors[0].fake.is_floating_point():
        return None
    operands = [cx.op("call_method", "to", [a, ConstantValue(tensors[0].fake.dtype)], {}) if is_number_tensor(a) else a for a in args]
    return cx.op("call_function", getattr(operator, name), operands, {}) if all(isinstance(a, TensorValue) or is_real_number(a) for a in args) else None


def extreme_number(cx: Context, name: str, values: Sequence[Value]) -> Value | None:
    """max (name: "gt") or min ("lt") of numbers some of which are tensors; None for all others. Python goes on with the first where one is NaN.
    A rate that is a tensor of one number is compared with such numbers as one of them."""
    if not any(map(is_number_tensor, values)) or not all(is_real_number(v) or is_rate(v) for v in values):
        return None
    best, *others = [as_number(cx.op("call_method", "to", [v, ConstantValue(torch.float64)], {})) if is_rate(v) else v for v in values]
    for candidate in others:
        better = cx.op("call_function", getattr(operator, name), [as_double(cx, candidate), as_double(cx, best)], {})
        best = selected(cx, better, candidate, best)
    return best


def selected(cx: Context, condition: Value, chosen: Value, other: Value) -> Value:
    return as_number(cx.op("call_function", torch.where, [condition, as_double(cx, chosen), as_double(cx, other)], {}))


def as_double(cx: Context, value: Value) -> Value:
    return value if isinstance(value, TensorValue) else double_tensor(cx, value)


def is_number_tensor(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.is_number and value.fake.dtype is not torch.bool


def is_rate(value: Value) -> bool:
    return isinstance(value, TensorValue) and not value.is_number and not value.fake.dim() and value.fake.is_floating_point()


def is_condition(value: Value) -> bool:
    """Whether a tensor stands for a bool that floats gave."""
    return isinstance(value, TensorValue) and value.is_number and value.fake.dtype is torch.bool


def is_real_number(value: Value) -> bool:
    if isinstance(value, TensorValue):
        return is_number_tensor(value)
    return isinstance(value, (SymbolicInt, SymbolicFloat)) or isinstance(value, ConstantValue) and type(value.value) in (int, float)
