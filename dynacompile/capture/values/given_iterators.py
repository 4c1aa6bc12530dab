"""Iterators that exist before the frame: ranges, lists, tuples and texts, forward and reversed, itertools.count, and zip of such iterators.

The item that is `k` items ahead has a source of its own, so that an entry relies on the items that it takes, and not on how far the iterator is. Behind the
graph, the iterator is asked as often as the frame has asked it.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.bytecode import STACK_PREFIX
from dynacompile.capture.values.base import IteratorValue, Value, stepped, wraps
from dynacompile.capture.values.iterators import ZipIterator
from dynacompile.capture.values.lazy_iterators import CountIterator
from dynacompile.capture.values.objects import OpaqueValue
from dynacompile.ir.frozen import record
from dynacompile.ir.source import Applied, Item, Local, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Left(enum.Enum):
    NOTHING = "nothing is left"  # in the place of an item


OVER: dict[type, tuple[Any, int]] = {  # of iterators: what they iterate over, and which way
    **{type(iter(one)): (type(one), 1) for one in (range(1), range(2**70), (), [], "a", "\u03b1", b"")},  # type: ignore[var-annotated]
    type(reversed([])): (list, -1),  # those of ranges are iterators of ranges, too
}


def state_of(iterator: Any) -> tuple[Any, int]:
    """What an iterator goes over, and where in it the next item is."""
    _, (container,), *index = iterator.__reduce__()
    return container, index[0] if index and index[0] is not None else 0


@record
class Ahead:
    """The item that an iterator gives when it has given `count` more."""

    count: int

    def __call__(self, iterator: Any) -> Any:
        container, index = state_of(iterator)
        kind, way = OVER[type(iterator)]
        place = index + way * self.count
        return kind.__getitem__(container, place) if 0 <= place < kind.__len__(container) else Left.NOTHING


class GivenIterator(IteratorValue):
    """asked: how often the frame has asked for an item."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source
        self.asked = 0
        self.done = False

    def pytype(self) -> type:
        return type(self.real)

    def next(self, cx: Context) -> Value | None:
        if self.done:
            return None
        self.refuse_changed(cx)
        cx.effects.touch(self)
        ahead = Ahead(self.asked)
        self.asked += 1
        item, place = ahead(self.real), Applied(self.source, ahead, f"'s item {self.asked}")
        self.done = item is Left.NOTHING
        found = cx.wrap(item, place)
        return None if self.done else found

    def refuse_changed(self, cx: Context) -> None:
        """Where the frame has changed what is iterated over, another item would come."""
        container = cx.known_value(state_of(self.real)[0])
        if container is not None and container in cx.effects.touched:
            raise unsupported("unknown-object", f"{self.describe()}, over what the frame has changed,")

    def replay_values(self) -> Sequence[Value]:
        return ()

    def replay(self, out: Writer) -> None:
        replay_asking(out, self, self.asked)


def replay_asking(out: Writer, iterator: Value, times: int) -> None:
    out.callee(stepped)
    out.value(iterator)
    out.const(times)
    out.call(2)
    out.emit("POP_TOP")


class GivenCount(CountIterator):
    """asked: how often the frame has asked for a number."""

    def __init__(self, start: Value, step: Value, source: Source):
        super().__init__(start, step)
        self.source, self.asked = source, 0

    def following(self, cx: Context) -> Value:
        cx.effects.touch(self)
        self.asked += 1
        return super().following(cx)

    def replay_values(self) -> Sequence[Value]:
        return ()

    def replay(self, out: Writer) -> None:
        replay_asking(out, self, self.asked)


def numbers_of(count: Any) -> tuple[Any, Any]:
    """The next number of itertools.count, and its step."""
    _, (start, *step) = count.__reduce__()
    return start, step[0] if step else 1


def parts_of_zip(joined: Any) -> tuple[Any, ...]:
    """The iterators that zip() asks, and whether it is strict."""
    _, parts, *strict = joined.__reduce__()
    return *parts, bool(strict)


def parts_of(cx: Context, real: Any, source: Source, asked: Callable[[Any], tuple], name: str) -> list[Value]:
    """Values of what a function tells of an iterator, where it tells of so many things."""
    told, place = asked(real), Applied(source, asked, name)
    cx.guard("LENGTH", place, len(told))
    return [cx.wrap(part, Item(place, i)) for i, part in enumerate(told)]


def count_of(cx: Context, real: Any, source: Source) -> Value | None:
    if not all(type(number) in (int, float) for number in numbers_of(real)):
        return None
    start, step = parts_of(cx, real, source, numbers_of, "'s numbers")
    return GivenCount(start, step, source)


def zip_of(cx: Context, real: Any, source: Source) -> Value | None:
    *parts, strict = parts_of(cx, real, source, parts_of_zip, "'s parts")
    iterators = [part for part in parts if isinstance(part, IteratorValue)]
    if len(iterators) < len(parts):
        return None
    made = ZipIterator(iterators, strict.truth(cx))
    made.source = source
    return made


OTHERS: dict[type, Callable[[Context, Any, Source], Value | None]] = {itertools.count: count_of, zip: zip_of}


@wraps(*OVER, *OTHERS)
def wrap_iterator(cx: Context, real: Any, source: Source) -> Value:
    """The iterator of a loop that goes on behind a break is asked by Python, so that one entry serves all rounds."""
    cx.guard("TYPE", source, type(real))
    if isinstance(source, Local) and source.name.startswith(STACK_PREFIX):
        return OpaqueValue(real, source)
    make = OTHERS.get(type(real))
    found = GivenIterator(real, source) if make is None else make(cx, real, source)
    return OpaqueValue(real, source) if found is None else found
