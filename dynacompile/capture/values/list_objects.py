"""Instances of user classes that derive from list: attributes of an object over the items of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import IteratorValue, Lazy, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.container_objects import ContainerObjectValue
from dynacompile.capture.values.objects import call_hook
from dynacompile.capture.values.sequence import ListValue, ReversedIterator, SequenceIterator, TupleValue
from dynacompile.ir.source import Entry, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

CHANGES = frozenset("__init__ __setitem__ __delitem__ __iadd__ append extend insert pop clear reverse remove sort".split())
COMPARISONS = frozenset("__eq__ __ne__ __lt__ __le__ __gt__ __ge__".split())


class ListObjectValue(ContainerObjectValue):
    """table: a ListValue of the items. changed: whether the frame has changed them."""

    container = list
    changed = False

    def container_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """list.name(self, ...)."""
        if name in CHANGES:
            cx.effects.touch(self)
            self.changed = True
        if name == "__init__":
            return self.table.method(cx, "extend", args, kwargs) if args else ConstantValue(None)
        if name == "__iadd__":
            self.table.method(cx, "extend", args, kwargs)
            return self
        if name in ("__add__", "__radd__", "__mul__", "__rmul__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
            other = args[0].table if isinstance(args[0], ListObjectValue) else args[0]
            if name in COMPARISONS and not issubclass(other.pytype(), list):
                return ConstantValue(NotImplemented)
            return cx.operator(name.strip("_").removeprefix("r"), [other, self.table] if name.startswith("__r") else [self.table, other])
        if name in ("__setitem__", "__delitem__"):
            (self.table.set_item if name == "__setitem__" else self.table.del_item)(cx, *args)
            return ConstantValue(None)
        if name == "__reversed__":
            return ReversedIterator(self.table, len(self.table.items), self)
        if name == "__iter__":
            return SequenceIterator(self.table, self)
        return self.table.method(cx, name, args, kwargs)

    def special(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """Operators of list count as the class's own."""
        result = super().special(cx, name, args, kwargs)
        if result is None and cx.lookup(self.cls, name) is getattr(list, name, None) and hasattr(list, name) and name not in dir(object):
            return self.container_method(cx, name, args, kwargs or {})
        return result

    def iterate(self, cx: Context) -> IteratorValue:
        return SequenceIterator(self.table, self) if cx.lookup(self.cls, "__iter__") is list.__iter__ else super().iterate(cx)

    def children(self) -> Sequence[Value]:
        return [*super().children(), *self.table.items] if self.source is None else ()

    def replay_values(self) -> Sequence[Value]:
        return [*super().replay_values(), *(self.table.items if self.changed else ())]

    def replay(self, out: Writer) -> None:
        """The items, past the methods of the class, then the attributes."""
        if self.changed and self.source is not None:
            self.rebuild_items(out, list.__setitem__, SliceOfAll())
        super().replay(out)

    def rebuild(self, out: Writer) -> None:
        out.callee(list.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        self.rebuild_items(out, list.extend)
        self.rebuild_attributes(out)

    def rebuild_items(self, out: Writer, hook: object, *where: Value) -> None:
        call_hook(out, hook, self, *where, TupleValue(self.table.items))


class SliceOfAll(Value):
    """slice(None), for residual code."""

    def rebuild(self, out: Writer) -> None:
        out.const(None)
        out.const(None)
        out.emit("BUILD_SLICE", 2)


def is_list_class(cls: type) -> bool:
    """User classes whose instances are a list and attributes, made by list's own __new__."""
    return (
        issubclass(cls, list)
        and cls is not list
        and cls.__new__ is list.__new__
        and type(cls).__call__ is type.__call__
        and cls.__getattribute__ is list.__getattribute__
        and not hasattr(cls, "__del__")
        and cls.__module__.partition(".")[0] != "torch"
    )


def wrap_list_object(cx: Context, real: list, source: Source) -> Value:
    cls: Any = type(real)
    cx.guard("TYPE", source, cls)
    cx.guard("LENGTH", source, list.__len__(real))
    places = [Item(source, i) if cls.__getitem__ is list.__getitem__ else Entry(source, i, list) for i in range(list.__len__(real))]
    return ListObjectValue(cls, ListValue([Lazy(cx, list.__getitem__(real, i), place) for i, place in enumerate(places)]), real, source)
