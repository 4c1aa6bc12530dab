"""isinstance, issubclass, callable and type: what decides about them, asked in Python's order.

An object may say that it is of another class, by `__class__`. A metaclass may answer in Python, which is followed. Abstract classes know what was
registered with them, and the entry relies on what they answered.
"""

from __future__ import annotations

import abc
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, Raised, unsupported
from dynacompile.capture.tensors.subclasses import SubclassTensor
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.own_methods import refuse_own
from dynacompile.capture.values.references import WeakProxy
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.namespaces import MISSING

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

PLAIN_CLASS = object.__dict__["__class__"]
PROTOCOL: Any = type(typing.Protocol)


@handles(isinstance)
def row_isinstance(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        wanted = args[1].constant()
    except NotConstant as reason:
        raise unsupported("unknown-operation", "isinstance() with unknown classes") from reason
    return ConstantValue(is_instance(cx, args[0], wanted))


@handles(issubclass)
def row_issubclass(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not isinstance(args[0], ClassValue):
        return cx.pure(issubclass, args, kwargs)
    try:
        wanted = args[1].constant()
    except NotConstant as reason:
        raise unsupported("unknown-operation", "issubclass() of unknown classes") from reason
    return ConstantValue(is_subclass(cx, args[0].real, wanted))


@handles(callable)
def row_callable(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return ConstantValue(cx.lookup(value.pytype(), "__call__") is not MISSING)


@handles(type)
def row_type(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("unknown-function", "type() that makes a class")
    return args[0].class_value(cx) if isinstance(args[0], ObjectValue) else ClassValue(args[0].pytype(), None)


FLAGS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
"""By class, the attribute by which a tensor of another class says that it is one."""


def is_instance(cx: Context, value: Value, wanted: Any) -> bool:
    """isinstance(value, wanted)."""
    cls = value.pytype()
    if cls is wanted:
        return True
    if isinstance(wanted, tuple):
        return any(is_instance(cx, value, part) for part in wanted)
    if isinstance(wanted, types.UnionType):
        return any(is_instance(cx, value, type(None) if part is None else part) for part in wanted.__args__)
    if not isinstance(wanted, type):  # torch's and typing's own, and what Python refuses
        return truth_of(cx, isinstance, value, wanted)
    hook = cx.lookup(type(wanted), "__instancecheck__")
    if hook is type.__dict__["__instancecheck__"]:
        return is_below(cx, cls, wanted) or is_below(cx, told_class(cx, value), wanted)
    if is_abstract(wanted, hook, "__instancecheck__"):
        told = told_class(cx, value)
        return is_subclass(cx, told, wanted) or told is not cls and is_subclass(cx, cls, wanted)
    if isinstance(hook, types.FunctionType) and not is_trusted(hook.__module__):
        return cx.call_real(hook, class_source(type(wanted), "__instancecheck__"), [cx.class_value(wanted, None), value]).truth(cx)
    refuse_own(cx, type(wanted), "__instancecheck__")
    if type(wanted) is PROTOCOL:
        raise unsupported("unknown-operation", f"isinstance() with the protocol {wanted.__qualname__}")
    return truth_of(cx, isinstance, value, wanted)


def is_subclass(cx: Context, cls: type, wanted: Any) -> bool:
    """issubclass(cls, wanted) of two classes."""
    if isinstance(wanted, tuple):
        return any(is_subclass(cx, cls, part) for part in wanted)
    if not isinstance(wanted, type):
        return bool(cx.guarded_call(issubclass, [cls, wanted], {}))
    hook = cx.lookup(type(wanted), "__subclasscheck__")
    if hook is type.__dict__["__subclasscheck__"]:
        return is_below(cx, cls, wanted)
    if is_abstract(wanted, hook, "__subclasscheck__"):
        answer = bool(cx.guarded_call(issubclass, [cls, wanted], {}))
        cx.names.of_subclass(cls, wanted, answer)
        return answer
    if isinstance(hook, types.FunctionType) and not is_trusted(hook.__module__):
        made = [cx.class_value(wanted, None), cx.class_value(cls, None)]
        return cx.call_real(hook, class_source(type(wanted), "__subclasscheck__"), made).truth(cx)
    refuse_own(cx, type(wanted), "__subclasscheck__")
    return bool(cx.guarded_call(issubclass, [cls, wanted], {}))


def is_below(cx: Context, cls: type, wanted: type) -> bool:
    cx.names.of_ancestry(cls)
    return any(base is wanted for base in cls.__mro__)


def is_abstract(wanted: type, hook: Any, name: str) -> bool:
    """Whether an abstract class decides by registrations and caches alone; so do classes below a protocol, and protocols about classes."""
    if hook is abc.ABCMeta.__dict__[name]:
        return True
    return type(wanted) is PROTOCOL and (name == "__subclasscheck__" or not wanted.__dict__.get("_is_protocol", False))


def truth_of(cx: Context, function: Any, value: Value, wanted: Any) -> bool:
    """The answer of what is written in C, or of torch, which looks at the class and, of a tensor, at its dtype."""
    if isinstance(value, ConstantValue):
        return bool(cx.guarded_call(function, [value.value, wanted], {}))
    told_class(cx, value)
    if isinstance(value, TensorValue):
        flag = FLAGS.get(wanted)
        if flag is not None and value.finds_attr(cx, flag) and value.get_attr(cx, flag).truth(cx) or isinstance(value.fake, wanted):
            return True
    try:
        return bool(cx.guarded_call(issubclass, [value.pytype(), wanted], {}))
    except Raised as reason:  # whose message names another function
        raise unsupported("would-raise", f"{function.__name__}() with {wanted!r}") from reason


def told_class(cx: Context, value: Value) -> type:
    """What value.__class__ gives; its class where it gives none."""
    cls = value.pytype()
    if isinstance(value, WeakProxy):
        return told_class(cx, value.owner)
    own = cx.lookup(cls, "__class__") is not PLAIN_CLASS or isinstance(cx.lookup(cls, "__getattribute__"), types.FunctionType)
    if not own:
        return cls
    if isinstance(value, SubclassTensor) or not isinstance(value, ObjectValue):
        raise unsupported("unknown-object", f"{value.describe()}, which has a `__class__` of its own,")
    found = cx.unless_missing(lambda: value.get_attr(cx, "__class__"))
    if found is None:
        return cls
    if not isinstance(found, ClassValue):
        raise unsupported("unknown-object", f"{value.describe()}, whose `__class__` is no class,")
    return found.real
