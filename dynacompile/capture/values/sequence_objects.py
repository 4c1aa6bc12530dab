"""Instances of user classes that derive from list or tuple: attributes of an object over the items of the sequence.

Named tuples that leave to tuple what they are read by, and have no attributes beside their items, are `TupleValue`s.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import IteratorValue, Lazy, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.container_objects import ContainerObjectValue
from dynacompile.capture.values.objects import call_hook
from dynacompile.capture.values.sequence import HEAP_TYPE, ListValue, ReversedIterator, SequenceIterator, SequenceValue, TupleValue, reads_as_tuple
from dynacompile.ir.source import Entry, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

CHANGES = frozenset("__init__ __setitem__ __delitem__ __iadd__ append extend insert pop clear reverse remove sort".split())
COMPARISONS = frozenset("__eq__ __ne__ __lt__ __le__ __gt__ __ge__".split())
OPERATORS = COMPARISONS | {"__add__", "__radd__", "__mul__", "__rmul__"}


class SequenceObjectValue(ContainerObjectValue):
    """table: a ListValue or TupleValue of the items."""

    table: SequenceValue

    def container_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """container.name(self, ...)."""
        if name in OPERATORS:
            other = args[0].table if isinstance(args[0], SequenceObjectValue) else args[0]
            if name in COMPARISONS and not issubclass(other.pytype(), self.container):
                return ConstantValue(NotImplemented)
            return cx.operator(name.strip("_").removeprefix("r"), [other, self.table] if name.startswith("__r") else [self.table, other])
        if name == "__iter__":
            return SequenceIterator(self.table, self)
        if name == "__hash__":
            return cx.pure(hash, [self.table], {})
        return self.table.method(cx, name, args, kwargs)

    def special(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """Operators of the container count as the class's own."""
        result = super().special(cx, name, args, kwargs)
        inherited = getattr(self.container, name, None)
        if result is None and inherited is not None and cx.lookup(self.cls, name) is inherited and (name in COMPARISONS or name not in dir(object)):
            return self.container_method(cx, name, args, kwargs or {})
        return result

    def iterate(self, cx: Context) -> IteratorValue:
        own: Any = self.container.__iter__  # type: ignore[attr-defined]
        return SequenceIterator(self.table, self) if cx.lookup(self.cls, "__iter__") is own else super().iterate(cx)

    def children(self) -> Sequence[Value]:
        return [*super().children(), *self.table.items] if self.source is None else ()


class ListObjectValue(SequenceObjectValue):
    """changed: whether the frame has changed the items."""

    container = list
    changed = False

    def container_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in CHANGES:
            cx.effects.touch(self)
            self.changed = True
        if name == "__init__":
            return self.table.method(cx, "extend", args, kwargs) if args else ConstantValue(None)
        if name == "__iadd__":
            self.table.method(cx, "extend", args, kwargs)
            return self
        if name in ("__setitem__", "__delitem__"):
            (self.table.set_item if name == "__setitem__" else self.table.del_item)(cx, *args)
            return ConstantValue(None)
        if name == "__reversed__":
            return ReversedIterator(self.table, len(self.table.items), self)
        return super().container_method(cx, name, args, kwargs)

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


class TupleObjectValue(SequenceObjectValue):
    container = tuple

    def argument(self) -> tuple[Any, Any]:
        return self.table.argument() if reads_as_tuple(self.cls) else super().argument()

    def read_descriptor(self, cx: Context, raw: Any, name: str) -> Value:
        return self.table.at(cx, field_index(raw)) if type(raw) is FIELD else super().read_descriptor(cx, raw, name)

    def rebuild(self, out: Writer) -> None:
        out.callee(tuple.__new__)
        out.const(self.cls)
        for item in self.table.items:
            out.value(item)
        out.emit("BUILD_TUPLE", len(self.table.items))
        out.call(2)
        out.remember(self)
        self.rebuild_attributes(out)


FIELD: type = type(collections.namedtuple("FIELD", "one").one)  # type: ignore[attr-defined]  # what a named tuple has a name by


def field_index(raw: Any) -> int:
    """Of the item that an attribute of a named tuple is."""
    index: int = raw.__reduce__()[1][0]
    return index


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


def is_tuple_class(cls: type) -> bool:
    """User classes whose instances are a tuple and attributes."""
    return (
        issubclass(cls, tuple)
        and bool(cls.__flags__ & HEAP_TYPE)
        and not hasattr(cls, "n_fields")  # a tuple that C makes may have elements beside those of the tuple
        and type(cls).__call__ is type.__call__
        and cls.__getattribute__ is tuple.__getattribute__
        and not hasattr(cls, "__del__")
        and cls.__module__.partition(".")[0] != "torch"
    )


def items_of(cx: Context, real: Any, source: Source, container: type[list] | type[tuple]) -> list[Value]:
    """What an object holds past the methods of its class. Its length is guarded."""
    cx.guard("LENGTH", source, container.__len__(real))
    plain = type(real).__getitem__ is container.__getitem__
    return [Lazy(cx, item, Item(source, i) if plain else Entry(source, i, container)) for i, item in enumerate(container.__iter__(real))]


def wrap_list_object(cx: Context, real: list, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return ListObjectValue(type(real), ListValue(items_of(cx, real, source, list)), real, source)


def wrap_tuple_object(cx: Context, real: tuple, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return TupleObjectValue(type(real), TupleValue(items_of(cx, real, source, tuple)), real, source)
