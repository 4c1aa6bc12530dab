"""zip, enumerate, map and filter over tracked values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import Raised, raises
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


def shortest(parts: Sequence[IteratorValue]) -> int | None:
    counts = [part.remaining() for part in parts]
    return None if None in counts else min((c for c in counts if c is not None), default=0)


def until_stopped(cx: Context, get: Callable[[], Value | None]) -> Value | None:
    """What an iterator written in C gives, which calls a function of the program: a StopIteration that comes from there ends it."""
    return cx.unless_missing(get, StopIteration)


def differ_in_length(index: int, how: str) -> Raised:
    """What zip(strict=True) raises: the argument at `index` is shorter, or longer, than those before it."""
    return raises(ValueError, f"zip() argument {index + 1} is {how} than argument{' ' if index == 1 else 's 1-'}{index}")


class ZipIterator(IteratorValue):
    def __init__(self, parts: Sequence[IteratorValue], strict: bool = False):
        self.parts, self.strict = tuple(parts), strict

    def pytype(self) -> type:
        return zip

    def remaining(self) -> int | None:
        return shortest(self.parts)

    def next(self, cx: Context) -> Value | None:
        items: list[Value] = []
        for part in self.parts:
            item = part.next(cx)
            if item is None:
                if self.strict and items:
                    raise differ_in_length(len(items), "shorter")
                longer = next((i for i, other in enumerate(self.parts[1:], 1) if other.next(cx) is not None), None) if self.strict else None
                if longer is not None:
                    raise differ_in_length(longer, "longer")
                return None
            items.append(item)
        return TupleValue(items) if items else None

    def children(self) -> Sequence[Value]:
        return self.parts

    def rebuild(self, out: Writer) -> None:
        out.call_function(zip_strictly if self.strict else zip, self.parts)


def zip_strictly(*parts: Iterable) -> Iterator:
    return zip(*parts, strict=True)


class EnumerateIterator(IteratorValue):
    """count: the number of the next item."""

    def __init__(self, inner: IteratorValue, count: Value):
        self.inner, self.count = inner, count

    def pytype(self) -> type:
        return enumerate

    def remaining(self) -> int | None:
        return self.inner.remaining()

    def next(self, cx: Context) -> Value | None:
        item = self.inner.next(cx)
        if item is None:
            return None
        count = self.count = cx.force(self.count)
        self.count = cx.operator("add", [count, ConstantValue(1)])
        return TupleValue([count, item])

    def children(self) -> Sequence[Value]:
        return (self.inner, self.count)

    def rebuild(self, out: Writer) -> None:
        out.callee(enumerate)
        out.value(self.inner)
        out.value(self.count)
        out.call(2)


class MapIterator(IteratorValue):
    def __init__(self, function: Value, parts: Sequence[IteratorValue]):
        self.function, self.parts = function, tuple(parts)

    def pytype(self) -> type:
        return map

    def next(self, cx: Context) -> Value | None:
        items = []
        for part in self.parts:
            item = part.next(cx)
            if item is None:
                return None
            items.append(item)
        return until_stopped(cx, lambda: self.function.call(cx, items, {}))

    def children(self) -> Sequence[Value]:
        return (self.function, *self.parts)

    def rebuild(self, out: Writer) -> None:
        out.callee(map)
        out.value(self.function)
        for part in self.parts:
            out.value(part)
        out.call(1 + len(self.parts))


class FilterIterator(IteratorValue):
    def __init__(self, function: Value, inner: IteratorValue):
        self.function, self.inner = function, inner

    def pytype(self) -> type:
        return filter

    def next(self, cx: Context) -> Value | None:
        return until_stopped(cx, lambda: self.first_kept(cx))

    def first_kept(self, cx: Context) -> Value | None:
        while (item := self.inner.next(cx)) is not None:
            kept = item if is_none(self.function) else self.function.call(cx, [item], {})
            if kept.truth(cx):
                return item
        return None

    def children(self) -> Sequence[Value]:
        return (self.function, self.inner)

    def rebuild(self, out: Writer) -> None:
        out.call_function(filter, [self.function, self.inner])
