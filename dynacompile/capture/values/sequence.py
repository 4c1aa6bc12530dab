"""Lists, tuples, named tuples and the result tuples of torch operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Lazy, Value, bind_arguments, builtin_attribute, next_serial, no_attribute, stepped, wraps
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.own_methods import own_method
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.namespaces import MISSING, defines
from dynacompile.ir.source import Attr, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class SequenceValue(Value):
    """What lists and tuples share: `items` is the content as of now."""

    items: list[Value]
    cls: type

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Context) -> bool:
        return bool(self.items)

    def length(self, cx: Context) -> int:
        return len(self.items)

    def at(self, cx: Context, index: int) -> Value:
        return self.settled(index)

    def elements(self, cx: Context) -> list[Value]:
        items = self.items
        for i, item in enumerate(items):
            if isinstance(item, Lazy):
                items[i] = item.force()
        return list(items)

    def get_item(self, cx: Context, key: Value) -> Value:
        index = index_of(cx, key)
        if isinstance(index, slice):
            return self.like(self.items[index])
        if not -len(self.items) <= index < len(self.items):
            kind = "tuple" if issubclass(self.cls, tuple) else self.cls.__name__
            raise raises(IndexError, f"{kind} index out of range")
        return self.at(cx, index)

    def like(self, items: Sequence[Value]) -> Value:
        """A slice or repetition of self."""
        raise NotImplementedError(type(self).__name__)

    def contains(self, cx: Context, item: Value) -> Value:
        return ConstantValue(any(cx.matches(own, item) for own in self.now(cx)))

    def now(self, cx: Context) -> Iterator[Value]:
        """The elements as they are when each is asked for: comparisons with those before may have changed a list."""
        index = 0
        while index < len(self.items):
            yield self.settled(index)
            index += 1

    def iterate(self, cx: Context) -> IteratorValue:
        return SequenceIterator(self)

    def get_attr(self, cx: Context, name: str) -> Value:
        if not defines(self.cls, name):
            raise no_attribute(self.cls, name)
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.cls, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "index" and len(args) == 1:
            for i, own in enumerate(self.now(cx)):
                if cx.matches(own, args[0]):
                    return ConstantValue(i)
            raise raises(ValueError, "what index() looks for is not in the sequence", known=False)  # the message shows the value
        if name == "count" and len(args) == 1:
            return ConstantValue(sum(cx.matches(own, args[0]) for own in self.now(cx)))
        if name == "__len__":
            return ConstantValue(len(self.items))
        if name == "__getitem__" and len(args) == 1:
            return self.get_item(cx, args[0])
        if name == "__contains__" and len(args) == 1:
            return self.contains(cx, args[0])
        if name == "__iter__":
            return self.iterate(cx)
        return super().method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return self.items

    def argument(self) -> tuple[Any, Any]:
        pairs = [self.settled(i).argument() for i in range(len(self.items))]
        kind = self.cls if self.cls in (list, tuple) else tuple
        return kind(p[0] for p in pairs), kind(p[1] for p in pairs)

    def settled(self, index: int) -> Value:
        """The item, read if it was not."""
        item = self.items[index]
        if isinstance(item, Lazy):
            item = self.items[index] = item.force()
        return item


class TupleValue(SequenceValue):
    """A tuple; `cls` may be a named tuple or a result type such as torch.return_types.max."""

    def __init__(self, items: Sequence[Value], cls: type = tuple, source: Source | None = None):
        self.items, self.cls, self.source = list(items), cls, source

    def constant(self) -> Any:
        items = [self.settled(i).constant() for i in range(len(self.items))]
        return tuple(items) if self.cls is tuple else make_tuple(self.cls, items)

    def identity(self) -> Any:
        raise NotConstant("tuple")

    def numbers(self) -> Iterator[Source]:
        for item in self.items:
            yield from (item.force() if isinstance(item, Lazy) else item).numbers()

    def like(self, items: Sequence[Value]) -> Value:
        return TupleValue(items, self.cls if self.cls is torch.Size else tuple)

    def fields(self) -> tuple[str, ...]:
        return getattr(self.cls, "_fields", getattr(self.cls, "__match_args__", ()))

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.fields():
            return self.at(cx, self.fields().index(name))
        self.guard_not_own(cx, name)
        if self.cls is not tuple and name != "__new__":
            found = cx.class_attribute(self, name)
            if found is not None:
                return found
        return super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        self.guard_not_own(cx, name)
        return super().has_attr(cx, name)

    def guard_not_own(self, cx: Context, name: str) -> None:
        """An object of a class without `__slots__ = ()` may have attributes beside its items, which this one has not."""
        if self.source is not None and self.cls.__dictoffset__:
            is_of_class = cx.lookup(self.cls, name) is not MISSING
            cx.guard("DICT_CONTAINS" if is_of_class else "HASATTR", Attr(self.source, "__dict__") if is_of_class else self.source, Presence(name, False))

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "numel" and self.cls is torch.Size:
            return functools.reduce(lambda a, b: cx.operator("mul", [a, b]), self.elements(cx) or [ConstantValue(1)])
        return super().method(cx, name, args, kwargs)

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return TupleValue(self.items).method(cx, name, args, kwargs)

    def rebuild(self, out: Writer) -> None:
        user = self.cls.__flags__ & HEAP_TYPE and self.cls is not torch.Size
        if self.cls is not tuple:
            out.callee(tuple.__new__ if user else self.cls)
            if user:
                out.const(self.cls)
        for item in self.items:
            out.value(item)
        out.emit("BUILD_TUPLE", len(self.items))
        if self.cls is not tuple:
            out.call(2 if user else 1)


HEAP_TYPE = 1 << 9  # classes made by class statements


class ListValue(SequenceValue):
    """in_sort: whether Python has taken the items out of the list, to sort them."""

    cls: type = list
    in_sort = False

    def __init__(self, items: Sequence[Value], source: Source | None = None):
        self.items, self.source = list(items), source
        self.serial = next_serial()

    def like(self, items: Sequence[Value]) -> Value:
        return ListValue(items)

    def touch(self, cx: Context) -> None:
        if self.in_sort:
            raise unsupported("would-raise", f"{self.describe()} is changed while it is sorted")
        cx.effects.touch(self)

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        index = index_of(cx, key)
        if isinstance(index, slice):
            new = value.elements(cx)
            if index.step not in (None, 1) and len(new) != len(self.items[index]):
                raise unsupported("would-raise", "sizes of an extended slice differ")
            self.touch(cx)
            self.items[index] = new
            return
        if not -len(self.items) <= index < len(self.items):
            raise unsupported("would-raise", "list assignment index out of range")
        self.touch(cx)
        self.items[index] = value

    def del_item(self, cx: Context, key: Value) -> None:
        index = index_of(cx, key)
        if not isinstance(index, slice) and not -len(self.items) <= index < len(self.items):
            raise unsupported("would-raise", "list assignment index out of range")
        self.touch(cx)
        del self.items[index]

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "copy" and not args:
            return ListValue(self.items)
        row = LIST_METHODS.get(name)
        if row is None:
            return super().method(cx, name, args, kwargs)
        self.touch(cx)
        return row(cx, self, args, kwargs)

    def replay_values(self) -> Sequence[Value]:
        return self.items

    def replay(self, out: Writer) -> None:
        for item in self.items:
            out.value(item)
        out.emit("BUILD_LIST", len(self.items))
        out.value(self)
        out.const(None)
        out.const(None)
        out.emit("BUILD_SLICE", 2)
        out.emit("STORE_SUBSCR")

    def rebuild(self, out: Writer) -> None:
        for item in self.items:
            out.value(item)
        out.emit("BUILD_LIST", len(self.items))


def list_append(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (item,) = bind_arguments("append", ["item"], args, kwargs, {})
    self.items.append(item)
    return ConstantValue(None)


def list_extend(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (items,) = bind_arguments("extend", ["items"], args, kwargs, {})
    if isinstance(items, SequenceValue):
        self.items.extend(items.elements(cx))
        return ConstantValue(None)
    iterator = items.iterate(cx)
    items.foretell(cx)
    while (item := iterator.next(cx)) is not None:
        self.items.append(item)
    return ConstantValue(None)


def list_insert(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index, item = bind_arguments("insert", ["index", "item"], args, kwargs, {})
    self.items.insert(index.constant(), item)
    return ConstantValue(None)


def list_pop(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (index,) = bind_arguments("pop", ["index"], args, kwargs, {"index": ConstantValue(-1)})
    at = index.constant()
    if not -len(self.items) <= at < len(self.items):
        raise raises(IndexError, "pop index out of range" if self.items else "pop from empty list")
    item = self.at(cx, at)
    del self.items[at]
    return item


def list_clear(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.clear()
    return ConstantValue(None)


def list_reverse(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.reverse()
    return ConstantValue(None)


def list_remove(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    at = self.method(cx, "index", args, kwargs).constant()
    del self.items[at : at + 1]  # a comparison may have changed the list
    return ConstantValue(None)


def list_sort(cx: Context, self: ListValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The list is empty until it is sorted, and gets what came of it by then where a comparison raises."""
    taken, self.items, self.in_sort = self.elements(cx), [], True
    try:
        sort_values(cx, taken, kwargs)
    finally:
        self.items, self.in_sort = taken, False
    return ConstantValue(None)


