"""Iterators of loops that go on after a graph break: by what they iterate over, how far they are, and the item that comes next.

Such an iterator is private to its loop, so a resume function is given these three instead, and makes one of its own. That the item is there
already lets the rest of one round and the begin of the next be one graph, and lets one entry serve all rounds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import IteratorValue, Lazy, Value
from dynacompile.capture.values.constant import ConstantIterator, ConstantValue
from dynacompile.capture.values.iterators import EnumerateIterator, FilterIterator, MapIterator, ZipIterator
from dynacompile.capture.values.itertools_rows import PoolIterator
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, ReversedIterator, SequenceIterator, SequenceValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicInt

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import LeafWriter, Writer

KINDS = frozenset({list, tuple, range, str, bytes, torch.Size})  # whose iterators count from 0, and can be set


class Next(enum.Enum):
    END = "nothing is left"  # in the place of the next item


END = Next.END
NEXT_ITEM = 2  # in what `ahead` gives


def backward(index: int) -> int:
    """Between the index of the next item of a reversed iterator and the number below zero that tells of it, to which one is added for each item."""
    return -2 - index


def ahead(sequence: Any, index: int) -> tuple[Any, int, Any]:
    """What a resume function is given of an iterator that has given `index` items; below zero: of a reversed one."""
    at = index if index >= 0 else backward(index)
    return sequence, index, sequence[at] if 0 <= at < len(sequence) else END


def positioned(state: tuple[Any, int, Any]) -> Iterator[Any]:
    """The iterator that `state` tells of."""
    sequence, index, item = state
    if item is END:
        return iter(())
    made: Any = iter(sequence) if index >= 0 else reversed(sequence)
    made.__setstate__(index if index >= 0 else backward(index))
    return made


class Advanced(Value):
    """A position in a list, `by` items after one that was not read."""

    def __init__(self, base: Value, by: int):
        self.base, self.by = base, by

    def pytype(self) -> type:
        return int

    def children(self) -> Sequence[Value]:
        return (self.base,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.base)
        out.const(self.by)
        out.emit("BINARY_OP", 0)


def advanced(base: Value, by: int) -> Value:
    if isinstance(base, ConstantValue):
        return ConstantValue(base.value + by)
    return base if by == 0 else Advanced(base, by)


class StateValue(Value):
    """The argument of a resume function that stands for an iterator; made when nothing else is left to run before it."""

    def __init__(self, sequence: Value, index: Value):
        self.sequence, self.index = sequence, index

    def pytype(self) -> type:
        return tuple

    def children(self) -> Sequence[Value]:
        return (self.sequence, self.index)

    def rebuild(self, out: Writer) -> None:
        out.callee(ahead)
        out.value(self.sequence)
        out.value(self.index)
        out.call(2)


class GivenIterator(IteratorValue):
    """The iterator of a resume function's loop. sequence: unread as long as the next item does. index: of that item.

    item: None where it was taken. rest: takes over where more than one item is asked for.
    """

    def __init__(self, sequence: Value, index: Value, item: Value | None):
        self.sequence, self.index, self.item = sequence, index, item
        self.taken = 0
        self.rest: IteratorValue | None = None

    def pytype(self) -> type:
        return type(iter(self.real()))

    def real(self) -> Any:
        return self.sequence.real if isinstance(self.sequence, Lazy) else self.sequence.pytype()()

    def next(self, cx: Context) -> Value | None:
        if self.rest is None and isinstance(self.item, Lazy) and not self.may_have_changed(cx):
            item, self.item = self.item, None
            if item.real is END:
                cx.force(item)
                self.rest = ConstantIterator(())
                return None
            self.taken = 1
            cx.guard("TYPE", item.source, type(item.real))
            return item
        if self.rest is None:
            self.rest = self.resolved(cx)
        return self.rest.next(cx)

    def may_have_changed(self, cx: Context) -> bool:
        """Whether a list was changed since the next item was looked up, which may be this one."""
        return isinstance(self.real(), list) and any(isinstance(v, ListValue) for v in cx.effects.touched)

    def resolved(self, cx: Context) -> IteratorValue:
        index, sequence = cx.force(self.index), cx.force(self.sequence)
        if isinstance(index, SymbolicInt):
            raise unsupported("in-loop", "its position varies")
        made = iterator_at(sequence, index.constant() + self.taken)
        if made is None:
            raise unsupported("in-loop", f"it iterates over {sequence.describe()}")
        return made

    def children(self) -> Sequence[Value]:
        return (self.sequence, self.index) if self.rest is None else (self.rest,)

    def rebuild(self, out: Writer) -> None:
        if self.rest is not None:
            self.rest.rebuild(out)
            return
        out.callee(positioned)
        StateValue(self.sequence, advanced(self.index, self.taken)).rebuild(out)
        out.call(1)

    def state(self) -> StateValue | None:
        if self.rest is not None:
            return state_of(self.rest)
        return StateValue(self.sequence, advanced(self.index, self.taken))


class GivenIterators:
    """all: the iterators of loops that the frame goes on with."""

    def __init__(self) -> None:
        self.all: list[GivenIterator] = []


def iterator_at(sequence: Value, index: int) -> IteratorValue | None:
    if index < 0:
        return ReversedIterator(sequence, backward(index) + 1)
    if isinstance(sequence, SequenceValue):
        made = SequenceIterator(sequence)
        made.index = index
        return made
    if isinstance(sequence, ConstantValue) and type(sequence.value) in KINDS:
        found = ConstantIterator(sequence.value)
        for _ in range(min(index, len(sequence.value))):
            next(found._elements)
        found.index = index
        return found
    return None


def state_of(value: Value) -> StateValue | None:
    """What stands for an iterator in a call of a resume function; None where the object itself is passed."""
    if isinstance(value, GivenIterator):
        return value.state()
    if isinstance(value, SequenceIterator) and value.holder.pytype() in KINDS:
        return StateValue(TupleValue([]), ConstantValue(0)) if value.done else StateValue(value.holder, ConstantValue(value.index))
    if isinstance(value, ReversedIterator) and value.holder.pytype() in KINDS:
        return StateValue(TupleValue([]), ConstantValue(0)) if value.done else StateValue(value.holder, ConstantValue(backward(value.index)))
    if isinstance(value, PoolIterator) and (given := value.all()) is not None:
        return StateValue(TupleValue(given), ConstantValue(min(value.index, len(given))))
    if isinstance(value, ConstantIterator):
        elements = tuple(value.value) if isinstance(value.value, frozenset) else value.value
        return StateValue(ConstantValue(elements), ConstantValue(value.index)) if type(elements) in KINDS else None
    return None


def can_hand_on(value: Value, alone: Callable[[Value], bool]) -> bool:
    """Whether a resume function can make the iterator itself: nobody else has it."""
    if not alone(value):
        return False
    match value:
        case ZipIterator():
            return not value.strict and all(can_hand_on(part, alone) for part in value.parts)
        case MapIterator():
            return all(can_hand_on(part, alone) for part in value.parts)
        case EnumerateIterator() | FilterIterator():
            return can_hand_on(value.inner, alone)
        case IteratorValue():
            return state_of(value) is not None
    return False


def hand_on(value: IteratorValue, out: LeafWriter) -> None:
    """The instructions by which a resume function makes the iterator again."""
    state = state_of(value)
    if state is None:
        value.rebuild(out)  # type: ignore[arg-type]
        return
    out.callee(positioned)
    out.leaf(state)
    out.call(1)


@handles(positioned)
def row_positioned(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (state,) = args
    if not isinstance(state, TupleValue):
        raise unsupported("unknown-object", state.describe())
    made = GivenIterator(*state.items)
    cx.state(GivenIterators).all.append(made)
    return made
