"""torch's fields as values of their own: `torch.Tensor.shape`, and what an override of torch's functions is asked with, `torch.Tensor.shape.__get__`."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.objects import wrap_object
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Attr, Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

C_FIELD = types.GetSetDescriptorType


class FieldValue(Value):
    """A field of torch.Tensor as its class has it: `torch.Tensor.shape`."""

    def __init__(self, real: Any, source: Source | None = None):
        self.real, self.source = real, source or Constant(real, real.__qualname__)

    def describe(self) -> str:
        return str(self.real.__qualname__)

    def pytype(self) -> type:
        return C_FIELD

    def constant(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        return True

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant("a field of torch.Tensor")

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("__get__", "__set__", "__delete__"):
            return AccessValue(getattr(self.real, name))
        return cx.of(getattr(self.real, name)) if name in ("__name__", "__qualname__", "__objclass__", "__doc__") else super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)


class AccessValue(CallableValue):
    """`torch.Tensor.shape.__get__`: a new object each time, equal to all others for that field."""

    def __init__(self, real: Any, source: Source | None = None):
        self.real, self.source = real, source or Constant(real, f"{real.__self__.__qualname__}.{real.__name__}")

    def describe(self) -> str:
        return f"{self.real.__self__.__qualname__}.{self.real.__name__}"

    def pytype(self) -> type:
        return types.MethodWrapperType

    def constant(self) -> Any:
        return self.real

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant("a field of torch.Tensor")

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__self__":
            return FieldValue(self.real.__self__)
        return cx.of(getattr(self.real, name)) if name in ("__name__", "__qualname__", "__objclass__", "__doc__") else super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = cx.overrides.call(self.real, args, kwargs)
        if found is not None:
            return found
        field, owner = self.real.__self__.__name__, args[0] if args else None
        if not isinstance(owner, TensorValue) or kwargs or len(args) > 2:
            raise unsupported("unknown-function", self.describe())
        if self.real.__name__ == "__get__":
            return owner.plain_field(cx, field)
        if self.real.__name__ != "__set__":
            raise unsupported("unknown-function", self.describe())
        owner.set_field(cx, field, args[1])
        return ConstantValue(None)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)


@wraps(types.MethodWrapperType)
def wrap_access(cx: Context, real: Any, source: Source) -> Value:
    if not isinstance(real.__self__, C_FIELD):
        return wrap_object(cx, real, source)
    cx.guard("TYPE", source, types.MethodWrapperType)
    cx.guard("ID", Attr(source, "__self__"), identity(real.__self__))
    cx.guard("EQUALS", Attr(source, "__name__"), real.__name__)
    return AccessValue(real, source)


@wraps(C_FIELD)
def wrap_field(cx: Context, real: Any, source: Source) -> Value:
    if not issubclass(torch.Tensor, real.__objclass__):
        return wrap_object(cx, real, source)
    cx.guard("ID", source, identity(real))
    return FieldValue(real, source)
