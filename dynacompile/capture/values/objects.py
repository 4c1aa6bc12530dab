"""Instances of user classes, and objects that are only handed around."""

from __future__ import annotations

import types
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Method, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import MISSING, bind_descriptor, class_lookup, class_source, is_data_descriptor
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import is_trusted
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import Presence, identity
from dynacompile.ir.source import Attr, Constant, DictAttr, Source, TypeOf

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace

DELETED = object()  # an attribute that the frame deleted


class ObjectValue(Value):
    """An instance of a user class. real: the object, where it exists before the frame runs. stored: attributes written so far."""

    def __init__(self, cls: type, real: Any = None, source: Source | None = None):
        self.cls, self.real, self.source = cls, real, source
        self.stored: dict[str, Value | object] = {}
        self.read: dict[str, Value] = {}

    def pytype(self) -> type:
        return self.cls

    def identity(self) -> Any:
        if self.cls.__hash__ is not object.__hash__ or self.cls.__eq__ is not object.__eq__:
            raise NotConstant(self.describe())
        return self.real if self.real is not None else super().identity()

    def own_dict(self) -> dict[str, Any]:
        return instance_dict(self.real) if self.real is not None else {}

    def get_attr(self, cx: Trace, name: str) -> Value:
        custom = class_lookup(self.cls, "__getattribute__")
        if isinstance(custom, types.FunctionType):
            source = class_source(self.cls, "__getattribute__")
            found = cx.unless_missing(lambda: cx.call_real(custom, source, [self, ConstantValue(name)]))
        else:
            found = self.lookup(cx, name)
        if found is not None:
            return found
        fallback = class_lookup(self.cls, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)])
        raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def lookup(self, cx: Trace, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        if name == "__class__":
            return self.class_value(cx)
        if name == "__dict__" and isinstance(class_lookup(self.cls, name), types.GetSetDescriptorType):
            return InstanceDict(self)
        raw = class_lookup(self.cls, name)
        if raw is not MISSING and is_data_descriptor(raw):
            return self.read_descriptor(cx, raw, name)
        if name in self.stored:
            value = self.stored[name]
            if value is not DELETED:
                return value  # type: ignore[return-value]
        elif name in self.own_dict():
            if name not in self.read:
                self.read[name] = self.wrap_own(cx, name)
            return self.read[name]
        elif self.real is not None:
            self.guard_absent(cx, name)
        if raw is MISSING:
            return None
        return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))

    def wrap_own(self, cx: Trace, name: str) -> Value:
        return cx.wrap(self.own_dict()[name], DictAttr(self.source, name))

    def guard_absent(self, cx: Trace, name: str) -> None:
        if class_lookup(self.cls, name) is MISSING:
            cx.guard("HASATTR", self.source, Presence(name, False))
        elif hasattr(self.real, "__dict__"):
            cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))

    def class_value(self, cx: Trace) -> Value:
        return cx.class_value(self.cls, TypeOf(self.source) if self.source else None)

    def read_descriptor(self, cx: Trace, raw: Any, name: str) -> Value:
        if isinstance(raw, property):
            return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))
        if isinstance(raw, types.MemberDescriptorType) and self.real is not None:  # __slots__
            if name not in self.stored:
                if not hasattr(self.real, name):
                    raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
                value = getattr(self.real, name)
                fixed = isinstance(self.source, Constant) and is_trusted(self.cls.__module__)
                self.read.setdefault(name, cx.wrap(value, Constant(value, name) if fixed else Attr(self.source, name)))
                return self.read[name]
            return self.stored[name]  # type: ignore[return-value]
        raise unsupported("unknown-attribute", f"descriptor {name!r} of {self.describe()}")

    def has_attr(self, cx: Trace, name: str) -> bool:
        if any(isinstance(class_lookup(self.cls, hook), types.FunctionType) for hook in ("__getattribute__", "__getattr__")):
            return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None
        if isinstance(class_lookup(self.cls, name), property):
            return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None
        if self.stored.get(name, DELETED) is not DELETED or name in self.own_dict() and name not in self.stored:
            if self.real is not None and name not in self.stored:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if class_lookup(self.cls, name) is not MISSING:
            if self.source is not None:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if self.real is not None:
            self.guard_absent(cx, name)
        return False

    def set_attr(self, cx: Trace, name: str, value: Value) -> None:
        custom = class_lookup(self.cls, "__setattr__")
        if isinstance(custom, types.FunctionType):
            cx.call_real(custom, class_source(self.cls, "__setattr__"), [self, ConstantValue(name), value])
            return
        raw = class_lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                raise unsupported("would-raise", f"can't set attribute {name!r}")
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fset, Constant(raw.fset, f"{name}.fset"), [self, value])
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            raise unsupported("setattr", f"{self.describe()}.{name}, a descriptor")
        self.store(cx, name, value)

    def store(self, cx: Trace, name: str, value: Value) -> None:
        cx.effects.touch(self)
        self.stored[name] = value

    def del_attr(self, cx: Trace, name: str) -> None:
        if class_lookup(self.cls, "__delattr__") is not object.__delattr__ or name not in self.stored and name not in self.own_dict():
            raise unsupported("setattr", f"del {self.describe()}.{name}")
        cx.effects.touch(self)
        if name in self.own_dict():
            self.stored[name] = DELETED
        else:
            del self.stored[name]

    def special(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """type(self).name(self, *args); None where the class does not define it in Python."""
        raw = class_lookup(self.cls, name)
        if not isinstance(raw, types.FunctionType):
            return None
        return cx.call_real(raw, class_source(self.cls, name), [self, *args], kwargs)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, "__call__", args, kwargs)
        return super().call(cx, args, kwargs) if result is None else result

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, name, args, kwargs)
        return super().method(cx, name, args, kwargs) if result is None else result

    def truth(self, cx: Trace) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(cx, name, [])
            if result is not None:
                return bool(result.truth(cx))
        if class_lookup(self.cls, "__bool__") is MISSING and class_lookup(self.cls, "__len__") is MISSING:
            return True
        return super().truth(cx)

    def length(self, cx: Trace) -> int:
        result = self.special(cx, "__len__", [])
        return super().length(cx) if result is None else result.constant()

    def contains(self, cx: Trace, item: Value) -> Value:
        result = self.special(cx, "__contains__", [item])
        return ConstantValue(result.truth(cx)) if result is not None else TupleValue(self.elements(cx)).contains(cx, item)

    def iterate(self, cx: Trace) -> IteratorValue:
        result = self.special(cx, "__iter__", [])
        if isinstance(result, IteratorValue):
            return result
        if isinstance(result, ObjectValue) and isinstance(class_lookup(result.cls, "__next__"), types.FunctionType):
            return ObjectIterator(result)
        if result is None and class_lookup(self.cls, "__iter__") is MISSING and isinstance(class_lookup(self.cls, "__getitem__"), types.FunctionType):
            return ItemIterator(self)
        return super().iterate(cx)

    def children(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is None else ()

    def replay_values(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is not None else ()

    def replay(self, out: Builder) -> None:
        if self.source is not None:
            for name, value in self.stored.items():
                out.value(self)
                out.del_attr(name) if value is DELETED else None
                if value is not DELETED:
                    out.value(value)  # type: ignore[arg-type]
                    out.emit("SWAP", 2)
                    out.store_attr(name)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(object.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        for name, value in self.stored.items():
            out.push_null()
            out.const(object.__setattr__)
            out.value(self)
            out.const(name)
            out.value(value)  # type: ignore[arg-type]
            out.call(3)
            out.emit("POP_TOP")


class ObjectIterator(IteratorValue):
    """An iterator of a user's class."""

    def __init__(self, owner: ObjectValue):
        self.owner = owner

    def pytype(self) -> type:
        return self.owner.cls

    def next(self, cx: Trace) -> Value | None:
        return cx.unless_missing(lambda: self.owner.method(cx, "__next__", [], {}), StopIteration)

    def get_attr(self, cx: Trace, name: str) -> Value:
        return self.owner.get_attr(cx, name)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Builder) -> None:
        out.value(self.owner)


class ItemIterator(IteratorValue):
    """Iterates an object that has __getitem__ alone."""

    def __init__(self, owner: ObjectValue):
        self.owner, self.index = owner, 0

    def pytype(self) -> type:
        return type(iter(type("Sequence", (), {"__getitem__": None})()))

    def next(self, cx: Trace) -> Value | None:
        self.index += 1
        return cx.unless_missing(lambda: self.owner.method(cx, "__getitem__", [ConstantValue(self.index - 1)], {}), IndexError)


class InstanceDict(Value):
    """object.__dict__, for lookups."""

    def __init__(self, owner: ObjectValue):
        self.owner = owner

    def pytype(self) -> type:
        return dict

    def find(self, cx: Trace, key: Value) -> Value | None:
        name, owner = key.constant(), self.owner
        if name in owner.stored:
            value = owner.stored[name]
            return None if value is DELETED else value  # type: ignore[return-value]
        if name in owner.own_dict():
            if name not in owner.read:
                owner.read[name] = owner.wrap_own(cx, name)
            return owner.read[name]
        if owner.real is not None:
            cx.guard("DICT_CONTAINS", Attr(owner.source, "__dict__"), Presence(name, False))
        return None

    def get_attr(self, cx: Trace, name: str) -> Value:
        return Method(self, name)

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "get" and args and not kwargs:
            found = self.find(cx, args[0])
            return found if found is not None else args[1] if len(args) > 1 else ConstantValue(None)
        if name == "__contains__":
            return ConstantValue(self.find(cx, args[0]) is not None)
        if name == "__getitem__":
            found = self.find(cx, args[0])
            if found is None:
                raise raises(KeyError, args[0].constant())
            return found
        return super().method(cx, name, args, kwargs)


class GetAttribute(Value):
    """super().__getattribute__, bound to an object."""

    def pytype(self) -> type:
        return types.MethodWrapperType

    def __init__(self, owner: ObjectValue):
        self.owner = owner

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        name = args[0].constant()
        found = self.owner.lookup(cx, name)
        if found is None:
            raise raises(AttributeError, f"{self.owner.cls.__name__!r} object has no attribute {name!r}")
        return found


def instance_dict(real: Any) -> dict[str, Any]:
    """real.__dict__ without running code of its class; empty where it has none."""
    try:
        found = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


class WeakReference(Value):
    """A weakref to an object that is known by another way, too; pinned by identity."""

    def __init__(self, real: weakref.ref, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return weakref.ref

    def truth(self, cx: Trace) -> bool:
        return True

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        target = self.real()
        found = cx.known.get(id(target))
        if target is None or found is None:
            raise unsupported("unknown-object", f"what {self.source.text()} refers to")
        cx.guard("ID", found.source, identity(target))
        return found


@wraps(weakref.ref)
def wrap_weakref(cx: Trace, real: weakref.ref, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return WeakReference(real, source)


def wrap_exception(cx: Trace, real: BaseException, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return ExceptionValue(type(real), None, source, real)


def wrap_object(cx: Trace, real: Any, source: Source) -> Value:
    """Any object with attributes; the kinds with a wrapper of their own never get here."""
    cls = type(real)
    if issubclass(cls, BaseException):
        return wrap_exception(cx, real, source)
    if (
        not isinstance(cls.__getattribute__, types.FunctionType)
        and cls.__getattribute__ is not object.__getattribute__
        or cls.__module__ == "builtins"
        or issubclass(cls, (dict, list, tuple, set, int, float, str, BaseException))
    ):
        cx.guard("TYPE", source, cls)
        return OpaqueValue(real, source)
    cx.guard("TYPE", source, cls)
    return ObjectValue(cls, real, source)


class OpaqueValue(Value):
    """An object that capture can hand around, compare by identity and load again, and nothing else."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return type(self.real)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-function", self.describe())

    def get_attr(self, cx: Trace, name: str) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}")

    def iterate(self, cx: Trace) -> IteratorValue:
        raise unsupported("unknown-object", f"iterating {self.describe()}")
