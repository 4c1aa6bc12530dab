"""Lists, deques and tuples that exist before the frame, and of which less may be read than all.

Where the length of a list or deque has varied, the entry takes it as a number: `len(history) % 10 == 0`, `if history:`, `history[-1]` and `history[-2:]`
rely on no more of it than they ask for.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import Lazy, Value, wraps
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue, index_of
from dynacompile.ir.source import Applied, Attr, Item, Length, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Given(ListValue):
    """read: its items, once all are read, and with them its length. parts: those that were read alone, by their place from the begin, or, where that is
    negative, from the end. added: what the frame has appended to it, or extended it by; what does no more reads nothing."""

    source: Source

    def begin(self, cx: Context, real: Sequence, source: Source) -> None:
        self.cx, self.real, self.source = cx, real, source
        self.read: list[Value] | None = None
        self.parts: dict[int, Value] = {}
        self.added: list[Value] = []

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self.read is None:
            self.cx.guard("LENGTH", self.source, len(self.real))
            items: list[Value] = [Lazy(self.cx, item, Item(self.source, i)) for i, item in enumerate(self.real)]
            for place, part in self.parts.items():
                items[place] = part
            self.read = self.within(items + self.added)
        return self.read

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.read = items

    def within(self, items: list[Value]) -> list[Value]:
        """Those that it keeps."""
        return items

    def is_counted(self) -> bool:
        """Whether its length is a number of each call."""
        return self.read is None and self.cx.policy is not None and Length(self.source) in self.cx.policy.numbers

    def before(self) -> Value:
        """Its length before the frame."""
        return self.cx.wrap(len(self.real), Length(self.source))

    def counted(self, cx: Context) -> Value:
        if not self.is_counted():
            return super().counted(cx)
        return cx.operator("add", [self.before(), ConstantValue(len(self.added))]) if self.added else self.before()

    def truth(self, cx: Context) -> bool:
        return self.counted(cx).truth(cx) if self.is_counted() else super().truth(cx)

    def get_item(self, cx: Context, key: Value) -> Value:
        found = self.part(cx, key) if self.is_counted() else None
        return super().get_item(cx, key) if found is None else found

    def part(self, cx: Context, key: Value) -> Value | None:
        """What a subscript gives that begins at one of the ends; None where all has to be read."""
        if not isinstance(key, (ConstantValue, SliceValue)):
            return None
        index = index_of(cx, key)
        if isinstance(index, slice):
            first, last = index.start or 0, index.stop
            if index.step not in (None, 1) or type(first) is not int or not (last is None or type(last) is int):
                return None
            places = range(first, 0) if first < 0 and last is None else range(last) if first == 0 and last is not None and last >= 0 else None
            if places is None or not all(self.has(cx, place) for place in (places[:1] if first < 0 else places[-1:])):
                return None
            held = [self.holder_of(place) for place in places]
            return self.like([holder[key_in_it] for holder, key_in_it in held])
        if not self.has(cx, index):
            return None
        holder, key_in_it = self.holder_of(index)
        item = holder[key_in_it]
        if isinstance(item, Lazy):
            item = holder[key_in_it] = item.force()
        return item

    def has(self, cx: Context, place: int) -> bool:
        """Whether there is an item at a place which the frame has not appended, or at one from the end."""
        needed = place + 1 if place >= 0 else -place - len(self.added)
        return needed <= 0 or needed <= len(self.real) and cx.operator("ge", [self.before(), ConstantValue(needed)]).truth(cx)

    def holder_of(self, index: int) -> tuple[dict[int, Value] | list[Value], int]:
        """What holds the item of a subscript, and under which key."""
        if -len(self.added) <= index < 0:
            return self.added, index
        place = index if index >= 0 else index + len(self.added)
        if place not in self.parts:
            source = Item(self.source, place) if place >= 0 else Applied(self.source, from_end(place), f"[{place}]")
            self.parts[place] = Lazy(self.cx, self.real[place], source)
        return self.parts, place

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__len__" and not args and not kwargs:
            return self.counted(cx)
        if name not in ("append", "extend") or len(args) != 1 or kwargs or self.read is not None:
            return super().method(cx, name, args, kwargs)
        if name == "append":
            added = args
        elif isinstance(args[0], SequenceValue) and args[0] is not self:
            added = args[0].elements(cx)
        else:  # another iterator may look at the list while it is extended
            return super().method(cx, name, args, kwargs)
        cx.effects.touch(self)
        self.added += added
        return ConstantValue(None)

    def replay_values(self) -> Sequence[Value]:
        return self.added if self.read is None else self.read

    def replay(self, out: Writer) -> None:
        if self.read is not None:
            super().replay(out)
            return
        for item in self.added:
            out.value(self)
            out.load_method("append")
            out.value(item)
            out.call(1)
            out.emit("POP_TOP")


@functools.cache
def from_end(place: int) -> Callable[[Any], Any]:
    """What gives the item at a negative place."""
    return operator.itemgetter(place)


class GivenList(Given):
    """A list that exists before the frame."""

    def __init__(self, cx: Context, real: list, source: Source):
        self.begin(cx, real, source)


class GivenDeque(Given, DequeValue):
    """A deque that exists before the frame."""

    def __init__(self, cx: Context, real: collections.deque, source: Source):
        self.begin(cx, real, source)
        self.maxlen, self.changes = real.maxlen, 0

    def within(self, items: list[Value]) -> list[Value]:
        return items if self.maxlen is None else items[max(0, len(items) - self.maxlen) :]

    def counted(self, cx: Context) -> Value:
        total = super().counted(cx)
        is_full = bool(self.added) and self.read is None and self.maxlen is not None and cx.operator("gt", [total, ConstantValue(self.maxlen)]).truth(cx)
        return ConstantValue(self.maxlen) if is_full else total

    def part(self, cx: Context, key: Value) -> Value | None:
        self.refuse_slice(key)
        if self.maxlen is None or not self.added:
            return super().part(cx, key)
        index = index_of(cx, key) if isinstance(key, ConstantValue) else 0  # what is added may push out what was there
        return super().part(cx, key) if isinstance(index, int) and -self.maxlen <= index < 0 else None

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        before = len(self.added)
        found = super().method(cx, name, args, kwargs)
        self.changes += self.read is None and len(self.added) - before
        return found


class GivenTuple(TupleValue):
    """A tuple that exists before the frame. Its length is read with the first item; who asks for its class, or passes it on, reads neither."""

    def __init__(self, cx: Context, real: tuple, source: Source):
        self.cx, self.real, self.cls, self.source = cx, real, tuple, source
        self.read: list[Value] | None = None

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self.read is None:
            self.cx.guard("LENGTH", self.source, len(self.real))
            self.read = [Lazy(self.cx, item, Item(self.source, i)) for i, item in enumerate(self.real)]  # type: ignore[arg-type]
        return self.read


@wraps(list)
def wrap_list(cx: Context, real: list, source: Source) -> Value:
    cx.guard("TYPE", source, list)
    return GivenList(cx, real, source)


@wraps(collections.deque)
def wrap_deque(cx: Context, real: collections.deque, source: Source) -> Value:
    cx.guard("TYPE", source, collections.deque)
    cx.guard("EQUALS", Attr(source, "maxlen"), real.maxlen)
    return GivenDeque(cx, real, source)


@wraps(tuple)
def wrap_tuple(cx: Context, real: tuple, source: Source) -> Value:
    cx.guard("TYPE", source, tuple)
    return GivenTuple(cx, real, source)
