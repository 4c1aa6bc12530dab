"""Python's operators between tensors and objects that override torch's functions: whose method is asked first, as the interpreter has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.operator_names import BINARY, COMPARISONS, INPLACE, UNARY
from dynacompile.capture.tensors.numpy_numbers import NumpyNumber
from dynacompile.capture.tensors.overrides import NOT_IMPLEMENTED, is_not_implemented
from dynacompile.capture.tensors.subclasses import SubclassTensor, is_torch_s
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.ir.namespaces import MISSING

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def overridden_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args), one of which is a tensor; None where nobody overrides it."""
    if not cx.overrides.concerns(args) and not any(isinstance(a, SubclassTensor) and defines(cx, a.cls, name) for a in args):
        return None
    if isinstance(args[0], ConstantValue) and isinstance(args[0].value, (str, bytes)):
        return None
    if any(isinstance(a, NumpyNumber) for a in args):
        raise unsupported("unknown-operation", f"operator.{name} of a number of NumPy and what overrides torch's functions")
    if name in UNARY:
        return ask(cx, args[0], UNARY[name], [])
    left, right = args
    if name in INPLACE:
        found = ask(cx, left, f"__{name.rstrip('_')}__", [right])
        if not is_not_implemented(found):
            return found
        name = INPLACE[name]
    for owner, method, other in order(cx, name, left, right):
        found = ask(cx, owner, method, [other])
        if not is_not_implemented(found):
            return found
    if name in ("eq", "ne"):
        return ConstantValue((left is right) == (name == "eq"))
    raise raises(TypeError, f"operator.{name} of {left.pytype().__name__!r} and {right.pytype().__name__!r}", known=False)


def defines(cx: Context, cls: type, name: str) -> bool:
    """Whether a class below torch.Tensor has a method of its own for an operator."""
    if name in UNARY:
        methods: tuple[str, ...] = (UNARY[name],)
    else:
        methods = (*BINARY[INPLACE.get(name, name)], f"__{name.rstrip('_')}__")
    return any((raw := cx.lookup(cls, method)) is not MISSING and not is_torch_s(method, raw) for method in methods)


def order(cx: Context, name: str, left: Value, right: Value) -> list[tuple[Value, str, Value]]:
    """The methods that Python asks for a binary operator, and of whom."""
    method, reflected = BINARY[name]
    first, second = (left, method, right), (right, reflected, left)
    one, other = left.pytype(), right.pytype()
    is_below = one is not other and issubclass(other, one)
    if name in COMPARISONS:
        return [second, first] if is_below else [first, second]
    if one is other:
        return [first]
    return [second, first] if is_below and cx.lookup(one, reflected) is not cx.lookup(other, reflected) else [first, second]


def ask(cx: Context, owner: Value, name: str, args: list[Value]) -> Value:
    """type(owner).name(owner, *args); NotImplemented where its class has no such method, or a builtin's, which knows neither tensors nor such objects."""
    if isinstance(owner, ObjectValue):
        found = owner.special(cx, name, args)
        return NOT_IMPLEMENTED if found is None else found
    if isinstance(owner, SubclassTensor):
        found = owner.special(cx, name, args)
        if found is not None:
            return found
    if not isinstance(owner, TensorValue) or not hasattr(torch.Tensor, name):
        return NOT_IMPLEMENTED
    found = cx.overrides.call(getattr(torch.Tensor, name), [owner, *args], {})
    return owner.method(cx, name, args, {}) if found is None else found