LIST_METHODS = {
    "append": list_append,
    "extend": list_extend,
    "insert": list_insert,
    "pop": list_pop,
    "clear": list_clear,
    "reverse": list_reverse,
    "remove": list_remove,
    "sort": list_sort,
}


MOST_ORDERED = 3
"""Numbers that vary, of which entries for each order are few enough; with more of them, an entry is for these numbers."""


def sort_values(cx: Context, values: list[Value], kwargs: dict[str, Value]) -> None:
    """values.sort(), by comparisons as Python makes them."""
    key = kwargs.get("key")
    keys = [v if key is None or isinstance(key, ConstantValue) and key.value is None else key.call(cx, [v], {}) for v in values]
    if "reverse" in kwargs and not issubclass(kwargs["reverse"].pytype(), int):
        raise unsupported("would-raise", f"sorting with reverse={kwargs['reverse'].describe()}")
    reverse = "reverse" in kwargs and kwargs["reverse"].truth(cx)
    try:
        if 0 < sum(k.is_symbol for k in keys) <= MOST_ORDERED:  # an entry serves all numbers that are in this order
            raise NotConstant
        raw = [k.constant() for k in keys]
        ordered_by_user = any(own_method(cx, type(k), "__lt__", "__gt__") for k in raw)
    except NotConstant:
        ordered_by_user = True
    if ordered_by_user:

        def less(a: int, b: int) -> int:
            return -1 if cx.operator("lt", [keys[a], keys[b]]).truth(cx) else 0

        by: Callable[[int], Any] = functools.cmp_to_key(less)
    else:
        by = raw.__getitem__
    order = list(range(len(keys)))
    try:
        order.sort(key=by, reverse=reverse)
    except TypeError as reason:
        if ordered_by_user:
            raise
        raise raises(TypeError, *reason.args) from reason
    finally:
        values[:] = [values[i] for i in order]


