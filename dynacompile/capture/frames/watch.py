"""One round of a loop, watched while it is interpreted: what it reads of its item and of what hangs on it, the operations that it records, and what it
appends to lists or yields.

What a round may do is a short list: instructions that move values, reads of attributes and items, operators, calls of Python functions that do nothing else,
operations on tensors, `append`, and yields of a generator that something known empties (`Taking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.calling import called
from dynacompile.capture.frames.interpreter import Taking
from dynacompile.capture.frames.repeats import leaves, state_now, tensors_in
from dynacompile.capture.frames.repetition import Append, Read, Round, is_operand, is_unchanged
from dynacompile.capture.recorded import Operation, storage_of
from dynacompile.capture.results import fresh_look
from dynacompile.capture.tensors.gradients import Hooks
from dynacompile.capture.tensors.number_tensors import is_condition
from dynacompile.capture.tensors.tensor import BECOMING, METHODS, TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.values.base import NULL, Lazy, Method, Value
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import ConstantValue, SliceValue, UnreadBool, UnreadStr
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.given_sequences import GivenList, GivenTuple
from dynacompile.capture.values.iterators import EnumerateIterator
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.looks import Look, Looks
from dynacompile.ir.rounds import Again

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame
    from dynacompile.capture.frames.loops import Loop
    from dynacompile.capture.frames.table import Opcode
    from dynacompile.cpython.instructions import Instr

WORTH = 3  # nodes, from which on a round that nobody sees the results of is one node where it is repeated

# Instructions that move values, and look at none.
MOVES = frozenset(
    "LOAD_FAST LOAD_FAST_CHECK STORE_FAST LOAD_CONST POP_TOP COPY SWAP PUSH_NULL NOP RESUME END_FOR KW_NAMES RETURN_VALUE RETURN_CONST "
    "JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT COPY_FREE_VARS LOAD_DEREF LOAD_CLOSURE LOAD_GLOBAL".split()
)
OPERATORS = frozenset("BINARY_OP COMPARE_OP UNARY_NEGATIVE UNARY_POSITIVE UNARY_NOT".split())
BUILDS = frozenset(("BUILD_TUPLE", "BUILD_LIST"))
# Functions that give the same for arguments that look the same, and do nothing.
ASKING = frozenset((len, isinstance, bool, int, float, torch.is_grad_enabled, torch.compiler.is_compiling))
SEQUENCES = (ListValue, TupleValue, GivenList, GivenTuple)
SINGLE = (bool, type(None), type(...))  # types of objects that are the same ones each time
PLAIN_NUMBERS = (ConstantValue, UnreadBool, SymbolicFloat, SymbolicInt)
PLAIN_VALUES = (TensorValue, *PLAIN_NUMBERS)


class NotRepeatableError(Exception):
    """A round does what only following it can repeat."""


class Watch:
    """A round that is being followed. own: by id, what differs from round to round; given: ids of those that are its item or were read of it;
    outside: what it got in ways that are the same in each round; made: numbers that it computed, which are other objects each time;
    counters: numbers of rounds, which subscripts of lists alone may use."""

    def __init__(self, cx: FrameContext, loop: Loop, frame: SymbolicFrame, instr: Instr, item: Value):
        self.cx, self.loop, self.frame, self.instr, self.item = cx, loop, frame, instr, item
        self.depth = len(cx.frames)
        self.slots, self.stack = list(frame.slots), list(frame.stack)
        self.state, self.changes, self.logged, self.hooks = state_now(cx), cx.effects.count, len(cx.recorder.log), len(cx.state(Hooks).all)
        self.own: dict[int, Value] = {}
        self.given: set[int] = set()
        self.outside: dict[int, Value] = {}
        self.made: dict[int, Value] = {}
        self.counters: dict[int, Value] = {}
        self.reads: list[Read] = []
        self.known_attributes: dict[tuple[int, str], Value] = {}  # what was read of a tensor under a name
        self.appends: list[Append] = []
        self.lists_read: dict[int, Value] = {}
        self.inputs: dict[int, TensorValue] = {}
        self.versions: dict[int, int] = {}
        self.add_own(item, counted=isinstance(loop.iterator, EnumerateIterator))

    def add_own(self, value: Value, counted: bool = False) -> None:
        """A value that the round gets from outside, and what it holds."""
        self.own[id(value)] = value
        if not isinstance(value, (ConstantValue, SymbolicFloat, SymbolicInt)):
            self.given.add(id(value))
        if counted:
            assert isinstance(value, TupleValue)
            self.counters[id(value.items[0])] = value.items[0]
            self.add_own(value.items[1])
        elif isinstance(value, TupleValue):
            for part in value.items:
                self.add_own(part)
        elif isinstance(value, TensorValue):
            self.inputs[id(value)] = value
            self.versions.setdefault(id(value), self.cx.recorder.version(value.fake))

    def run(self, frame: SymbolicFrame, instr: Instr, row: Opcode) -> None:
        """Runs an instruction, and notes what it did. Whatever cannot be repeated ends the watch, and not the round."""
        try:
            note = self.see(frame, instr)
        except NotRepeatableError:
            self.give_up()
            row.run(frame, instr)
            return
        row.run(frame, instr)
        if note is not None and self.cx.watching is self:
            try:
                note()
            except NotRepeatableError:
                self.give_up()

    def give_up(self) -> None:
        if self.cx.watching is self:
            self.cx.watching = None
            self.loop.failures += 1

    def see(self, frame: SymbolicFrame, instr: Instr) -> Callable[[], None] | None:
        """Whether an instruction is one that can be repeated; what is to be noted after it."""
        op, stack = instr.op, frame.stack
        if len(self.cx.frames) < self.depth or self.cx.frames[self.depth - 1] is not self.frame:
            raise NotRepeatableError
        if op in ("LOAD_GLOBAL", "LOAD_DEREF"):
            return self.from_outside(frame)
        if op in MOVES or op == "FOR_ITER" and frame is self.frame and instr is self.instr:
            return None
        if op in OPERATORS:
            return self.see_operator(frame, read(frame, 1 if op.startswith("UNARY") else 2))
        if op in BUILDS:
            return self.see_built(frame, read(frame, instr.arg))
        if op.startswith(("POP_JUMP", "JUMP_IF")):
            return self.see_jump(frame, op, frame.peek(1))
        if op == "IS_OP":
            return self.see_operator(frame, read(frame, 2), identity=True)
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            return self.see_attribute(frame, frame.peek(1))
        if op == "BINARY_SUBSCR":
            return self.see_item(frame, *read(frame, 2))
        if op == "UNPACK_SEQUENCE" and type(stack[-1]) is TupleValue:
            return None if self.is_own(stack[-1]) else self.from_outside(frame, instr.arg)
        if op == "CALL":
            return self.see_call(frame, instr)
        if op == "LIST_APPEND":
            return self.see_append(stack[-1 - instr.arg], stack[-1])
        if op == "CONTAINS_OP":
            self.see_contains(*read(frame, 2))
            return None
        if op == "YIELD_VALUE" and frame is self.frame and self.loop.taking is not None:
            return self.see_yield(self.loop.taking, stack[-1])
        raise NotRepeatableError

    def is_own(self, value: Value) -> bool:
        if id(value) in self.counters:
            raise NotRepeatableError
        return id(value) in self.own

    def result(self, frame: SymbolicFrame) -> Value:
        made = pushed(frame)
        return made.force() if isinstance(made, Lazy) else made

    def mark(self, frame: SymbolicFrame) -> None:
        """The result is the round's own, as an operand was."""
        made = self.result(frame)
        self.own[id(made)] = made

    def marking(self, frame: SymbolicFrame, operands: Sequence[Value]) -> Callable[[], None] | None:
        own = [self.is_own(value) for value in operands]
        return (lambda: self.mark(frame)) if any(own) else None

    def from_outside(self, frame: SymbolicFrame, count: int = 1) -> Callable[[], None]:
        """What is pushed is the same in each round."""
        return lambda: self.note_outside([pushed(frame)] if count == 1 else frame.stack[len(frame.stack) - count :])

    def note_outside(self, values: Iterable[Value]) -> None:
        self.outside |= {id(value): value for value in values}

    def reading(self, frame: SymbolicFrame, get: Callable[..., Value], *operands: Value) -> Callable[[], None]:
        def note() -> None:
            found = self.result(frame)
            self.reads.append(Read(get, operands, found))
            self.add_own(found)

        return note

    def see_operator(self, frame: SymbolicFrame, operands: Sequence[Value], identity: bool = False) -> Callable[[], None] | None:
        plain = all(type(value) in PLAIN_VALUES for value in operands)
        if identity:
            plain = any(type(value) is ConstantValue for value in operands)
        if not plain:
            raise NotRepeatableError
        marked = self.marking(frame, operands)
        return marked if any(isinstance(value, TensorValue) for value in operands) else lambda: self.note_made(frame, marked)

    def note_made(self, frame: SymbolicFrame, then: Callable[[], None] | None = None) -> None:
        made = self.result(frame)
        if isinstance(made, (SymbolicFloat, SymbolicInt)) or type(made) is ConstantValue and type(made.value) not in SINGLE:
            self.made[id(made)] = made
        if then is not None:
            then()

    def see_built(self, frame: SymbolicFrame, items: Sequence[Value]) -> Callable[[], None] | None:
        return self.marking(frame, items)

    def see_jump(self, frame: SymbolicFrame, op: str, value: Value) -> Callable[[], None] | None:
        self.is_own(value)
        if is_condition(value):
            if op.startswith("JUMP_IF"):
                raise NotRepeatableError
            return self.selecting(frame)
        if not op.endswith("NONE") and type(value) not in PLAIN_NUMBERS:
            raise NotRepeatableError
        return None

    def selecting(self, frame: SymbolicFrame) -> Callable[[], None]:
        """What both arms of a branch leave on the stack is the round's own."""
        height = len(frame.stack) - 1

        def note() -> None:
            self.own |= {id(value): value for value in frame.stack[height:]}

        return note

    def see_attribute(self, frame: SymbolicFrame, owner: Value) -> Callable[[], None] | None:
        name = frame.code.co_names[frame.current.arg]
        if type(owner) is ListValue:
            if name != "append":
                raise NotRepeatableError
            return None
        if not self.is_own(owner):
            return self.from_outside(frame)
        if type(owner) is DictValue and name == "get":
            return lambda: self.mark(frame)
        if type(owner) is not TensorValue or type(owner.fake) is torch.Tensor:
            raise NotRepeatableError
        if owner.source is None:
            return lambda: self.mark(frame)  # tells nothing that the look of a tensor does not

        def note() -> None:
            found = self.result(frame)
            if isinstance(found, Method) and found.owner is owner:
                self.own[id(found)] = found
            elif self.known_attributes.get((id(owner), name)) is not found:  # nothing that a round may do changes it
                self.known_attributes[id(owner), name] = found
                self.reading(frame, lambda cx, owner: owner.get_attr(cx, name), owner)()

        return note

    def see_item(self, frame: SymbolicFrame, owner: Value, key: Value) -> Callable[[], None] | None:
        if id(key) in self.counters:
            if type(owner) not in SEQUENCES or self.is_own(owner):
                raise NotRepeatableError
            self.lists_read[id(owner)] = owner
            return self.reading(frame, lambda cx, key: owner.get_item(cx, key), key)
        if type(owner) is DictValue:
            own = [self.is_own(value) for value in (owner, key)]
            if any(own):
                if owner in self.cx.effects.touched:
                    raise NotRepeatableError
                return self.reading(frame, lambda cx, owner, key: owner.get_item(cx, key), owner, key)
            return self.from_outside(frame)
        if type(owner) in SEQUENCES and type(key) is ConstantValue:
            self.lists_read[id(owner)] = owner
            return self.marking(frame, (owner, key)) or self.from_outside(frame)
        if type(owner) is TensorValue:
            return self.marking(frame, (owner, key))
        raise NotRepeatableError

    def see_contains(self, item: Value, container: Value) -> None:
        """What looks the same is in the same lists of constants and classes."""
        if type(container) not in SEQUENCES or self.is_own(container) or type(item) not in (ConstantValue, ClassValue):
            raise NotRepeatableError
        self.is_own(item)
        self.lists_read[id(container)] = container

    def see_yield(self, taking: Taking, value: Value) -> Callable[[], None] | None:
        if taking.into is not None:
            return self.see_append(taking.into, value)
        if type(value) not in (ConstantValue, UnreadBool, UnreadStr):
            raise NotRepeatableError
        self.is_own(value)
        return None

    def see_append(self, target: Value, value: Value) -> Callable[[], None]:
        if type(target) is not ListValue or target.source is not None or self.is_own(target) or isinstance(value, Lazy):
            raise NotRepeatableError
        self.is_own(value)
        self.appends.append(Append(target, value))
        return lambda: None

    def see_call(self, frame: SymbolicFrame, instr: Instr) -> Callable[[], None] | None:
        stack, names = frame.stack, frame.kw_names
        callee, bound = called(frame.peek(2 + instr.arg), frame.peek(1 + instr.arg), NULL)
        if isinstance(callee, Method) and type(callee.owner) is ListValue and callee.name == "append" and not bound and instr.arg == 1 and not names:
            return self.see_append(callee.owner, stack[-1])
        args = bound + list(read(frame, instr.arg))
        if isinstance(callee, Method) and type(callee.owner) is DictValue:
            return self.see_get(frame, callee, args, bool(names))
        own = [self.is_own(value) for value in args]
        if isinstance(callee, FunctionValue):
            steps = self.cx.steps
            self.note_outside((*callee.defaults, *callee.kwdefaults.values()))
            return lambda: self.see_followed(steps)
        for value in args:
            if isinstance(value, ListValue):
                self.lists_read[id(value)] = value
        is_method = isinstance(callee, Method) and type(callee.owner) is TensorValue
        if is_method and (callee.name in METHODS or callee.name in BECOMING):  # type: ignore[attr-defined]  # those are no operations alone
            raise NotRepeatableError
        asks_type = type(callee) is ClassValue and callee.real is type and len(args) == 1
        if not is_method and type(callee) not in (TorchFunction, BuiltinValue) and not asks_type:
            raise NotRepeatableError
        if is_method:
            own.append(self.is_own(callee.owner))  # type: ignore[attr-defined]
        positional, keywords = args[: len(args) - len(names)], dict(zip(names, args[len(args) - len(names) :])) if names else {}
        return self.noting(frame, callee, positional, keywords, any(own))

    def see_get(self, frame: SymbolicFrame, callee: Method, args: Sequence[Value], named: bool) -> Callable[[], None]:
        """dict.get of a constant key, which changes nothing."""
        owner = callee.owner
        if callee.name != "get" or named or not self.is_own(owner) or not all(type(value) is ConstantValue and not self.is_own(value) for value in args):
            raise NotRepeatableError
        if owner in self.cx.effects.touched:
            raise NotRepeatableError
        return self.reading(frame, lambda cx, owner, *args: owner.method(cx, "get", list(args), {}), owner, *args)

    def see_followed(self, steps: int) -> None:
        if self.cx.steps == steps:  # a function that is known, and not followed
            raise NotRepeatableError

    def noting(self, frame: SymbolicFrame, callee: Value, args: list[Value], keywords: dict[str, Value], own: bool) -> Callable[[], None]:
        """What a call of something written in C does is the operations that it records, or nothing."""
        before = len(self.cx.recorder.log)

        def note() -> None:
            if len(self.cx.recorder.log) > before:
                self.mark(frame)
                return
            if not any(self.result(frame) is value for value in args):
                self.note_made(frame)
            if isinstance(callee, BuiltinValue) and callee.real not in ASKING and own:
                raise NotRepeatableError
            elif own:
                if keywords or isinstance(callee, Method):
                    raise NotRepeatableError
                self.reading(frame, lambda cx, *operands: callee.call(cx, list(operands), {}), *args)()
            else:
                self.from_outside(frame)()

        return note

    # the end of the round

    def changed(self) -> int:
        """The changes of lists that are counted as such: not those of the list that a generator is emptied into."""
        into = None if self.loop.taking is None else self.loop.taking.into
        return sum(append.target is not into for append in self.appends)

    def finish(self) -> Round:
        """What the round was. Raises NotRepeatableError."""
        cx, frame = self.cx, self.frame
        done = cx.recorder.done(self.logged)
        same = state_now(cx) == self.state and cx.effects.count - self.changes == self.changed() and len(cx.state(Hooks).all) == self.hooks
        if not same or not all(isinstance(entry, Operation) for entry in done) or not cx.rounds.is_plain():
            raise NotRepeatableError
        operations: list[Operation] = done  # type: ignore[assignment]
        if frame.stack != self.stack or any(id(append.target) in self.lists_read for append in self.appends):
            raise NotRepeatableError
        variables = self.variables()
        self.check_ways(variables)
        made = {id(leaf) for operation in operations if not is_operand(operation) for leaf in leaves(operation.result)}
        invariant = self.check_operands(operations, made)
        counts = [(value, cx.recorder.version(value.fake) - self.versions[key]) for key, value in self.inputs.items()]
        written = tuple(pair for pair in counts if pair[1])
        needed = self.needed(operations, made)
        fresh = {id(o): look for o in (operations[i] for i in needed) if (look := fresh_result(cx.recorder.looks, o)) is not None}
        again, given = self.again(operations, needed, fresh)
        reads, appends = tuple(self.reads), tuple(self.appends)
        return Round(self.item, reads, appends, tuple(operations), needed, fresh, variables, written, invariant, self.state, again, given)

    def again(self, operations: Sequence[Operation], needed: frozenset[int], fresh: Mapping[int, Look]) -> tuple[Again | None, tuple[TensorValue, Look] | None]:
        """What repeats the operations as one node, and the tensor that it gives, with its look; None where it gives none, or where it is hardly less than they
        are."""
        nodes = tuple(node for operation in operations for node in operation.nodes)
        read = {operand for node in nodes for operand in node.all_input_nodes}
        inputs = tuple(dict.fromkeys(node for value in self.inputs.values() if (node := value.node) in read))
        if not needed:
            return (Again(nodes, inputs), None) if len(nodes) >= WORTH else (None, None)
        shown = {id(leaf): operation for operation in operations for leaf in leaves(operation.result)}
        made = {id(leaf): leaf for append in self.appends for leaf in leaves(append.value) if id(leaf) in shown and not is_operand(shown[id(leaf)])}
        if len(made) != 1 or len(needed) != 1 or len(nodes) < 2:
            return None, None
        ((key, value),) = made.items()
        look = fresh.get(id(shown[key]))
        if look is None or not isinstance(value, TensorValue):
            return None, None
        return Again(nodes, inputs, value.node), (value, look)

    def variables(self) -> tuple[tuple[int, Value | None], ...]:
        """The variables that live from round to round. None of them has changed, unless it is always the same constant."""
        live = sorted(self.frame.decoded.live_slots(self.instr))
        if not all(is_unchanged(self.slots[slot], self.frame.slots[slot]) for slot in live):
            raise NotRepeatableError
        return tuple((slot, self.frame.slots[slot]) for slot in live)

    def check_ways(self, variables: Sequence[tuple[int, Value | None]]) -> None:
        """No object is the round's own and also reached in a way that leads to the same one in each round: a repetition could not tell which is meant."""
        for value in (*self.outside.values(), *(value for _, value in variables)):
            known = self.cx.known.get(id(value.real)) if isinstance(value, Lazy) else value
            if id(known) in self.given:
                raise NotRepeatableError

    def check_operands(self, operations: Sequence[Operation], made: set[int]) -> frozenset[int]:
        """The storages of the tensors that all rounds use. Operations take tensors and plain values."""
        values = [leaf for o in operations for value in (*o.args, *o.kwargs.values()) for leaf in leaves(value)]
        values += [leaf for append in self.appends for leaf in leaves(append.value)]
        others = set()
        read = {id(self.item), *(id(r.result) for r in self.reads)}
        for append in self.appends:
            if any(type(leaf) is ConstantValue and id(leaf) in self.own and id(leaf) not in read or id(leaf) in self.made for leaf in leaves(append.value)):
                raise NotRepeatableError  # an object that each round makes, such as a size
        for value in values:
            if id(value) in self.counters or not isinstance(value, (*PLAIN_VALUES, SliceValue, DictValue)):
                raise NotRepeatableError
            if isinstance(value, SliceValue) and any(id(part) in self.own or id(part) in self.counters for part in value.children()):
                raise NotRepeatableError
            if isinstance(value, TensorValue) and id(value) not in made and id(value) not in self.inputs:
                if value.source is None and not self.is_before(value) or id(value) in self.own:
                    raise NotRepeatableError
                others.add(storage_of(value.fake))
        storages = [storage_of(value.fake) for value in self.inputs.values()]
        if len(set(storages)) < len(storages) or not others.isdisjoint(storages):
            raise NotRepeatableError
        if any(not o.writes <= (set(storages) | {storage_of(t.fake) for t in tensors_in(*(p.result for p in operations))}) for o in operations):
            raise NotRepeatableError
        return frozenset(others)

    def is_before(self, value: TensorValue) -> bool:
        """Whether a tensor that the frame made was there before the round."""
        return all(value.node is not node for o in self.cx.recorder.done(self.logged) if o is not None for node in o.nodes)

    def needed(self, operations: Sequence[Operation], made: set[int]) -> frozenset[int]:
        """The operations that make what is appended to lists, or write it."""
        shown = {storage_of(t.fake) for append in self.appends for t in tensors_in(append.value) if id(t) in made}
        inputs = {storage_of(value.fake) for value in self.inputs.values()}
        found = frozenset(i for i, o in enumerate(operations) if ({storage_of(t.fake) for t in tensors_in(o.result)} | o.writes) & shown)
        if shown & inputs or any(operations[i].writes & inputs for i in found):
            raise NotRepeatableError
        return found


def fresh_result(looks: Looks, operation: Operation) -> Look | None:
    """What the result of an operation looks like, where it is one tensor in memory of its own, of which nothing else is known."""
    result = operation.result
    if operation.writes or type(result) is not TensorValue or operation.nodes != (result.node,) or result.attributes or result.number() is not None:
        return None
    return fresh_look(looks, result.fake, [t.fake for t in tensors_in(*operation.args, *operation.kwargs.values())])


def pushed(frame: SymbolicFrame) -> Value:
    """What the instruction that has just run gave. CPython 3.13 puts the NULL of a call on top of it."""
    return frame.stack[-2] if frame.stack[-1] is NULL else frame.stack[-1]


def read(frame: SymbolicFrame, count: int) -> list[Value]:
    """The values on top of the stack, which the instruction is about to read."""
    return [frame.peek(depth) for depth in range(count, 0, -1)]
