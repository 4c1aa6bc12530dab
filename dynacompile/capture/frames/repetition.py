"""A round of a loop once more, for another item: what it reads is read again, through the same guards, and compared; what it did is recorded again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import Raised
from dynacompile.capture.frames.repeats import DiffersError, State, leaves, state_now
from dynacompile.capture.recorded import Operation, storage_of
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.wrappers import tensor_value
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.errors import Unsupported, VerifyError
from dynacompile.ir.looks import Later, Look, give
from dynacompile.ir.rounds import Again

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame


@dataclass(frozen=True)
class Read:
    """What a round read of a value that is its own: `get(cx, *operands)` gave `result`."""

    get: Callable[..., Value]
    operands: tuple[Value, ...]
    result: Value


@dataclass(frozen=True)
class Append:
    target: ListValue
    value: Value


@dataclass(frozen=True)
class Round:
    """One round that was followed. inputs: its item and the results of reads; written: how often it wrote each tensor among them; invariant: storages of the
    other tensors that it used; needed: the operations whose results are appended to lists; fresh: by the id of an operation among those, what its result
    looks like, where that is one tensor in memory of its own; variables: those that it may have read, by slot; again: what repeats all of them as one node,
    where nobody sees what they give, but for one tensor; given: that tensor, and what it looks like."""

    item: Value
    reads: tuple[Read, ...]
    appends: tuple[Append, ...]
    operations: tuple[Operation, ...]
    needed: frozenset[int]
    fresh: Mapping[int, Look]
    variables: tuple[tuple[int, Value | None], ...]
    written: tuple[tuple[TensorValue, int], ...]
    invariant: frozenset[int]
    state: State
    again: Again | None
    given: tuple[TensorValue, Look] | None

    @cached_property
    def writes(self) -> bool:
        """Whether an operation writes a tensor."""
        return any(operation.writes for operation in self.operations)


class Known:
    """A round that was followed, as it is seen while no instruction is interpreted. holds: whether what rounds have in common is as it was then.

    told: what is known of its tensors, by their ids."""

    def __init__(self, cx: FrameContext, known: Round, frame: SymbolicFrame):
        self.round = known
        self.holds = state_now(cx) == known.state and all(is_unchanged(value, frame.slots[slot]) for slot, value in known.variables)
        self.told: dict[int, tuple] = {}

    def of(self, value: TensorValue) -> tuple:
        found = self.told.get(id(value))
        if found is None:
            found = self.told[id(value)] = told(value)
        return found


class Repetition:
    """The attempt to repeat a round for another item. now: id of a value of the round -> the value that stands for it."""

    def __init__(self, cx: FrameContext, then: Known):
        self.cx, self.then, self.known = cx, then, then.round
        self.now: dict[int, Value] = {}
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self.tensors: dict[int, TensorValue] = {}

    def repeat(self, item: Value, counted: bool) -> bool:
        """Whether it was; nothing has changed where it was not, but that what both rounds read is guarded."""
        cx, known = self.cx, self.known
        depth, handling = len(cx.frames), cx.handling
        if not self.then.holds:
            return False
        renamed = self.now.get
        try:
            self.compare(known.item, item, counted)
            for read in known.reads:
                self.compare(read.result, read.get(cx, *[renamed(id(value), value) for value in read.operands]))
            self.check_memory()
        except DiffersError:
            return False
        except Unsupported as reason:  # following the round meets it again, and breaks there or handles it
            if isinstance(reason, Raised):
                del cx.frames[depth:]
                cx.handling = handling
            return False
        self.record()
        return True

    def compare(self, then: Value, now: Value, counted: bool = False) -> None:
        """Whether two values look the same to Python."""
        if self.now.setdefault(id(then), now) is not now:
            raise DiffersError
        if counted:
            assert isinstance(then, TupleValue) and isinstance(now, TupleValue)
            self.now[id(then.items[0])] = now.items[0]
            self.compare(then.items[1], now.items[1])
        elif (kind := type(then)) is not type(now):
            raise DiffersError
        elif issubclass(kind, TensorValue):
            assert isinstance(then, TensorValue) and isinstance(now, TensorValue)
            if self.then.of(then) != told(now):
                raise DiffersError
            self.nodes[then.node] = now.node
            self.tensors[id(now)] = now
        elif issubclass(kind, ConstantValue):
            if not is_same_constant(then, now):
                raise DiffersError
        elif kind is TupleValue and isinstance(then, TupleValue) and isinstance(now, TupleValue) and then.cls is now.cls and len(then.items) == len(now.items):
            for left, right in zip(then.items, now.items):
                self.compare(left, right)
        elif kind is DictValue and isinstance(then, DictValue) and isinstance(now, DictValue):
            if then.cls is not now.cls or (then.source is None or now.source is None) or now in self.cx.effects.touched:
                raise DiffersError
        elif kind is ClassValue and isinstance(then, ClassValue) and isinstance(now, ClassValue):
            if then.real is not now.real:
                raise DiffersError
        elif then is not now:
            raise DiffersError

    def check_memory(self) -> None:
        """What the round works on shares no memory, as in the round that was followed."""
        shown = [value for value in self.tensors.values() if type(value.given) is not Later]  # what has no fake yet has memory of its own
        if not shown:
            return
        storages = {storage_of(value.fake) for value in shown}
        if len(storages) < len(shown) or not storages.isdisjoint(self.known.invariant):
            raise DiffersError

    # recording

    def record(self) -> None:
        cx, known = self.cx, self.known
        if known.again is not None:
            node = cx.recorder.repeat(known.again, tuple([self.nodes[node] for node in known.again.inputs]), len(known.operations), known.writes)
            if known.given is not None:
                then, look = known.given
                later = Later(look)
                give(node, later)
                made = self.now[id(then)] = TensorValue(node, later, recorder=cx.recorder)
                made.is_number = then.is_number
        else:
            for index, operation in enumerate(known.operations):
                self.perform(operation, index in known.needed)
        for value, count in known.written:
            now = self.now[id(value)]
            assert isinstance(now, TensorValue)
            now.count_writes(count)
        for append in known.appends:
            cx.effects.touch(append.target)
            append.target.items.append(self.renamed(append.value))

    def perform(self, operation: Operation, needed: bool) -> None:
        """An operation once more: on fakes, or, where nobody will see what it gives, as nodes that share the fakes of the first time."""
        recorder = self.cx.recorder
        before, fresh = len(recorder.nodes), self.known.fresh.get(id(operation))
        if needed and is_operand(operation):
            self.note(operation, before)
            return
        if needed and fresh is not None:
            made = recorder.copy_fresh(operation, self.nodes, fresh)
            assert isinstance(operation.result, TensorValue)
            made.is_number = operation.result.is_number
            self.now[id(operation.result)] = made
            self.note(operation, before)
            return
        if needed:
            args, kwargs = [self.renamed(value) for value in operation.args], {k: self.renamed(v) for k, v in operation.kwargs.items()}
            with recorder.at(operation.site):
                given = recorder.op(operation.kind, operation.target, args, kwargs)
            for then, now in paired(operation.result, given):
                self.now[id(then)] = now
                if isinstance(then, TensorValue) and isinstance(now, TensorValue):
                    now.is_number = then.is_number
                    self.nodes[then.node] = now.node
            return
        recorder.copy(operation, self.nodes)
        self.note(operation, before)

    def note(self, operation: Operation, before: int) -> None:
        """Has the log make an entry for a copied operation where somebody asks. before: the number of nodes that were there before it."""
        nodes = tuple(self.cx.recorder.nodes[before:])
        self.cx.recorder.log.append(lambda: self.again(operation, nodes))

    def again(self, operation: Operation, nodes: tuple[torch.fx.Node, ...]) -> Operation:
        """An operation of this round, as it is noted."""
        args, kwargs = tuple(map(self.renamed, operation.args)), {k: self.renamed(v) for k, v in operation.kwargs.items()}
        return replace(operation, args=args, kwargs=kwargs, result=self.renamed(operation.result), nodes=nodes)

    def renamed(self, value: Value) -> Value:
        found = self.now.get(id(value))
        if found is not None:
            return found
        if isinstance(value, TensorValue) and value.node in self.nodes:  # what a copied operation gives
            found = self.now[id(value)] = tensor_value(self.nodes[value.node], value.fake)
            found.is_number = value.is_number
            return found
        if type(value) is TupleValue or type(value) is ListValue:
            items = [self.renamed(item) for item in value.items]
            return TupleValue(items, value.cls) if type(value) is TupleValue else ListValue(items)
        return value


def told(value: TensorValue) -> tuple:
    """Equal for tensors that look the same to Python and to capture. All differ from each other of which capture knows more than their metadata."""
    given = value.given
    if type(given) is Later:
        number, look = None, given.look.appearance
    else:
        number, look = value.number(), value.appearance()
    plain = not value.attributes and value.new_grad is None and number is None and not value.has_become
    return look, value.pytype(), plain or id(value), value.is_number, value.source is None, value.real is None


def is_operand(operation: Operation) -> bool:
    """Whether it gave its first operand, as a cast to the type that it has: it does so for what looks the same."""
    return not operation.nodes and not operation.writes and bool(operation.args) and operation.result is operation.args[0]


def is_unchanged(before: Value | None, after: Value | None) -> bool:
    return before is after or is_same_constant(before, after)


def is_same_constant(left: Value | None, right: Value | None) -> bool:
    if type(left) is not ConstantValue or type(right) is not ConstantValue:
        return False
    if left.value is right.value and type(left.value) in (bool, type(None), int, str):
        return True
    return type(left.value) is type(right.value) and repr(left.value) == repr(right.value) and bool(left.value == right.value)


def paired(then: Value, now: Value) -> Iterator[tuple[Value, Value]]:
    before, after = list(leaves(then)), list(leaves(now))
    if len(before) != len(after) or any(type(a) is not type(b) for a, b in zip(before, after)):
        raise VerifyError("capture", "a repeated operation gave results of another kind")
    return zip(before, after)
