"""What objects of user classes lead to: their iterators, their `__dict__`, and object's own way to attributes."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.source import Attr

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace
    from dynacompile.capture.values.objects import ObjectValue

DELETED = object()  # an attribute that the frame deleted


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

    def listed(self, cx: Trace) -> list[Value]:
        self.foretell(cx)
        return self.elements(cx)

    def foretell(self, cx: Trace) -> None:
        self.owner.told_length(cx, "__len__")


class InstanceDict(Value):
    """object.__dict__."""

    def __init__(self, owner: ObjectValue):
        self.owner = owner

    def describe(self) -> str:
        return f"{self.owner.describe()}.__dict__"

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
        if owner.real is not None and owner.cls.__dictoffset__:
            cx.guard("DICT_CONTAINS", Attr(owner.source, "__dict__"), Presence(name, False))
        return None

    def snapshot(self, cx: Trace) -> DictValue:
        """A dict with the same entries."""
        owner = self.owner
        if owner.real is not None:
            cx.guard("DICT_KEYS", Attr(owner.source, "__dict__"), tuple(owner.own_dict()))
        stays = (n for n in owner.own_dict() if n not in owner.removed)  # what was removed and stored again comes last
        names = [n for n in dict.fromkeys((*stays, *owner.stored)) if not isinstance(cx.lookup(owner.cls, n), types.MemberDescriptorType)]
        found = [(ConstantValue(n), self.find(cx, ConstantValue(n))) for n in names]
        return DictValue.of([(n, value) for n, value in found if value is not None])

    def length(self, cx: Trace) -> int:
        return self.snapshot(cx).length(cx)

    def truth(self, cx: Trace) -> bool:
        return self.length(cx) > 0

    def iterate(self, cx: Trace) -> IteratorValue:
        return self.snapshot(cx).iterate(cx)

    def get_attr(self, cx: Trace, name: str) -> Value:
        return Method(self, name)

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(dict, name)

    def set_item(self, cx: Trace, key: Value, value: Value) -> None:
        name = key.constant()
        if not isinstance(name, str) or hasattr(self.owner, "tables"):
            raise unsupported("mutation", f"{self.describe()}[{name!r}]")
        self.owner.store(cx, name, value)

    def pop(self, cx: Trace, key: Value, *otherwise: Value) -> Value:
        """Removes an entry past all hooks of the class, and gives it."""
        found = self.find(cx, key)
        if found is None:
            if otherwise:
                return otherwise[0]
            raise raises(KeyError, key.constant())
        if hasattr(self.owner, "tables") or not self.owner.stores_plainly(key.constant()):
            raise unsupported("mutation", f"{self.describe()}, from which {key.constant()!r} is removed,")
        self.owner.remove(cx, key.constant())
        return found

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
        if name == "__setitem__":
            self.set_item(cx, *args)
            return ConstantValue(None)
        if name == "setdefault" and args and not kwargs:
            found = self.find(cx, args[0])
            if found is None:
                found = args[1] if len(args) > 1 else ConstantValue(None)
                self.set_item(cx, args[0], found)
            return found
        if name == "pop" and args and not kwargs:
            return self.pop(cx, *args)
        if name == "__delitem__":
            self.pop(cx, *args)
            return ConstantValue(None)
        if name in ("keys", "values", "items", "copy", "__iter__", "__len__", "__eq__", "__ne__", "__or__", "__ror__"):
            return self.snapshot(cx).method(cx, name, args, kwargs)
        if name == "update":
            for key, value in [*(pairs_of(cx, args[0]) if args else ()), *((ConstantValue(k), v) for k, v in kwargs.items())]:
                self.set_item(cx, key, value)
            return ConstantValue(None)
        return super().method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Builder) -> None:
        out.value(self.owner)
        out.load_attr("__dict__")


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