class SequenceIterator(IteratorValue):
    """iter() of a list or tuple; sees later changes of the list, as Python's does. holder: the object that has the items."""

    def __init__(self, sequence: SequenceValue, holder: Value | None = None):
        self.sequence, self.index, self.done = sequence, 0, False
        self.holder = sequence if holder is None else holder

    def pytype(self) -> type:
        return type(iter(self.sequence.cls() if self.sequence.cls is list else ()))

    def remaining(self) -> int | None:
        return 0 if self.done else max(len(self.sequence.items) - self.index, 0)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__setstate__" and len(args) == 1 and not self.done:
            self.index = min(max(args[0].constant(), 0), len(self.sequence.items))
            return ConstantValue(None)
        return super().method(cx, name, args, kwargs)

    def next(self, cx: Context) -> Value | None:
        if self.done or self.index >= len(self.sequence.items):
            self.done = True
            return None
        self.index += 1
        return self.sequence.at(cx, self.index - 1)

    def children(self) -> Sequence[Value]:
        return () if self.done else (self.holder,)

    def rebuild(self, out: Writer) -> None:
        made = list if self.pytype() is LIST_ITERATOR else tuple
        if self.done:
            ended(out, made)
            return
        out.callee(made.__iter__)
        out.value(self.holder)
        out.call(1)
        if self.index > len(self.sequence.items):
            raise unsupported("rebuild", "an iterator over a list that has shrunk")
        if self.index:
            out.call_method_on_top("__setstate__", self.index)


LIST_ITERATOR: type = type(iter([]))


def ended(out: Writer, cls: Callable, begin: Callable = iter) -> None:
    """Pushes an iterator over an empty container that was asked for more."""
    out.callee(stepped)
    out.callee(begin)
    out.callee(cls)
    out.call(0)
    out.call(1)
    out.const(1)
    out.call(2)


