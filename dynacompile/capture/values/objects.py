"""Instances of user classes, and objects that are only handed around."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, by_own_hook, class_source, is_data_descriptor
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import is_trusted
from dynacompile.capture.values.object_parts import DELETED, InstanceDict, ItemIterator, ObjectIterator, instance_dict
from dynacompile.capture.values.references import WEAK_CONTAINERS
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.namespaces import MISSING, class_lookup
from dynacompile.ir.source import Attr, Constant, DictAttr, Source, TypeOf

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class ObjectValue(Value):
    """An instance of a user class. real: the object, where it exists before the frame runs. stored: attributes written so far."""

    def __init__(self, cls: type, real: Any = None, source: Source | None = None):
        self.cls, self.real, self.source = cls, real, source
        self.stored: dict[str, Value | object] = {}
        self.removed: dict[str, bool] = {}  # attributes that the frame deleted: whether it had set them before, so that it does not matter if they were there
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
        custom, fallback = (cx.lookup(self.cls, hook) for hook in ("__getattribute__", "__getattr__"))

        def get() -> Value | None:
            if isinstance(custom, types.FunctionType):
                return cx.call_real(custom, class_source(self.cls, "__getattribute__"), [self, ConstantValue(name)])
            return self.lookup(cx, name)

        if not isinstance(fallback, types.FunctionType):
            found = get()
            if found is None:
                raise self.missing(name)
            return found
        found = cx.unless_missing(get)
        return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)]) if found is None else found

    def missing(self, name: str) -> Raised:
        return raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def lookup(self, cx: Trace, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        if name == "__class__" and cx.lookup(self.cls, name) is object.__dict__[name]:
            return self.class_value(cx)
        if name == "__dict__" and isinstance(cx.lookup(self.cls, name), (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return InstanceDict(self)
        raw = cx.lookup(self.cls, name)
        if raw is not MISSING and is_data_descriptor(raw):
            return self.read_descriptor(cx, raw, name)
        if name in self.stored:
            value = self.stored[name]
            if value is not DELETED:
                return value  # type: ignore[return-value]
        elif name in self.own_dict():
            if name not in self.read:
                self.guard_shadow(cx, name, raw)
                self.read[name] = self.wrap_own(cx, name)
            return self.read[name]
        elif self.real is not None:
            self.guard_absent(cx, name)
        assigned = assigned_attribute(cx, self.cls, name)
        if assigned is not None or raw is MISSING:
            return assigned
        return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))

    def wrap_own(self, cx: Trace, name: str) -> Value:
        return cx.wrap(self.own_dict()[name], DictAttr(self.source, name))

    def guard_absent(self, cx: Trace, name: str) -> None:
        if cx.lookup(self.cls, name) is MISSING:
            cx.guard("HASATTR", self.source, Presence(name, False))
        elif hasattr(self.real, "__dict__"):
            cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))

    def guard_shadow(self, cx: Trace, name: str, raw: Any) -> None:
        """An attribute of the object counts as long as its class has no property of that name."""
        if raw is MISSING and not is_trusted(self.cls.__module__) and cx.lookup(type(self.cls), name) is MISSING:
            cx.guard("HASATTR", Constant(self.cls, self.cls.__qualname__), Presence(name, False))

    def class_value(self, cx: Trace) -> Value:
        return cx.class_value(self.cls, TypeOf(self.source) if self.source else None)

    def read_descriptor(self, cx: Trace, raw: Any, name: str) -> Value:
        source = class_source(self.cls, name)
        if isinstance(raw, types.MemberDescriptorType):  # __slots__
            return self.read_slot(cx, name)
        if isinstance(raw, property) or isinstance(cx.lookup(type(raw), "__get__"), types.FunctionType):
            return bind_descriptor(cx, raw, self, self.class_value(cx), name, source)
        if cx.lookup(type(raw), "__get__") is MISSING:
            found = InstanceDict(self).find(cx, ConstantValue(name))
            return cx.wrap(raw, Constant(raw, name)) if found is None else found
        raise unsupported("unknown-attribute", f"descriptor {name!r} of {self.describe()}")

    def read_slot(self, cx: Trace, name: str) -> Value:
        if name in self.stored:
            if self.stored[name] is DELETED:
                raise raises(AttributeError, name, known=False)
            return self.stored[name]  # type: ignore[return-value]
        if self.real is None or not hasattr(self.real, name):
            if self.real is not None:  # no guard tells that it is empty
                raise unsupported("unknown-attribute", f"{self.describe()}.{name}, an empty slot")
            raise raises(AttributeError, name, known=False)  # Python 3.12 says more
        if name not in self.read:
            value = getattr(self.real, name)
            fixed = isinstance(self.source, Constant) and is_trusted(self.cls.__module__)
            self.read[name] = cx.wrap(value, Constant(value, name) if fixed else Attr(self.source, name))
        return self.read[name]

    def has_attr(self, cx: Trace, name: str) -> bool:
        if any(isinstance(cx.lookup(self.cls, hook), types.FunctionType) for hook in ("__getattribute__", "__getattr__")):
            return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None
        if is_data_descriptor(cx.lookup(self.cls, name)):
            return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None
        if self.stored.get(name, DELETED) is not DELETED or name in self.own_dict() and name not in self.stored:
            if self.real is not None and name not in self.stored:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if assigned_attribute(cx, self.cls, name) is not None:
            return True
        if cx.lookup(self.cls, name) is not MISSING:
            if self.source is not None:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if self.real is not None and name not in self.stored:
            self.guard_absent(cx, name)
        return False

    def set_attr(self, cx: Trace, name: str, value: Value) -> None:
        if by_own_hook(cx, self, self.cls, "__setattr__", [ConstantValue(name), value]) is None:
            self.set_plain(cx, name, value)

    def set_plain(self, cx: Trace, name: str, value: Value) -> None:
        """object.__setattr__."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                raise raises(AttributeError, f"property {name!r} of {self.cls.__qualname__!r} object has no setter")
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fset, Constant(raw.fset, f"{name}.fset"), [self, value])
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            self.by_descriptor(cx, raw, name, "__set__", [value])
            return
        if raw is MISSING and not self.cls.__dictoffset__:
            raise self.missing(name)
        self.store(cx, name, value)

    def by_descriptor(self, cx: Trace, raw: Any, name: str, hook: str, args: list[Value]) -> None:
        """type(raw).__set__(raw, self, value) or .__delete__(raw, self)."""
        setter = cx.lookup(type(raw), hook)
        if not isinstance(setter, types.FunctionType):
            raise unsupported("setattr", f"{self.describe()}.{name}, a descriptor")
        cx.call_real(setter, class_source(type(raw), hook), [cx.wrap(raw, Constant(raw, name)), self, *args])

    def store(self, cx: Trace, name: str, value: Value) -> None:
        cx.effects.touch(self)
        if self.stored.get(name) is DELETED:  # it comes last from now on
            del self.stored[name]
        self.stored[name] = value

    def del_attr(self, cx: Trace, name: str) -> None:
        if by_own_hook(cx, self, self.cls, "__delattr__", [ConstantValue(name)]) is None:
            self.del_plain(cx, name)

    def del_plain(self, cx: Trace, name: str) -> None:
        """object.__delattr__."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fdel is None:
                raise raises(AttributeError, f"property {name!r} of {self.cls.__qualname__!r} object has no deleter")
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fdel, Constant(raw.fdel, f"{name}.fdel"), [self])
            return
        if raw is not MISSING and is_data_descriptor(raw):
            if not isinstance(raw, types.MemberDescriptorType):
                self.by_descriptor(cx, raw, name, "__delete__", [])
                return
            self.read_slot(cx, name)
        elif InstanceDict(self).find(cx, ConstantValue(name)) is None:
            raise self.missing(name)
        self.remove(cx, name)

    def remove(self, cx: Trace, name: str) -> None:
        """Of an attribute that is there."""
        cx.effects.touch(self)
        stored = self.stored.pop(name, DELETED)
        if self.real is not None:
            self.stored[name] = DELETED
            self.removed.setdefault(name, stored is not DELETED)

    def special(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """type(self).name(self, *args); None where the class does not define it in Python."""
        raw = cx.lookup(self.cls, name)
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
        if cx.lookup(self.cls, "__bool__") is MISSING and cx.lookup(self.cls, "__len__") is MISSING:
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
        if isinstance(result, ObjectValue) and isinstance(cx.lookup(result.cls, "__next__"), types.FunctionType):
            return ObjectIterator(result)
        if result is None and cx.lookup(self.cls, "__iter__") is MISSING and isinstance(cx.lookup(self.cls, "__getitem__"), types.FunctionType):
            return ItemIterator(self)
        return super().iterate(cx)

    def listed(self, cx: Trace) -> list[Value]:
        iterator = self.iterate(cx)
        self.foretell(cx)
        return iterator.drain(cx)

    def foretell(self, cx: Trace) -> None:
        if not self.told_length(cx, "__len__"):
            self.told_length(cx, "__length_hint__")

    def told_length(self, cx: Trace, name: str) -> bool:
        """Whether the class has the method in Python and it gives a number. A TypeError does not matter."""
        length = cx.unless_missing(lambda: self.special(cx, name, []), TypeError)
        if length is None or not issubclass(length.pytype(), int):
            return False
        if cx.operator("lt", [length, ConstantValue(0)]).truth(cx):
            raise raises(ValueError, f"{name}() should return >= 0")
        return True

    def children(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is None else ()

    def replay_values(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is not None else ()

    def stores_plainly(self, name: str) -> bool:
        """Whether `self.name = value` stores the value and does nothing else."""
        own = (class_lookup(self.cls, hook) for hook in ("__setattr__", "__delattr__"))
        raw = class_lookup(self.cls, name)
        return not any(isinstance(hook, types.FunctionType) and hook.__module__ != "torch.nn.modules.module" for hook in own) and (
            raw is MISSING or not is_data_descriptor(raw) or is_slot(raw)
        )

    def replay(self, out: Builder) -> None:
        if self.source is None:
            return
        for name, value in self.stored.items():
            if name in self.removed:
                if self.removed[name]:
                    self.replay_store(out, name, ConstantValue(None))
                self.replay_removal(out, name)
            if isinstance(value, Value):
                self.replay_store(out, name, value)

    def replay_store(self, out: Builder, name: str, value: Value) -> None:
        if self.stores_plainly(name):
            out.value(self)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)
        else:
            self.rebuild_attribute(out, name, value)

    def replay_removal(self, out: Builder, name: str) -> None:
        if self.stores_plainly(name):
            out.value(self)
            out.del_attr(name)
        else:
            call_hook(out, object.__delattr__, self, ConstantValue(name))

    def rebuild(self, out: Builder) -> None:
        new = self.cls.__new__
        out.callee(new if isinstance(new, types.BuiltinFunctionType) else object.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        self.rebuild_attributes(out)

    def rebuild_attributes(self, out: Builder) -> None:
        for name, value in self.stored.items():
            if isinstance(value, Value):
                self.rebuild_attribute(out, name, value)

    def rebuild_attribute(self, out: Builder, name: str, value: Value) -> None:
        """Stores an attribute past all hooks of the class."""
        raw = class_lookup(self.cls, name)
        if raw is MISSING or not is_data_descriptor(raw) or is_slot(raw):
            call_hook(out, object.__setattr__, self, ConstantValue(name), value)
            return
        out.value(value)
        out.value(self)
        out.load_attr("__dict__")
        out.const(name)
        out.emit("STORE_SUBSCR")


def is_slot(raw: Any) -> bool:
    return isinstance(raw, types.MemberDescriptorType)


def call_hook(out: Builder, hook: object, *args: Value) -> None:
    """A call whose result is dropped."""
    out.call_function(hook, args)
    out.emit("POP_TOP")


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
        and cls.__getattribute__ not in (object.__getattribute__, types.SimpleNamespace.__getattribute__)
        or cls.__module__ == "builtins"
        or issubclass(cls, WEAK_CONTAINERS)
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

    def is_pending(self) -> bool:
        """Of a generator only the type is guarded: the one of a later call may have stopped in a block."""
        return isinstance(self.real, types.GeneratorType)

    ends_late = is_pending

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-function", self.describe())

    def get_attr(self, cx: Trace, name: str) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}")

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}()")

    def iterate(self, cx: Trace) -> IteratorValue:
        raise unsupported("unknown-object", f"iterating {self.describe()}")
