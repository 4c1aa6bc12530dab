"""Rows for itertools and the callables of operator: lazy, one value at a time, as Python's."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import IteratorValue, Value, bind_arguments, stepped
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.iterators import until_stopped
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

NONE = ConstantValue(None)


class LazyIterator(IteratorValue):
    """An iterator whose values a generator yields. ended: it has; is_broken: it was left by what a function of the program raised, after which Python's own
    iterator goes on."""

    def __init__(self, cls: type, values: Iterator[Value]):
        self.cls, self.values = cls, values
        self.ended = self.is_broken = False

    def pytype(self) -> type:
        return self.cls

    def next(self, cx: Context) -> Value | None:
        if self.is_broken:
            raise unsupported("unknown-operation", f"{self.cls.__name__}() after what it calls has raised")
        self.is_broken = not self.ended
        found = until_stopped(cx, self.following)
        self.is_broken = found is None and not self.ended
        return found

    def following(self) -> Value | None:
        found = next(self.values, None)
        self.ended = found is None
        return found


HANDED_ON = 10_000  # items of an iterator that a frame may take with it behind a break, as a tuple


class PoolIterator(IteratorValue):
    """An iterator of itertools over what is given beforehand: product, repeat, permutations. pools: what is iterated; rest: further arguments."""

    def __init__(self, cx: Context, cls: Any, pools: list[Value], rest: Sequence[Value] = ()):
        self.cls, self.args = cls, [*pools, *rest]
        given = [p if cls is itertools.repeat else p.elements(cx) for p in pools]
        try:
            self.make = functools.partial(cls, *given, *(value.constant() for value in rest))
        except NotConstant as reason:
            raise unsupported("unknown-operation", f"itertools.{cls.__name__}() with {rest[0].describe()}") from reason
        self.values = cx.guarded_call(self.make, [], {})
        self.index = 0

    def pytype(self) -> type:
        return self.cls

    def remaining(self) -> int | None:
        return self.values.__length_hint__() if self.cls is itertools.repeat and len(self.args) > 1 else None

    def next(self, cx: Context) -> Value | None:
        self.index += 1
        return next(map(self.tracked, self.values), None)

    def tracked(self, found: Any) -> Value:
        return found if isinstance(found, Value) else TupleValue(found)

    def all(self) -> list[Value] | None:
        """All that it gives from its beginning; None where that is more than HANDED_ON items, or has no end."""
        found = [self.tracked(given) for given in itertools.islice(self.make(), HANDED_ON + 1)]
        return None if len(found) > HANDED_ON else found

    def children(self) -> Sequence[Value]:
        return self.args

    def rebuild(self, out: Writer) -> None:
        out.callee(stepped)
        out.call_function(self.cls, self.args)
        out.const(self.index)
        out.call(2)


ITERATED = frozenset({"iterable", "data", "selectors"})  # parameters of which the iterator asks for an iterator at once


def lazy(cls: Any, parameters: Sequence[str], **defaults: Value) -> Callable:
    """Registers a generator (cx, bound arguments ...) -> values as the row of an iterator class. It is given iterators of what is iterated."""

    def register(make: Callable[..., Iterator[Value]]) -> Callable[..., Iterator[Value]]:
        @handles(cls)
        def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
            bound = bind_arguments(cls.__name__, parameters, args, kwargs, dict(defaults))
            given = [value.iterate(cx) if name in ITERATED else value for name, value in zip(parameters, bound)]
            return LazyIterator(cls, make(cx, *given))

        return make

    return register


def each(cx: Context, iterator: IteratorValue) -> Iterator[Value]:
    while (item := iterator.next(cx)) is not None:
        yield item


@handles(itertools.count)
def row_count(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start, step = bind_arguments("count", ["start", "step"], args, kwargs, {"start": ConstantValue(0), "step": ConstantValue(1)})
    for number in (start, step):
        if not issubclass(number.pytype(), (int, float, complex, torch.Tensor)):
            raise unsupported("would-raise", f"itertools.count() of {number.describe()}")
    return LazyIterator(itertools.count, count(cx, start, step))


def count(cx: Context, start: Value, step: Value) -> Iterator[Value]:
    while True:
        yield start
        start = cx.operator("add", [start, step])


@lazy(itertools.cycle, ("iterable",))
def cycle(cx: Context, iterable: IteratorValue) -> Iterator[Value]:
    seen = []
    for item in each(cx, iterable):
        seen.append(item)
        yield item
    while seen:
        yield from seen


@lazy(itertools.pairwise, ("iterable",))
def pairwise(cx: Context, iterable: IteratorValue) -> Iterator[Value]:
    before = None
    for item in each(cx, iterable):
        if before is not None:
            yield TupleValue([before, item])
        before = item


@lazy(itertools.accumulate, ("iterable", "func", "initial"), func=NONE, initial=NONE)
def accumulate(cx: Context, iterable: IteratorValue, func: Value, initial: Value) -> Iterator[Value]:
    total = None if is_none(initial) else initial
    if total is not None:
        yield total
    for item in each(cx, iterable):
        if total is None:
            total = item
        else:
            total = cx.operator("add", [total, item]) if is_none(func) else func.call(cx, [total, item], {})
        yield total


@lazy(itertools.takewhile, ("predicate", "iterable"))
def takewhile(cx: Context, predicate: Value, iterable: IteratorValue) -> Iterator[Value]:
    for item in each(cx, iterable):
        if not predicate.call(cx, [item], {}).truth(cx):
            return
        yield item


@lazy(itertools.dropwhile, ("predicate", "iterable"))
def dropwhile(cx: Context, predicate: Value, iterable: IteratorValue) -> Iterator[Value]:
    dropping = True
    for item in each(cx, iterable):
        dropping = dropping and predicate.call(cx, [item], {}).truth(cx)
        if not dropping:
            yield item


@lazy(itertools.filterfalse, ("predicate", "iterable"))
def filterfalse(cx: Context, predicate: Value, iterable: IteratorValue) -> Iterator[Value]:
    for item in each(cx, iterable):
        if not (item if is_none(predicate) else predicate.call(cx, [item], {})).truth(cx):
            yield item


@lazy(itertools.starmap, ("function", "iterable"))
def starmap(cx: Context, function: Value, iterable: IteratorValue) -> Iterator[Value]:
    for item in each(cx, iterable):
        yield function.call(cx, item.elements(cx), {})


@lazy(itertools.compress, ("data", "selectors"))
def compress(cx: Context, data: IteratorValue, selectors: IteratorValue) -> Iterator[Value]:
    for item, chosen in zip(each(cx, data), each(cx, selectors)):
        if chosen.truth(cx):
            yield item


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


@handles(itertools.groupby)
def row_groupby(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, key = bind_arguments("groupby", ["iterable", "key"], args, kwargs, {"key": NONE})
    return GroupbyIterator(iterable.iterate(cx), key)


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


def of_pool(cls: Any, **defaults: Value) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        iterable, r = bind_arguments(cls.__name__, ["iterable", "r"], args, kwargs, dict(defaults))
        return PoolIterator(cx, cls, [TupleValue(iterable.elements(cx))], [r])


of_pool(itertools.combinations)
of_pool(itertools.combinations_with_replacement)
of_pool(itertools.permutations, r=NONE)


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
