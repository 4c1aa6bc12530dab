"""Members of enumerations: constants, of which each is one object, with the attributes and methods that the user's class gives them."""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.answers import answered
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import bind_descriptor, class_source
from dynacompile.capture.values.own_methods import is_own, own_method, refuse_own
from dynacompile.ir.guard_facts import Presence, identity
from dynacompile.ir.namespaces import MISSING, is_computed
from dynacompile.ir.source import Attr, Constant, DictAttr, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

OF_ENUM = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})  # what the library itself sets in a member


class EnumMember(ConstantValue):
    """A member, whose class may define of its own what C does with other constants."""

    def own_call(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """type(self).name(self, *args), where the user's class defines it; else None."""
        cls = type(self.value)
        raw = cx.lookup(cls, name)
        if not is_own(cls, name, raw):
            return None
        if not isinstance(raw, types.FunctionType):
            refuse_own(cx, cls, name)
        return cx.call_real(raw, class_source(cls, name), [self, *args], kwargs or {})

    def own_data(self) -> dict[str, Any]:
        return {name: found for name, found in getattr(self.value, "__dict__", {}).items() if name not in OF_ENUM}

    def itself(self) -> Source:
        return Constant(self.value, str(self.value))

    def get_attr(self, cx: Context, name: str) -> Value:
        cls = type(self.value)
        refuse_own(cx, cls, "__getattribute__", "__getattr__")
        raw = cx.lookup(cls, name)
        data = self.own_data()
        if name in data and not isinstance(raw, property):
            return cx.wrap(data[name], DictAttr(self.itself(), name))
        if is_own(cls, name, raw) and not isinstance(raw, enum.Enum):
            self.guard_presence(cx, name)
            return bind_descriptor(cx, raw, self, cx.class_value(cls, None), name, class_source(cls, name))
        if raw is MISSING:
            self.guard_presence(cx, name)
        return super().get_attr(cx, name)

    def guard_presence(self, cx: Context, name: str) -> None:
        """That the member itself has no such attribute; or that neither has its class."""
        if hasattr(self.value, "__dict__"):
            cx.guard("DICT_CONTAINS", Attr(self.itself(), "__dict__"), Presence(name, name in self.value.__dict__))

    def computes(self, cx: Context, name: str) -> bool:
        cls = type(self.value)
        raw = cx.lookup(cls, name)
        return is_own(cls, name, raw) and is_computed(raw)

    def has_attr(self, cx: Context, name: str) -> bool:
        cls = type(self.value)
        refuse_own(cx, cls, "__getattribute__", "__getattr__")
        cx.lookup(cls, name)
        cx.guard("HASATTR", self.itself(), Presence(name, found := hasattr(self.value, name)))
        return found

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = self.own_call(cx, name, args, kwargs)
        return super().method(cx, name, args, kwargs) if found is None else found

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = self.own_call(cx, "__call__", args, kwargs)
        return super().call(cx, args, kwargs) if found is None else found

    def truth(self, cx: Context) -> bool:
        name = own_method(cx, type(self.value), "__bool__", "__len__")
        found = None if name is None else self.own_call(cx, name, [])
        return bool(self.value) if found is None or name is None else answered(name, found).truth(cx)

    def length(self, cx: Context) -> int:
        found = self.own_call(cx, "__len__", [])
        return super().length(cx) if found is None else answered("__len__", found).constant()

    def get_item(self, cx: Context, key: Value) -> Value:
        found = self.own_call(cx, "__getitem__", [key])
        return super().get_item(cx, key) if found is None else found

    def contains(self, cx: Context, item: Value) -> Value:
        found = self.own_call(cx, "__contains__", [item])
        return super().contains(cx, item) if found is None else ConstantValue(found.truth(cx))

    def foretell(self, cx: Context) -> None:
        if self.own_call(cx, "__len__", []) is None:
            self.own_call(cx, "__length_hint__", [])

    def listed(self, cx: Context) -> list[Value]:
        iterator = self.iterate(cx)
        self.foretell(cx)
        return iterator.drain(cx)

    def iterate(self, cx: Context) -> IteratorValue:
        found = self.own_call(cx, "__iter__", [])
        return super().iterate(cx) if found is None else found.iterate(cx)


def wrap_member(cx: Context, real: enum.Enum, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return EnumMember(real, source)
