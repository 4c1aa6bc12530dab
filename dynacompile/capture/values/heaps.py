"""heapq and bisect over lists: the comparisons that their C makes, in its order, and what it leaves in the list where one of them raises."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, SequenceValue
from dynacompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace

NONE = ConstantValue(None)


def is_less(cx: Trace, left: Value, right: Value) -> bool:
    return cx.operator("lt", [left, right]).truth(cx)


class Heap:
    """The list of a heap, being sorted. is_max: the largest comes first."""

    def __init__(self, cx: Trace, value: Value, is_max: bool):
        if not isinstance(value, ListValue) or value.cls is not list:
            raise unsupported("unknown-function", f"heapq on {value.describe()}")
        self.cx, self.list, self.is_max = cx, value, is_max
        cx.effects.touch(value)

    def size(self) -> int:
        return len(self.list.items)

    def refuse_empty(self) -> None:
        if not self.list.items:
            raise raises(IndexError, "index out of range")

    def is_before(self, left: int, right: int) -> bool:
        """Whether the item at `left` is to be nearer to the root than the one at `right`."""
        size = self.size()
        first, second = self.list.at(self.cx, left), self.list.at(self.cx, right)
        found = is_less(self.cx, second, first) if self.is_max else is_less(self.cx, first, second)
        if self.size() != size:
            raise raises(RuntimeError, "list changed size during iteration")
        return found

    def swap(self, left: int, right: int) -> None:
        items = self.list.items
        items[left], items[right] = items[right], items[left]

    def rise(self, start: int, at: int) -> None:
        """Moves an item towards the root of the part that begins at `start`."""
        while at > start:
            parent = (at - 1) // 2
            if not self.is_before(at, parent):
                return
            self.swap(at, parent)
            at = parent

    def settle(self, at: int) -> None:
        """Moves an item down to a leaf, the better child up in its place, and from there to where it belongs."""
        start, end = at, self.size()
        while at < end // 2:
            child = 2 * at + 1
            if child + 1 < end and not self.is_before(child, child + 1):
                child += 1
            self.swap(child, at)
            at = child
        self.rise(start, at)

    def replace(self, item: Value) -> Value:
        first = self.list.at(self.cx, 0)
        self.list.items[0] = item
        self.settle(0)
        return first

    def pop(self) -> Value:
        self.refuse_empty()
        last = self.list.at(self.cx, self.size() - 1)
        self.list.items.pop()
        return self.replace(last) if self.list.items else last

    def order(self) -> None:
        for at in reversed(range(self.size() // 2)):
            self.settle(at)


@handles(heapq.heappush)
def row_heappush(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    heap, item = bind_arguments("heappush", ["heap", "item"], args, kwargs, {})
    found = Heap(cx, heap, False)
    found.list.items.append(item)
    found.rise(0, found.size() - 1)
    return NONE


@handles(heapq.heappushpop)
def row_heappushpop(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    heap, item = bind_arguments("heappushpop", ["heap", "item"], args, kwargs, {})
    found = Heap(cx, heap, False)
    if not found.size() or not is_less(cx, found.list.at(cx, 0), item):
        return item
    found.refuse_empty()
    return found.replace(item)


def ordered(pop: Callable, replace: Callable, order: Callable, is_max: bool) -> None:
    @handles(pop)
    def row_pop(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (heap,) = bind_arguments("heappop", ["heap"], args, kwargs, {})
        return Heap(cx, heap, is_max).pop()

    @handles(replace)
    def row_replace(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        heap, item = bind_arguments("heapreplace", ["heap", "item"], args, kwargs, {})
        found = Heap(cx, heap, is_max)
        found.refuse_empty()
        return found.replace(item)

    @handles(order)
    def row_order(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (heap,) = bind_arguments("heapify", ["heap"], args, kwargs, {})
        Heap(cx, heap, is_max).order()
        return NONE


ordered(heapq.heappop, heapq.heapreplace, heapq.heapify, False)
MAX = [getattr(heapq, name) for name in ("_heappop_max", "_heapreplace_max", "_heapify_max")]  # which merge and nsmallest call
ordered(MAX[0], MAX[1], MAX[2], True)


def place(cx: Trace, is_right: bool, values: list[Value], item: Value) -> int:
    """Where an item belongs. values: the list, the bounds, and the function that gives what is compared of its elements."""
    sequence, lo, hi, key = values
    if not isinstance(sequence, SequenceValue):
        raise unsupported("unknown-function", f"bisect on {sequence.describe()}")
    low, high = lo.constant(), hi.constant()
    if low < 0:
        raise raises(ValueError, "lo must be non-negative")
    high = len(sequence.items) if high is None or high == -1 else high
    while low < high:
        middle = (low + high) // 2
        if middle >= len(sequence.items):
            raise raises(IndexError, f"{sequence.cls.__name__} index out of range")
        other = sequence.at(cx, middle)
        if not is_none(key):
            other = key.call(cx, [other], {})
        goes_left = is_less(cx, item, other) if is_right else not is_less(cx, other, item)
        low, high = (low, middle) if goes_left else (middle + 1, high)
    return low


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


def bound(name: str, args: list[Value], kwargs: dict[str, Value]) -> list[Any]:
    if len(args) > 4:
        raise unsupported("would-raise", f"{name}() takes at most 4 positional arguments")
    return bind_arguments(name, ["a", "x", "lo", "hi", "key"], args, kwargs, {"lo": ConstantValue(0), "hi": NONE, "key": NONE})


def searched(search: Callable, insert: Callable, is_right: bool) -> None:
    @handles(search)
    def row_search(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        sequence, item, *rest = bound(search.__name__, args, kwargs)
        if isinstance(sequence, SequenceValue):
            return ConstantValue(place(cx, is_right, [sequence, *rest], item))
        if isinstance(sequence, TensorValue) or isinstance(item, TensorValue):
            raise unsupported("to-python", f"{search.__name__} of {sequence.describe()}")
        return cx.fold(search, args, kwargs)

    @handles(insert)
    def row_insert(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        sequence, item, *rest = bound(insert.__name__, args, kwargs)
        if not isinstance(sequence, ListValue) or sequence.cls is not list:
            raise unsupported("unknown-function", f"{insert.__name__} on {sequence.describe()}")
        keyed = item if is_none(rest[-1]) else rest[-1].call(cx, [item], {})
        at = place(cx, is_right, [sequence, *rest], keyed)
        return sequence.method(cx, "insert", [ConstantValue(at), item], {})


searched(bisect.bisect_left, bisect.insort_left, False)
searched(bisect.bisect_right, bisect.insort_right, True)
