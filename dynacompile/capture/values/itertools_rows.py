"""Rows for itertools and the callables of operator: lazy, one value at a time, as Python's."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import IteratorValue, Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.iterators import until_stopped
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceIterator, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

NONE = ConstantValue(None)


class LazyIterator(IteratorValue):
    """An iterator whose values `make` yields."""

    def __init__(self, cls: type, values: Iterator[Value]):
        self.cls, self.values = cls, values

    def pytype(self) -> type:
        return self.cls

    def next(self, cx: Context) -> Value | None:
        return until_stopped(cx, lambda: next(self.values, None))


def lazy(cls: Any, parameters: Sequence[str], **defaults: Value) -> Callable:
    """Registers a generator (cx, bound arguments ...) -> values as the row of an iterator class."""

    def register(make: Callable[..., Iterator[Value]]) -> Callable[..., Iterator[Value]]:
        @handles(cls)
        def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
            return LazyIterator(cls, make(cx, *bind_arguments(cls.__name__, parameters, args, kwargs, dict(defaults))))

        return make

    return register


def each(cx: Context, iterator: IteratorValue) -> Iterator[Value]:
    while (item := iterator.next(cx)) is not None:
        yield item


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


@lazy(itertools.count, ("start", "step"), start=ConstantValue(0), step=ConstantValue(1))
def count(cx: Context, start: Value, step: Value) -> Iterator[Value]:
    if not issubclass(start.pytype(), (int, float, complex, torch.Tensor)):
        raise unsupported("would-raise", f"itertools.count() of {start.describe()}")
    while True:
        yield start
        start = cx.operator("add", [start, step])


@lazy(itertools.cycle, ("iterable",))
def cycle(cx: Context, iterable: Value) -> Iterator[Value]:
    seen = []
    for item in each(cx, iterable.iterate(cx)):
        seen.append(item)
        yield item
    while seen:
        yield from seen


@lazy(itertools.pairwise, ("iterable",))
def pairwise(cx: Context, iterable: Value) -> Iterator[Value]:
    before = None
    for item in each(cx, iterable.iterate(cx)):
        if before is not None:
            yield TupleValue([before, item])
        before = item


@lazy(itertools.accumulate, ("iterable", "func", "initial"), func=NONE, initial=NONE)
def accumulate(cx: Context, iterable: Value, func: Value, initial: Value) -> Iterator[Value]:
    total = None if is_none(initial) else initial
    if total is not None:
        yield total
    for item in each(cx, iterable.iterate(cx)):
        if total is None:
            total = item
        else:
            total = cx.operator("add", [total, item]) if is_none(func) else func.call(cx, [total, item], {})
        yield total


@lazy(itertools.takewhile, ("predicate", "iterable"))
def takewhile(cx: Context, predicate: Value, iterable: Value) -> Iterator[Value]:
    for item in each(cx, iterable.iterate(cx)):
        if not predicate.call(cx, [item], {}).truth(cx):
            return
        yield item


@lazy(itertools.dropwhile, ("predicate", "iterable"))
def dropwhile(cx: Context, predicate: Value, iterable: Value) -> Iterator[Value]:
    dropping = True
    for item in each(cx, iterable.iterate(cx)):
        dropping = dropping and predicate.call(cx, [item], {}).truth(cx)
        if not dropping:
            yield item


@lazy(itertools.filterfalse, ("predicate", "iterable"))
def filterfalse(cx: Context, predicate: Value, iterable: Value) -> Iterator[Value]:
    for item in each(cx, iterable.iterate(cx)):
        if not (item if is_none(predicate) else predicate.call(cx, [item], {})).truth(cx):
            yield item


@lazy(itertools.starmap, ("function", "iterable"))
def starmap(cx: Context, function: Value, iterable: Value) -> Iterator[Value]:
    for item in each(cx, iterable.iterate(cx)):
        yield function.call(cx, item.elements(cx), {})


@lazy(itertools.compress, ("data", "selectors"))
def compress(cx: Context, data: Value, selectors: Value) -> Iterator[Value]:
    for item, chosen in zip(each(cx, data.iterate(cx)), each(cx, selectors.iterate(cx))):
        if chosen.truth(cx):
            yield item


@lazy(itertools.groupby, ("iterable", "key"), key=NONE)
def groupby(cx: Context, iterable: Value, key: Value) -> Iterator[Value]:
    """Groups are read ahead, which no program can tell where the items are given beforehand."""
    items = iterable.iterate(cx)
    if items.remaining() is None:
        raise unsupported("unknown-operation", "itertools.groupby of an iterator")
    group: list[Value] = []
    current: Value | None = None
    for item in each(cx, items):
        found = item if is_none(key) else key.call(cx, [item], {})
        if current is not None and not cx.matches(current, found):
            yield TupleValue([current, SequenceIterator(TupleValue(group))])
            group = []
        if not group:
            current = found
        group.append(item)
    if current is not None:
        yield TupleValue([current, SequenceIterator(TupleValue(group))])


@handles(itertools.zip_longest)
def row_zip_longest(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (fill,) = bind_arguments("zip_longest", ["fillvalue"], [], kwargs, {"fillvalue": NONE})
    return LazyIterator(itertools.zip_longest, zip_longest(cx, [a.iterate(cx) for a in args], fill))


def zip_longest(cx: Context, parts: list[IteratorValue], fill: Value) -> Iterator[Value]:
    ended: set[int] = set()
    while True:
        items = [fill if i in ended else part.next(cx) for i, part in enumerate(parts)]
        ended |= {i for i, item in enumerate(items) if item is None}
        if len(ended) == len(parts):
            return
        yield TupleValue([fill if item is None else item for item in items])


@handles(itertools.tee)
def row_tee(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, n = bind_arguments("tee", ["iterable", "n"], args, kwargs, {"n": ConstantValue(2)})
    source, seen = iterable.iterate(cx), list[Value]()

    def values() -> Iterator[Value]:
        index = 0
        while index < len(seen) or (item := source.next(cx)) is not None:
            if index == len(seen):
                seen.append(item)
            yield seen[index]
            index += 1

    return TupleValue([LazyIterator(TEE, values()) for _ in range(n.constant())])


def until(cx: Context, function: Value, sentinel: Value) -> Iterator[Value]:
    """iter(function, sentinel)."""
    while (item := cx.unless_missing(lambda: function.call(cx, [], {}), StopIteration)) is not None and not cx.equal(item, sentinel):
        yield item


TEE: type = type(itertools.tee(())[0])
UNTIL = type(iter(int, 1))


def of_pool(cls: Any, parameters: Sequence[str], **defaults: Value) -> None:
    @lazy(cls, parameters, **defaults)
    def row(cx: Context, iterable: Value, r: Value) -> Iterator[Value]:
        for chosen in cls(iterable.elements(cx), r.constant()):
            yield TupleValue(chosen)


of_pool(itertools.combinations, ("iterable", "r"))
of_pool(itertools.combinations_with_replacement, ("iterable", "r"))
of_pool(itertools.permutations, ("iterable", "r"), r=NONE)


class GetterValue(CallableValue):
    """operator.itemgetter, attrgetter or methodcaller."""

    def __init__(self, cls: type, args: list[Value], kwargs: dict[str, Value]):
        self.cls, self.args, self.kwargs = cls, args, kwargs

    def pytype(self) -> type:
        return self.cls

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (owner,) = args
        if self.cls is operator.methodcaller:
            return owner.get_attr(cx, self.args[0].constant()).call(cx, self.args[1:], self.kwargs)
        found = [self.get(cx, owner, key) for key in self.args]
        return found[0] if len(found) == 1 else TupleValue(found)

    def get(self, cx: Context, owner: Value, key: Value) -> Value:
        if self.cls is operator.itemgetter:
            return cx.operator("getitem", [owner, key])
        for name in key.constant().split("."):
            owner = owner.get_attr(cx, name)
        return owner

    def children(self) -> Sequence[Value]:
        return [*self.args, *self.kwargs.values()]

    def rebuild(self, out: Writer) -> None:
        out.call_function(self.cls, self.children(), tuple(self.kwargs))


def getter(cls: Any) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return GetterValue(cls, args, kwargs)


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    getter(_cls)
