"""Attributes of classes: where they are found, and what access through an instance or the class makes of them."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import CMethod, Value, wraps
from dynacompile.capture.values.functions import BoundMethod
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import MISSING, is_data
from dynacompile.ir.source import Attr, Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

LruWrapper = type(functools.lru_cache(abs))


def assigned_attribute(cx: Context, cls: type, name: str, after: type | None = None) -> Value | None:
    """What the frame assigned to a class attribute, where the lookup on `cls` ends there."""
    if not cx.effects.class_attributes:
        return None
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :] if after is not None else mro:
        if (base, name) in cx.effects.class_attributes:
            return cx.effects.class_attributes[base, name]
        if name in base.__dict__:
            return None
    return None


BOUND_NATIVELY = (types.FunctionType, staticmethod, classmethod, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
SETTINGS = frozenset({"_validate_args"})  # of classes of torch; other compilers turn that one off


def owner_of(cls: type, name: str, after: type | None) -> type:
    """The class that defines an attribute."""
    mro = cls.__mro__
    return next((b for b in (mro[mro.index(after) + 1 :] if after is not None else mro) if name in b.__dict__), cls)


def guards_class_data(cls: type, name: str, after: type | None) -> bool:
    """Whether data that is read there has a source other than a constant, and so a guard of its own."""
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special and (not is_trusted(owner_of(cls, name, after).__module__) or name in SETTINGS)


def class_source(cls: type, name: str, after: type | None = None) -> Source:
    """Where a class attribute is read. That a class of a trusted module still has it is a matter of `Context.lookup`."""
    owner = owner_of(cls, name, after)
    if is_trusted(owner.__module__) and name not in SETTINGS:
        raw = owner.__dict__[name]
        raw = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
        return Constant(raw, f"{owner.__qualname__}.{name}")
    raw = owner.__dict__.get(name, MISSING)
    if name == "__class__" or not is_data(raw) and raw is not MISSING and not isinstance(raw, BOUND_NATIVELY):
        return Constant(raw, f"{owner.__qualname__}.{name}")  # Python would bind it, or give the class of the class
    return Attr(Constant(owner if after is not None else cls, cls.__qualname__), name)


def by_own_hook(cx: Context, instance: Value, cls: type, hook: str, args: list[Value]) -> Value | None:
    """cls.hook(instance, *args), where that hook of attribute access is written in Python; else None."""
    raw = cx.lookup(cls, hook)
    return cx.call_real(raw, class_source(cls, hook), [instance, *args]) if isinstance(raw, types.FunctionType) else None


def is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def bind_descriptor(cx: Context, raw: Any, instance: Value | None, owner: Value, name: str, source: Source) -> Value:
    """What attribute access gives for the class attribute `raw`: instance None means access on the class `owner` itself."""
    if isinstance(raw, types.FunctionType):
        function = cx.wrap(raw, source)
        return function if instance is None else BoundMethod(function, instance, None, name)
    if isinstance(raw, staticmethod):
        return cx.wrap(raw.__func__, source)
    if isinstance(raw, classmethod):
        if isinstance(source, Attr):
            source = Attr(source, "__func__")
        return BoundMethod(cx.wrap(raw.__func__, source), owner, None, name)
    if isinstance(raw, property):
        if instance is None:
            return PropertyValue(raw, source)
        if raw.fget is None:
            raise raises(AttributeError, f"property {name!r} of {owner.constant().__qualname__!r} object has no getter")
        cx.wrap(raw, source)
        return cx.call_real(raw.fget, Constant(raw.fget, f"{name}.fget"), [instance])
    if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)) and instance is not None:
        return CMethod(instance, name)
    if isinstance(raw, functools.cached_property):
        return cx.wrap(raw, source) if instance is None else cached(cx, raw, instance)
    if isinstance(raw, LruWrapper):
        function = cx.wrap(raw, source)
        return function if instance is None else BoundMethod(function, instance, None, name)
    if hasattr(type(raw), "__get__") and not isinstance(raw, (type, types.BuiltinFunctionType)):
        getter = cx.lookup(type(raw), "__get__")
        if not isinstance(getter, types.FunctionType):
            raise unsupported("unknown-attribute", f"descriptor {type(raw).__name__} {name!r} of {owner.describe()}")
        none = cx.of(None)
        return cx.call_real(getter, class_source(type(raw), "__get__"), [cx.wrap(raw, Constant(raw, name)), none if instance is None else instance, owner])
    return cx.wrap(raw, source)


def cached(cx: Context, raw: functools.cached_property, instance: Value) -> Value:
    """The value of a cached property that is not in the object's dict yet."""
    if raw.attrname is None or not getattr(instance, "has_dict", False):
        raise unsupported("unknown-attribute", f"a cached_property of {instance.describe()}")
    value = cx.call_real(raw.func, Constant(raw.func, f"{raw.attrname}.func"), [instance])
    instance.store(cx, raw.attrname, value)  # type: ignore[attr-defined]
    return value


class PropertyValue(Value):
    """A property object, read from its class."""

    def __init__(self, real: property, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return property

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("fget", "fset"):
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        return super().get_attr(cx, name)


@wraps(property)
def wrap_property(cx: Context, real: property, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return PropertyValue(real, source)
