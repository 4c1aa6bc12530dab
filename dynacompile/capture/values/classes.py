"""Classes, super(), C methods read from their class, and exceptions."""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.autograd_functions import ApplyValue
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import MISSING, bind_descriptor, class_lookup, class_source
from dynacompile.capture.values.dict_objects import C_METHODS, BaseMethods, DictObjectValue, is_dict_class, made_dict_object
from dynacompile.capture.values.exceptions import ExceptionValue, make_exception
from dynacompile.capture.values.functions import BoundMethod
from dynacompile.capture.values.object_parts import GetAttribute
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.sequence import TupleValue, is_namedtuple
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class ClassValue(Value):
    """A class. Calling it runs the builtin's row, or makes a new object whose __init__ is inlined."""

    def __init__(self, real: type, source: Source | None):
        self.real, self.source = real, source or Constant(real, real.__qualname__)

    def describe(self) -> str:
        return f"class {self.real.__qualname__}"

    def pytype(self) -> type:
        return type(self.real)

    def constant(self) -> Any:
        return self.real

    def truth(self, cx: Trace) -> bool:
        return True

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(self.real, name)

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__"):
            return ConstantValue(getattr(self.real, name))
        if name in ("__mro__", "__bases__"):
            return cx.of(getattr(self.real, name))
        if name == "__dict__" or class_lookup(type(self.real), name) is not MISSING and class_lookup(self.real, name) is MISSING:
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        raw = class_lookup(self.real, name)
        if name == "apply" and issubclass(self.real, torch.autograd.Function) and self.real.__module__.partition(".")[0] != "torch":
            return ApplyValue(self.real)
        if raw is MISSING:
            raise unsupported("would-raise", f"{self.describe()} has no attribute {name!r}")
        if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)) or name in ("__new__",):
            return UnboundMethod(self.real, name)
        if isinstance(raw, types.ClassMethodDescriptorType):
            return cx.wrap(getattr(self.real, name), Constant(getattr(self.real, name), name))
        return bind_descriptor(cx, raw, None, self, name, class_source(self.real, name))

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = cx.handler(self.real)
        if row is not None:
            return row(cx, args, kwargs)
        if is_namedtuple(self.real):
            return self.make_namedtuple(cx, args, kwargs)
        if isinstance(self.real, enum.EnumMeta) or self.real in (int, float, str, bool, complex):
            return cx.pure(self.real, args, kwargs)
        if issubclass(self.real, BaseException):
            return make_exception(cx, self.real, args, kwargs)
        if is_dict_class(self.real):
            made: ObjectValue = made_dict_object(self.real)
            if not isinstance(class_lookup(self.real, "__init__"), types.FunctionType):
                made.method(cx, "__init__", args, kwargs)
                return made
        elif not is_plain_class(self.real):
            raise unsupported("unknown-function", f"making an object of {self.describe()}")
        else:
            made = ObjectValue(self.real)
        init = class_lookup(self.real, "__init__")
        if isinstance(init, types.FunctionType):
            cx.call_real(init, class_source(self.real, "__init__"), [made, *args], kwargs)
        elif args or kwargs:
            raise unsupported("would-raise", f"{self.real.__name__}() takes no arguments")
        return made

    def make_namedtuple(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        real: Any = self.real
        fields, defaults = real._fields, real._field_defaults
        bound = dict(zip(fields, args)) | kwargs
        if len(args) > len(fields) or set(bound) - set(fields) or any(f not in bound and f not in defaults for f in fields):
            raise unsupported("would-raise", f"wrong arguments for {self.describe()}")
        return TupleValue([bound[f] if f in bound else cx.of(defaults[f]) for f in fields], self.real)

    def argument(self) -> tuple[Any, Any]:
        return self.real, self.real

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("__or__", "__eq__", "__ne__"):
            return cx.pure(getattr(self.real, name), args, kwargs)
        if name == "__getitem__" and isinstance(self.real, enum.EnumMeta):
            return cx.pure(self.real.__getitem__, args, kwargs)
        return super().method(cx, name, args, kwargs)

    def iterate(self, cx: Trace) -> IteratorValue:
        if isinstance(self.real, enum.EnumMeta):
            return TupleValue([ConstantValue(member) for member in list[Any](self.real)]).iterate(cx)
        return super().iterate(cx)

    def rebuild(self, out: Builder) -> None:
        out.const(self.real)


class UnboundMethod(Value):
    """A C method read from its class: `torch.Tensor.add`, `dict.get`, `object.__init__`."""

    def __init__(self, cls: type, name: str, source: Source | None = None):
        self.cls, self.name, self.source = cls, name, source

    def describe(self) -> str:
        return f"{self.cls.__qualname__}.{self.name}"

    def pytype(self) -> type:
        return types.MethodDescriptorType

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "__init__" and self.cls is object:
            return ConstantValue(None)
        if self.name == "__new__" and args and isinstance(args[0], ClassValue) and len(args) == 1:
            return ObjectValue(args[0].real) if is_plain_class(args[0].real) else super().call(cx, args, kwargs)
        if self.cls is object and self.name == "__setattr__" and len(args) == 3 and isinstance(args[0], ObjectValue):
            args[0].store(cx, args[1].constant(), args[2])
            return ConstantValue(None)
        if not args or not issubclass(args[0].pytype(), self.cls):
            raise unsupported("unknown-function", self.describe())
        return args[0].method(cx, self.name, args[1:], kwargs)

    def identity(self) -> Any:
        return getattr(self.cls, self.name)

    def rebuild(self, out: Builder) -> None:
        out.const(getattr(self.cls, self.name))


def is_plain_class(cls: type) -> bool:
    """Classes whose instances are just a dict: no metaclass call, no C base, no __new__, no __slots__ without a dict, attribute hooks in Python only."""
    return (
        type(cls).__call__ is type.__call__
        and cls.__new__ is object.__new__
        and cls.__basicsize__ == type("Plain", (), {}).__basicsize__
        and (cls.__setattr__ is object.__setattr__ or isinstance(cls.__setattr__, types.FunctionType))
        and (cls.__getattribute__ is object.__getattribute__ or isinstance(cls.__getattribute__, types.FunctionType))
        and not hasattr(cls, "__del__")
        and not issubclass(cls, BaseException)
    )


class SuperValue(Value):
    """super(start, owner)."""

    def __init__(self, start: type, owner: Value):
        self.start, self.owner = start, owner

    def pytype(self) -> type:
        return super

    def get_attr(self, cx: Trace, name: str) -> Value:
        cls = self.owner.constant() if isinstance(self.owner, ClassValue) else self.owner.pytype()
        if self.start not in cls.__mro__:
            raise unsupported("would-raise", "super(): obj must be an instance or subtype of type")
        raw = class_lookup(cls, name, after=self.start)
        if raw is MISSING:
            raise unsupported("would-raise", f"'super' object has no attribute {name!r}")
        if not isinstance(raw, (types.FunctionType, staticmethod, classmethod, property)):
            if isinstance(self.owner, ExceptionValue) and name in ("__init__", "__str__"):
                return Method(self.owner, name)
            if isinstance(self.owner, DictObjectValue) and isinstance(raw, C_METHODS) and hasattr(dict, name) and raw is not getattr(object, name, None):
                return Method(BaseMethods(self.owner), name)
            if callable(raw) and name == "__init__":
                return BoundMethod(UnboundMethod(object, "__init__"), self.owner)
            if name == "__getattribute__" and raw in (object.__getattribute__, dict.__getattribute__) and isinstance(self.owner, ObjectValue):
                return GetAttribute(self.owner)
            if name == "__setattr__" and raw is object.__setattr__:
                return BoundMethod(UnboundMethod(object, "__setattr__"), self.owner)
            raise unsupported("unknown-attribute", f"super().{name}")
        instance = None if isinstance(self.owner, ClassValue) else self.owner
        return bind_descriptor(cx, raw, instance, cx.class_value(cls, None), "", class_source(cls, name, self.start))

    def has_attr(self, cx: Trace, name: str) -> bool:
        cls = self.owner.constant() if isinstance(self.owner, ClassValue) else self.owner.pytype()
        return class_lookup(cls, name, after=self.start) is not MISSING

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(super)
        out.const(self.start)
        out.value(self.owner)
        out.call(2)


def wrap_class(cx: Trace, real: type, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return ClassValue(real, source)
