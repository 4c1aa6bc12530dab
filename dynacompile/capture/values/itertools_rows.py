"""Rows for itertools and the callables of operator: lazy, one value at a time, as Python's."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import IteratorValue, Value, bind_arguments, stepped
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.lazy_iterators import (
    NONE,
    AccumulateIterator,
    CompressIterator,
    CountIterator,
    CycleIterator,
    DropwhileIterator,
    FilterfalseIterator,
    GroupbyIterator,
    LazyIterator,
    PairwiseIterator,
    StarmapIterator,
    TakewhileIterator,
    TeeIterator,
    ZipLongestIterator,
)
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

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


def lazy(made: type[LazyIterator], parameters: Sequence[str], **defaults: Value) -> None:
    """Registers the row of an iterator class: `made` is given iterators of what is iterated."""

    @handles(made.cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        bound = bind_arguments(made.cls.__name__, parameters, args, kwargs, dict(defaults))
        return made(*(value.iterate(cx) if name in ITERATED else value for name, value in zip(parameters, bound)))


lazy(CycleIterator, ("iterable",))
lazy(PairwiseIterator, ("iterable",))
lazy(AccumulateIterator, ("iterable", "func", "initial"), func=NONE, initial=NONE)
lazy(TakewhileIterator, ("predicate", "iterable"))
lazy(DropwhileIterator, ("predicate", "iterable"))
lazy(FilterfalseIterator, ("predicate", "iterable"))
lazy(StarmapIterator, ("function", "iterable"))
lazy(CompressIterator, ("data", "selectors"))


@handles(itertools.count)
def row_count(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start, step = bind_arguments("count", ["start", "step"], args, kwargs, {"start": ConstantValue(0), "step": ConstantValue(1)})
    for number in (start, step):
        if not issubclass(number.pytype(), (int, float, complex, torch.Tensor)):
            raise unsupported("would-raise", f"itertools.count() of {number.describe()}")
    return CountIterator(start, step)


@handles(itertools.groupby)
def row_groupby(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, key = bind_arguments("groupby", ["iterable", "key"], args, kwargs, {"key": NONE})
    return GroupbyIterator(iterable.iterate(cx), key)


@handles(itertools.zip_longest)
def row_zip_longest(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (fill,) = bind_arguments("zip_longest", ["fillvalue"], [], kwargs, {"fillvalue": NONE})
    return ZipLongestIterator([a.iterate(cx) for a in args], fill)


@handles(itertools.tee)
def row_tee(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, n = bind_arguments("tee", ["iterable", "n"], args, kwargs, {"n": ConstantValue(2)})
    source, seen = iterable.iterate(cx), list[Value]()
    return TupleValue([TeeIterator(source, seen) for _ in range(n.constant())])


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
