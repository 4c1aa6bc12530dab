"""The iterators of itertools, with the state that Python's have: they take items as late, go on after an error, and can be made again in the midst."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import IteratorValue, Value, stepped
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.iterators import until_stopped
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

NONE = ConstantValue(None)


class LazyIterator(IteratorValue):
    """An iterator of class `cls`. A StopIteration of a function of the program that it calls ends it, as it ends those that are written in C."""

    cls: type

    def pytype(self) -> type:
        return self.cls

    def next(self, cx: Context) -> Value | None:
        return until_stopped(cx, lambda: self.following(cx))

    def following(self, cx: Context) -> Value | None:
        raise NotImplementedError(type(self).__name__)

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        """A function and its arguments, which make the iterator in its present state."""
        raise unsupported("rebuild", self.cls.__name__)

    def children(self) -> Sequence[Value]:
        return self.again()[1]

    def rebuild(self, out: Writer) -> None:
        out.call_function(*self.again())


class CountIterator(LazyIterator):
    cls = itertools.count

    def __init__(self, start: Value, step: Value):
        self.number, self.step = start, step

    def following(self, cx: Context) -> Value:
        given = self.number
        self.number = cx.operator("add", [given, self.step])
        return given

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return itertools.count, [self.number, self.step]


class CycleIterator(LazyIterator):
    """seen: the items of the first round; index: of the next item in a later round."""

    cls = itertools.cycle

    def __init__(self, iterable: IteratorValue):
        self.inner, self.seen, self.index = iterable, list[Value](), -1

    def following(self, cx: Context) -> Value | None:
        if self.index < 0:
            item = self.inner.next(cx)
            if item is not None:
                self.seen.append(item)
                return item
            self.index = 0
        if not self.seen:
            return None
        item = self.seen[self.index]
        self.index = (self.index + 1) % len(self.seen)
        return item

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        if self.index < 0:
            return cycle_in_first_round, [self.inner, *self.seen]
        return cycle_in_later_round, [ConstantValue(self.index), *self.seen]


def cycle_in_first_round(rest: Iterator, *seen: Any) -> Iterator:
    return stepped(itertools.cycle(itertools.chain(seen, rest)), len(seen))


def cycle_in_later_round(index: int, *seen: Any) -> Iterator:
    return stepped(itertools.cycle(seen), len(seen) + index)


class PairwiseIterator(LazyIterator):
    """before: the item that the next pair begins with."""

    cls = itertools.pairwise

    def __init__(self, iterable: IteratorValue):
        self.inner: IteratorValue | None = iterable
        self.before: Value | None = None

    def following(self, cx: Context) -> Value | None:
        if self.inner is None:
            return None
        before = self.inner.next(cx) if self.before is None else self.before
        item = None if before is None else self.inner.next(cx)
        if before is None or item is None:
            self.inner = None
            return None
        self.before = item
        return TupleValue([before, item])

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        if self.inner is None:
            return pairs, []
        return pairs, [self.inner] if self.before is None else [self.inner, self.before]


def pairs(rest: Iterable = (), *before: Any) -> Iterator:
    return itertools.pairwise(itertools.chain(before, rest))


class AccumulateIterator(LazyIterator):
    """total: the last value that it gave; initial: which it gives first."""

    cls = itertools.accumulate

    def __init__(self, iterable: IteratorValue, func: Value, initial: Value):
        self.inner, self.func = iterable, func
        self.total: Value | None = None
        self.initial = None if is_none(initial) else initial

    def following(self, cx: Context) -> Value | None:
        if self.initial is not None:
            self.total, self.initial = self.initial, None
            return self.total
        item = self.inner.next(cx)
        if item is None:
            return None
        if self.total is None:
            self.total = item
        elif is_none(self.func):
            self.total = cx.operator("add", [self.total, item])
        else:
            self.total = self.func.call(cx, [self.total, item], {})
        return self.total

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        if self.initial is not None:
            return sums, [ConstantValue(0), self.func, self.inner, self.initial]
        return sums, [ConstantValue(1), self.func, self.inner, self.total] if self.total is not None else [ConstantValue(0), self.func, self.inner]


def sums(given: int, func: Callable | None, rest: Iterator, *first: Any) -> Iterator:
    """first: the initial value, or the total so far. It is no part of what the iterator takes from, which a copy shares."""
    if first and first[0] is None:  # which `initial` takes for none
        return stepped(itertools.accumulate(itertools.chain(first, rest), func), given)
    return stepped(itertools.accumulate(rest, func, initial=first[0] if first else None), given)


class TakewhileIterator(LazyIterator):
    cls = itertools.takewhile

    def __init__(self, predicate: Value, iterable: IteratorValue):
        self.predicate, self.inner, self.ended = predicate, iterable, False

    def following(self, cx: Context) -> Value | None:
        item = None if self.ended else self.inner.next(cx)
        if item is None or self.predicate.call(cx, [item], {}).truth(cx):
            return item
        self.ended = True
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return itertools.takewhile, [self.predicate, ConstantValue(()) if self.ended else self.inner]


class DropwhileIterator(LazyIterator):
    cls = itertools.dropwhile

    def __init__(self, predicate: Value, iterable: IteratorValue):
        self.predicate, self.inner, self.dropping = predicate, iterable, True

    def following(self, cx: Context) -> Value | None:
        while (item := self.inner.next(cx)) is not None:
            self.dropping = self.dropping and self.predicate.call(cx, [item], {}).truth(cx)
            if not self.dropping:
                return item
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return (itertools.dropwhile, [self.predicate, self.inner]) if self.dropping else (dropped, [self.inner])


def dropped(rest: Iterator) -> Iterator:
    return itertools.dropwhile(never, rest)


def never(item: object) -> bool:
    return False


class FilterfalseIterator(LazyIterator):
    cls = itertools.filterfalse

    def __init__(self, predicate: Value, iterable: IteratorValue):
        self.predicate, self.inner = predicate, iterable

    def following(self, cx: Context) -> Value | None:
        while (item := self.inner.next(cx)) is not None:
            if not (item if is_none(self.predicate) else self.predicate.call(cx, [item], {})).truth(cx):
                return item
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return itertools.filterfalse, [self.predicate, self.inner]


class StarmapIterator(LazyIterator):
    cls = itertools.starmap

    def __init__(self, function: Value, iterable: IteratorValue):
        self.function, self.inner = function, iterable

    def following(self, cx: Context) -> Value | None:
        item = self.inner.next(cx)
        return None if item is None else self.function.call(cx, item.elements(cx), {})

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return itertools.starmap, [self.function, self.inner]


class CompressIterator(LazyIterator):
    cls = itertools.compress

    def __init__(self, data: IteratorValue, selectors: IteratorValue):
        self.data, self.selectors = data, selectors

    def following(self, cx: Context) -> Value | None:
        while (item := self.data.next(cx)) is not None and (chosen := self.selectors.next(cx)) is not None:
            if chosen.truth(cx):
                return item
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return itertools.compress, [self.data, self.selectors]


class ZipLongestIterator(LazyIterator):
    """parts: None for those that have ended."""

    cls = itertools.zip_longest

    def __init__(self, parts: Sequence[IteratorValue], fill: Value):
        self.parts: list[IteratorValue | None] = list(parts)
        self.fill = fill

    def following(self, cx: Context) -> Value | None:
        items = []
        for i, part in enumerate(self.parts):
            item = None if part is None else part.next(cx)
            if item is None:
                self.parts[i] = None
                if not any(self.parts):
                    return None
            items.append(self.fill if item is None else item)
        return TupleValue(items) if items else None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return filled, [self.fill, *(ConstantValue(()) if part is None else part for part in self.parts)]


def filled(fill: Any, *parts: Iterable) -> Iterator:
    return itertools.zip_longest(*parts, fillvalue=fill)


class ChainIterator(LazyIterator):
    """itertools.chain; what it goes through is asked for, and iterated, when its turn comes."""

    cls = itertools.chain

    def __init__(self, parts: IteratorValue):
        self.parts: IteratorValue | None = parts
        self.current: IteratorValue | None = None

    def next(self, cx: Context) -> Value | None:
        while self.parts is not None:
            if self.current is None:
                part = self.parts.next(cx)
                if part is None:
                    self.parts = None
                    break
                self.current = part.iterate(cx)
            item = self.current.next(cx)
            if item is not None:
                return item
            self.current = None
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        if self.parts is None:
            return itertools.chain, []
        return chained, [self.parts] if self.current is None else [self.parts, self.current]


def chained(rest: Iterator, *current: Iterator) -> Iterator:
    return itertools.chain.from_iterable(itertools.chain(current, rest) if current else rest)


class IsliceIterator(LazyIterator):
    """at: how many items were taken; wanted: the number of the next one that it gives."""

    cls = itertools.islice

    def __init__(self, inner: IteratorValue, start: int, stop: int | None, step: int):
        self.inner, self.wanted, self.stop, self.step, self.at = inner, start, stop, step, 0
        self.done = False

    def following(self, cx: Context) -> Value | None:
        """What lies before the next item, or before the end, is taken first, as Python does."""
        while not self.done:
            last = self.stop is not None and self.wanted >= self.stop
            if last and self.at >= self.wanted:
                break
            item = self.inner.next(cx)
            if item is None:
                break
            self.at += 1
            if not last and self.at > self.wanted:
                self.wanted += self.step
                if self.stop is not None:
                    self.wanted = min(self.wanted, self.stop)
                return item
        self.done = True
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        if self.done:
            return itertools.islice, [ConstantValue(()), ConstantValue(0)]
        stop = None if self.stop is None else self.stop - self.at
        return itertools.islice, [self.inner, ConstantValue(self.wanted - self.at), ConstantValue(stop), ConstantValue(self.step)]


class UntilIterator(LazyIterator):
    """iter(function, sentinel)."""

    cls = type(iter(int, 1))

    def __init__(self, function: Value, sentinel: Value):
        self.function, self.sentinel, self.ended = function, sentinel, False

    def following(self, cx: Context) -> Value | None:
        item = None if self.ended else cx.unless_missing(lambda: self.function.call(cx, [], {}), StopIteration)
        if item is not None and not cx.equal(item, self.sentinel):
            return item
        self.ended = True
        return None

    def again(self) -> tuple[Callable[..., Iterator], list[Value]]:
        return (spent, []) if self.ended else (iter, [self.function, self.sentinel])


def spent() -> Iterator:
    return stepped(iter(int, 0), 1)


class TeeIterator(LazyIterator):
    """One of several over the same items. seen: those that any of them has taken."""

    cls: type = type(itertools.tee(())[0])

    def __init__(self, inner: IteratorValue, seen: list[Value]):
        self.inner, self.seen, self.index = inner, seen, 0

    def following(self, cx: Context) -> Value | None:
        if self.index == len(self.seen):
            item = self.inner.next(cx)
            if item is None:
                return None
            self.seen.append(item)
        self.index += 1
        return self.seen[self.index - 1]

    def children(self) -> Sequence[Value]:
        return [self.inner, *self.seen[self.index :]]


class GroupbyIterator(IteratorValue):
    """itertools.groupby. target: the key of the last group that it gave; key, item: of the last item that was taken, which is None once its group gave it."""

    def __init__(self, inner: IteratorValue, function: Value):
        self.inner, self.function = inner, function
        self.target: Value | None = None
        self.key: Value | None = None
        self.item: Value | None = None
        self.group: GroupIterator | None = None

    def pytype(self) -> type:
        return itertools.groupby

    def step(self, cx: Context) -> bool:
        """Takes the next item; False at the end."""
        item = self.inner.next(cx)
        if item is None:
            return False
        key = item if is_none(self.function) else until_stopped(cx, lambda: self.function.call(cx, [item], {}))
        if key is None:
            return False
        self.item, self.key = item, key
        return True

    def next(self, cx: Context) -> Value | None:
        self.group = None
        while self.key is None or self.target is not None and cx.matches(self.target, self.key):
            if not self.step(cx):
                return None
        self.target = self.key
        self.group = GroupIterator(self, self.key)
        return TupleValue([self.key, self.group])

    def children(self) -> Sequence[Value]:
        return [self.inner, self.function] if self.key is None else ()

    def rebuild(self, out: Writer) -> None:
        if self.key is not None:
            raise unsupported("rebuild", "itertools.groupby that has given a group")
        out.call_function(itertools.groupby, [self.inner, self.function])


class GroupIterator(IteratorValue):
    """The items of a group, which end when the next group is asked for."""

    def __init__(self, parent: GroupbyIterator, target: Value):
        self.parent, self.target = parent, target

    def pytype(self) -> type:
        return GROUP

    def next(self, cx: Context) -> Value | None:
        parent = self.parent
        if parent.group is not self or parent.item is None and not parent.step(cx):
            return None
        if parent.key is None or not cx.matches(self.target, parent.key):
            return None
        item, parent.item = parent.item, None
        return item


GROUP = type(next(itertools.groupby([0]))[1])
