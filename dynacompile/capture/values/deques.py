"""collections.deque."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, SequenceIterator, SequenceValue, TupleValue
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

READS = ("index", "count", "__len__", "__getitem__", "__contains__", "__iter__")  # shared with list
CHANGES = ("clear", "reverse")


class DequeValue(ListValue):
    """A deque; when it is full, what is added at one end pushes out an item at the other."""

    cls = collections.deque

    def __init__(self, items: Sequence[Value], maxlen: int | None, source: Source | None = None):
        super().__init__([], source)
        self.maxlen = maxlen
        self.changes = 0  # as CPython counts them: assigning an item is none
        for item in items:
            self.add(item, False)

    def add(self, item: Value, left: bool) -> None:
        self.changes += 1
        self.items.insert(0 if left else len(self.items), item)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[-1 if left else 0]

    def get_item(self, cx: Context, key: Value) -> Value:
        self.refuse_slice(key)
        return super().get_item(cx, key)

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        self.refuse_slice(key)
        super().set_item(cx, key, value)

    def del_item(self, cx: Context, key: Value) -> None:
        self.refuse_slice(key)
        super().del_item(cx, key)
        self.changes += 1

    def refuse_slice(self, key: Value) -> None:
        if isinstance(key, SliceValue):
            raise raises(TypeError, "sequence index must be integer, not 'slice'")

    def get_attr(self, cx: Context, name: str) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().get_attr(cx, name)

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant("deque")

    def like(self, items: Sequence[Value]) -> Value:
        return DequeValue(items, self.maxlen)

    def iterate(self, cx: Context) -> IteratorValue:
        return DequeIterator(self)

    def now(self, cx: Context) -> Iterator[Value]:
        before = self.changes
        for element in super().now(cx):
            yield element
            if self.changes != before:
                raise raises(RuntimeError, "deque mutated during iteration")

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "copy" and not args:
            return DequeValue(self.items, self.maxlen)
        if name in READS:
            return super().method(cx, name, args, kwargs)
        if name == "__reversed__":
            return ReversedDeque(self)
        row = DEQUE_METHODS.get(name)
        if kwargs or row is None and name not in CHANGES:
            raise unsupported("unknown-operation", f"deque.{name}()")
        cx.effects.touch(self)
        self.changes += 1
        return super().method(cx, name, args, kwargs) if row is None else row(cx, self, args)

    def replay(self, out: Writer) -> None:
        """Fills the real deque anew."""
        for name in ("clear", "extend"):
            out.value(self)
            out.load_method(name)
            if name == "extend":
                out.tuple_of(self.items)
            out.call(int(name == "extend"))
            out.emit("POP_TOP")

    def rebuild(self, out: Writer) -> None:
        out.callee(collections.deque)
        super().rebuild(out)
        out.const(self.maxlen)
        out.call(2)


class DequeIterator(SequenceIterator):
    """iter() of a deque, which minds changes of it."""

    def __init__(self, sequence: DequeValue):
        super().__init__(sequence)
        self.before = sequence.changes

    def pytype(self) -> type:
        return type(iter(collections.deque()))

    def next(self, cx: Context) -> Value | None:
        if not self.done and self.sequence.changes != self.before:  # type: ignore[attr-defined]
            raise raises(RuntimeError, "deque mutated during iteration")
        return super().next(cx)

    def rebuild(self, out: Writer) -> None:
        raise unsupported("rebuild", "an iterator over a deque")


class ReversedDeque(DequeIterator):
    """reversed() of a deque."""

    def pytype(self) -> type:
        return type(reversed(collections.deque()))

    def next(self, cx: Context) -> Value | None:
        item = super().next(cx)
        return None if item is None else self.sequence.at(cx, -self.index)


def deque_append(cx: Context, self: DequeValue, args: list[Value]) -> Value:
    (item,) = args
    self.add(item, False)
    return ConstantValue(None)


def deque_appendleft(cx: Context, self: DequeValue, args: list[Value]) -> Value:
    (item,) = args
    self.add(item, True)
    return ConstantValue(None)


def extended(left: bool) -> Any:
    def row(cx: Context, self: DequeValue, args: list[Value]) -> Value:
        for item in self.elements(cx) if args[0] is self else args[0].each(cx):
            self.changes += 1
            self.add(item, left)
        return ConstantValue(None)

    return row


def popped(index: int) -> Any:
    def row(cx: Context, self: DequeValue, args: list[Value]) -> Value:
        if not self.items:
            raise raises(IndexError, "pop from an empty deque")
        item = self.at(cx, index)
        del self.items[index]
        return item

    return row


def deque_rotate(cx: Context, self: DequeValue, args: list[Value]) -> Value:
    by = (args[0].constant() if args else 1) % max(len(self.items), 1)
    self.items = self.items[-by:] + self.items[:-by] if by else self.items
    return ConstantValue(None)


def deque_insert(cx: Context, self: DequeValue, args: list[Value]) -> Value:
    index, item = args
    if not isinstance(index.constant(), int):
        raise unsupported("would-raise", f"inserting at {index.describe()}")
    if self.maxlen is not None and len(self.items) >= self.maxlen:
        raise raises(IndexError, "deque already at its maximum size")
    self.items.insert(index.constant(), item)
    return ConstantValue(None)


def deque_remove(cx: Context, self: DequeValue, args: list[Value]) -> Value:
    before = self.changes
    for at, own in enumerate(SequenceValue.now(self, cx)):
        found = cx.matches(own, args[0])
        if self.changes != before:
            raise raises(IndexError, "deque mutated during remove().")
        if found:
            del self.items[at]
            return ConstantValue(None)
    raise unsupported("would-raise", "the value is not in the deque")


DEQUE_METHODS = {
    "append": deque_append,
    "appendleft": deque_appendleft,
    "extend": extended(False),
    "extendleft": extended(True),
    "pop": popped(-1),
    "popleft": popped(0),
    "rotate": deque_rotate,
    "insert": deque_insert,
    "remove": deque_remove,
}


@handles(collections.deque)
def row_deque(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, maxlen = bind_arguments("deque", ["iterable", "maxlen"], args, kwargs, {"iterable": TupleValue([]), "maxlen": ConstantValue(None)})
    cx.pure(length_limit, [maxlen], {})
    return DequeValue(iterable.elements(cx), maxlen.constant())


def length_limit(maxlen: Any) -> int | None:
    """Refuses what a deque refuses for its `maxlen`."""
    return collections.deque((), maxlen).maxlen
