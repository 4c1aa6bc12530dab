"""Rows for functions that iterate: iter, zip, sum, any, functools.reduce, itertools, ..."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.tensors.number_tensors import extreme_number
from dynacompile.capture.tensors.read_numbers import ReadNumber, computed
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import IteratorValue, Value, bind_arguments
from dynacompile.capture.values.constant import ConstantIterator, ConstantValue, is_none
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.iterators import EnumerateIterator, FilterIterator, MapIterator, ZipIterator
from dynacompile.capture.values.itertools_rows import PoolIterator
from dynacompile.capture.values.lazy_iterators import ChainIterator, IsliceIterator, UntilIterator
from dynacompile.capture.values.mapping import DictLike, DictView
from dynacompile.capture.values.object_parts import ObjectIterator
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, ReversedIterator, SequenceIterator, SequenceValue, TupleValue, sort_values
from dynacompile.capture.values.sets import SetValue
from dynacompile.capture.values.symbolic import symbolic_extreme
from dynacompile.ir.namespaces import MISSING, defines

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


try:
    iter(0, 0)  # type: ignore[call-overload]
except TypeError as error:
    NOT_CALLABLE = str(error)  # CPython 3.11 and 3.12 have texts of their own


@handles(iter)
def row_iter(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2:
        if cx.lookup(args[0].pytype(), "__call__") is MISSING:
            raise raises(TypeError, NOT_CALLABLE)
        return UntilIterator(*args)
    made = args[0].iterate(cx)
    return made.owner if isinstance(made, ObjectIterator) else made  # type: ignore[return-value]  # the program has the object itself


@handles(next)
def row_next(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], ObjectValue) and len(args) == 1:
        return args[0].method(cx, "__next__", [], {})
    if isinstance(args[0], ObjectValue):
        args[0] = ObjectIterator(args[0])
    if not isinstance(args[0], IteratorValue):
        raise unsupported("unknown-object", f"next({args[0].describe()})")
    cx.effects.move(args[0])
    item = args[0].next(cx)
    if item is None:
        if len(args) == 2:
            return args[1]
        raise args[0].stopped()
    return item


@handles(enumerate)
def row_enumerate(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, start = bind_arguments("enumerate", ["iterable", "start"], args, kwargs, {"start": ConstantValue(0)})
    if not issubclass(start.pytype(), int):
        raise unsupported("would-raise", f"enumerate() from {start.describe()}")
    return EnumerateIterator(iterable.iterate(cx), start)


@handles(zip)
def row_zip(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ZipIterator([a.iterate(cx) for a in args], "strict" in kwargs and kwargs["strict"].truth(cx))


@handles(map)
def row_map(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MapIterator(args[0], [a.iterate(cx) for a in args[1:]])


@handles(filter)
def row_filter(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return FilterIterator(args[0], args[1].iterate(cx))


@handles(reversed)
def row_reversed(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if isinstance(value, IteratorValue):
        raise unsupported("would-raise", "an iterator is not reversible")
    if isinstance(value, ObjectValue):
        return value.method(cx, "__reversed__", [], {})
    if isinstance(value, TensorValue) and type(value) is not TensorValue:
        raise unsupported("unknown-operation", f"reversed({value.describe()})")
    if isinstance(value, ConstantValue) and isinstance(value.value, range):
        return ConstantIterator(value.value[::-1])
    if isinstance(value, DequeValue) or type(value) is DictView or isinstance(value, DictLike):
        return value.method(cx, "__reversed__", [], {})
    if isinstance(value, SequenceValue) or isinstance(value, ConstantValue) and isinstance(value.value, (str, bytes, tuple)):
        return ReversedIterator(value, value.length(cx))
    if not any(defines(value.pytype(), name) for name in ("__reversed__", "__getitem__")):
        raise unsupported("would-raise", f"reversed({value.describe()})")
    return SequenceIterator(TupleValue(value.elements(cx)[::-1]))


@handles(len)
def row_len(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = bind_arguments("len", ["obj"], args, kwargs, {})
    if type(value) is TensorValue and value.fake.dim():
        return value.method(cx, "__len__", [], {})
    return value.counted(cx)


@handles(operator.length_hint)
def row_length_hint(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value, default) = bind_arguments("length_hint", ["obj", "default"], args, kwargs, {"default": ConstantValue(0)})
    if not isinstance(value, IteratorValue) or not issubclass(default.pytype(), int):
        return cx.fold(operator.length_hint, [value, default], {})
    left = value.remaining() if defines(value.pytype(), "__length_hint__") else None
    if left is None and defines(value.pytype(), "__length_hint__"):
        raise unsupported("unknown-operation", f"length_hint({value.describe()})")
    return default if left is None else ConstantValue(left)


@handles(sorted)
def row_sorted(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    unordered = isinstance(value, SetValue) and not kwargs and all(isinstance(key, (int, str, bytes)) for key in value.content)
    values = list(value.content.values() if unordered else value.listed(cx))  # type: ignore[attr-defined]
    sort_values(cx, values, kwargs)
    return ListValue(values)


@handles(sum)
def row_sum(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values, start = bind_arguments("sum", ["iterable", "start"], args, kwargs, {"start": ConstantValue(0)})
    if issubclass(start.pytype(), (str, bytes, bytearray)):
        raise unsupported("would-raise", f"sum() from {start.describe()}")
    items = values.elements(cx)
    if all(isinstance(v, ConstantValue) for v in (start, *items)):  # Python 3.12 adds floats with a smaller error than one by one
        return cx.pure(sum, [ConstantValue([v.constant() for v in items]), start], {})
    for item in items:
        start = cx.operator("add", [start, item])
    return start


@handles(math.prod)
def row_prod(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values, start = args[0], kwargs.get("start", ConstantValue(1))
    for item in values.elements(cx):
        start = cx.operator("mul", [start, item])
    return start


def extremum(real: Any, name: str) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1 and "default" in kwargs:
            raise unsupported("would-raise", f"{real.__name__}() of several values with a default")
        source = TupleValue(args) if len(args) > 1 else args[0]
        key = kwargs.get("key", ConstantValue(None))
        rest = source.each(cx)
        values: list[Value] = []
        for value in rest if is_none(key) else ():
            values.append(value)
            if isinstance(value, ObjectValue):  # which code of the program may compare, before another one is taken
                break
        found = symbolic_extreme(cx, real, values)
        if found is None:
            found = extreme_number(cx, name, values)
        if found is None and any(isinstance(v, ReadNumber) for v in values):
            found = computed(cx, real, values)
        if found is not None:
            return found
        best: tuple[Value, Value] | None = None
        for value in itertools.chain(values, rest):
            candidate = (value if is_none(key) else key.call(cx, [value], {}), value)
            if best is None or cx.operator(name, [candidate[0], best[0]]).truth(cx):
                best = candidate
        if best is not None:
            return best[1]
        if "default" in kwargs:
            return kwargs["default"]
        raise unsupported("would-raise", f"{real.__name__}() of an empty sequence")


extremum(max, "gt")
extremum(min, "lt")


@handles(any)
def row_any(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].iterate(cx).meets(cx, True))


@handles(all)
def row_all(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(not args[0].iterate(cx).meets(cx, False))


@handles(functools.reduce)
def row_reduce(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterator = args[1].iterate(cx)
    total = args[2] if len(args) > 2 else iterator.next(cx)
    if total is None:
        raise unsupported("would-raise", "reduce() of empty iterable with no initial value")
    while (item := iterator.next(cx)) is not None:
        total = args[0].call(cx, [total, item], {})
    return total


@handles(itertools.chain)
def row_chain(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ChainIterator(TupleValue(args).iterate(cx))


@handles(itertools.chain.from_iterable)
def row_chain_from(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ChainIterator(args[0].iterate(cx))


@handles(itertools.islice)
def row_islice(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = [a.constant() for a in args[1:]]
    try:
        itertools.islice((), *bounds)
    except ValueError as error:
        raise raises(ValueError, *error.args) from None
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (bounds[0] or 0, bounds[1], bounds[2] if len(bounds) > 2 and bounds[2] else 1)
    return IsliceIterator(args[0].iterate(cx), start, stop, step)


@handles(itertools.product)
def row_product(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (repeat,) = bind_arguments("product", ["repeat"], [], kwargs, {"repeat": ConstantValue(1)})
    pools = [TupleValue(a.elements(cx)) for a in args]
    cx.pure(refuse_repeat, [repeat], {})
    return PoolIterator(cx, itertools.product, pools * repeat.constant())


def refuse_repeat(repeat: Any) -> None:
    itertools.product(repeat=repeat)


@handles(itertools.repeat)
def row_repeat(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, *times = bind_arguments("repeat", ["object", "times"][: len(args) + len(kwargs)], args, kwargs, {})
    return PoolIterator(cx, itertools.repeat, [value], times)