class ReversedIterator(IteratorValue):
    """reversed() of a list, which sees later changes of it, or of a tuple, text or range. index: of the next item, -1 at the end."""

    def __init__(self, sequence: Value, size: int, holder: Value | None = None):
        self.sequence, self.index, self.done = sequence, size - 1, False
        self.holder = sequence if holder is None else holder

    def pytype(self) -> type:
        return type(reversed([] if isinstance(self.sequence, ListValue) else ()))

    def remaining(self) -> int | None:
        return 0 if self.done or self.index >= self.size() else self.index + 1

    def size(self) -> int:
        return len(self.sequence.items if isinstance(self.sequence, SequenceValue) else self.sequence.constant())

    def next(self, cx: Context) -> Value | None:
        if self.done or not 0 <= self.index < self.size():
            self.done = True
            return None
        self.index -= 1
        at = self.index + 1
        return self.sequence.at(cx, at) if isinstance(self.sequence, SequenceValue) else self.sequence.get_item(cx, ConstantValue(at))

    def children(self) -> Sequence[Value]:
        return () if self.done else (self.holder,)

    def rebuild(self, out: Writer) -> None:
        begin = list.__reversed__ if isinstance(self.sequence, ListValue) else reversed
        if self.done:
            ended(out, list if isinstance(self.sequence, ListValue) else tuple, begin)
            return
        size = self.size()
        if self.index >= size:
            raise unsupported("rebuild", "a reversed iterator over a list that has shrunk")
        out.callee(begin)
        out.value(self.holder)
        out.call(1)
        if self.index != size - 1:
            out.call_method_on_top("__setstate__", self.index)


def index_of(cx: Context, key: Value) -> int | slice:
    """A subscript of a list or tuple."""
    try:
        own = cx.class_attribute(key, "__index__") if key.source is None and not isinstance(key, (ConstantValue, SliceValue)) else None
        if isinstance(own, Value):
            key = own.call(cx, [], {})
        if isinstance(key, (ConstantValue, SliceValue)) or key.pytype() is int:
            index = key.constant()
            if isinstance(index, slice):
                try:
                    index.indices(0)
                except (TypeError, ValueError) as reason:
                    raise raises(type(reason), *reason.args) from reason
            if isinstance(index, np.integer):
                return int(index)
            if isinstance(index, (int, slice)):
                return index
    except NotConstant as reason:
        raise unsupported("unknown-operation", f"indexing a sequence by {key.describe()}") from reason
    raise unsupported("unknown-operation", f"indexing a sequence by {key.describe()}")


def make_tuple(cls: type, items: list[Any]) -> Any:
    return cls(*items) if hasattr(cls, "_fields") else cls(items)


OF_TUPLES = "__getitem__ __iter__ __len__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __add__ __mul__ __rmul__ __getattribute__".split()


def reads_as_tuple(cls: type) -> bool:
    """Whether a class of tuples leaves to tuple what its objects are read by."""
    return all(getattr(cls, name) is getattr(tuple, name) for name in OF_TUPLES) and not hasattr(cls, "__bool__")


def is_structseq(cls: type) -> bool:
    """Whether a class is a tuple with named elements that C makes, all of which are elements of the tuple, such as torch.return_types.max."""
    fields = [cls.__dict__.get(name) for name in ("n_fields", "n_sequence_fields", "n_unnamed_fields")]
    return cls.__bases__ == (tuple,) and None not in fields and fields[0] == fields[1] and reads_as_tuple(cls)


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and cls.__new__ is not tuple.__new__ and reads_as_tuple(cls)


def wrap_namedtuple(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return TupleValue([Lazy(cx, item, Item(source, i)) for i, item in enumerate(tuple.__iter__(real))], type(real), source)


@wraps(torch.Size)
def wrap_size(cx: Context, real: torch.Size, source: Source) -> Value:
    """One that exists before the frame: a constant, unless some of its numbers vary."""
    numbers = [cx.symbolic_number(n, Item(source, place)) for place, n in enumerate(real)]
    if all(n is None for n in numbers):
        cx.guard("EQUALS", source, real)
        return ConstantValue(real, source)
    cx.guard("TYPE", source, torch.Size)
    cx.guard("LENGTH", source, len(real))
    return TupleValue([cx.wrap(n, Item(source, place)) for place, n in enumerate(real)], torch.Size)
