"""The residual code of a frame that breaks: it runs the instruction that capture can't, and calls a resume function for the rest."""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dynacompile.capture.breaks import LIFETIME, unsupported
from dynacompile.capture.bytecode import Decoded
from dynacompile.capture.calling import with_null
from dynacompile.capture.ending import Ending, decide_cells, refuse_open, spent, start
from dynacompile.capture.frames.interpreter import SymbolicFrame
from dynacompile.capture.frames.suspended import Made, made_by_resume, unfolded
from dynacompile.capture.frames.table import TABLE
from dynacompile.capture.handling import HANDLED, enter_handlers, handled
from dynacompile.capture.onward import Target, go_on, store_temp, target
from dynacompile.capture.residual import Builder, is_loadable, outputs_in, reached
from dynacompile.capture.resume import Recipe, ResumePoint, recipe_of
from dynacompile.capture.values.base import NULL, IteratorValue, Value
from dynacompile.capture.values.cells import UNBOUND, CellValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ExitValue
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.object_parts import InstanceDict
from dynacompile.capture.values.positions import StateValue, can_hand_on
from dynacompile.capture.values.references import MadeReference, is_variable, may_end
from dynacompile.cpython.instructions import Handler, Instr
from dynacompile.ir.guard_facts import is_a
from dynacompile.ir.source import Source

# Instructions that residual code can run in the frame's stead, by how many values they take from the stack.
COUNTS = {
    0: "LOAD_GLOBAL",
    1: "POP_TOP LOAD_ATTR LOAD_METHOD DELETE_ATTR UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT GET_ITER UNPACK_SEQUENCE UNPACK_EX BEFORE_WITH "
    "STORE_GLOBAL POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP TO_BOOL CONVERT_VALUE",
    2: "BINARY_OP COMPARE_OP IS_OP CONTAINS_OP BINARY_SUBSCR DELETE_SUBSCR STORE_ATTR IMPORT_NAME",
    3: "LOAD_SUPER_ATTR STORE_SUBSCR BINARY_SLICE",
    4: "STORE_SLICE",
}
OPERANDS: dict[str, Callable[[int], int]] = {
    **{name: lambda arg, count=count: count for count, names in COUNTS.items() for name in names.split()},  # type: ignore[misc]
    "CALL": lambda arg: arg + 2,
    "CALL_FUNCTION_EX": lambda arg: 3 + (arg & 1),
    "FORMAT_VALUE": lambda arg: 2 if arg & 4 else 1,
    "FOR_ITER": lambda arg: 1,
    "RAISE_VARARGS": lambda arg: arg,
    "LOAD_DEREF": lambda arg: 0,
    "DELETE_DEREF": lambda arg: 0,
    "BUILD_SET": lambda arg: arg,
    "BUILD_MAP": lambda arg: 2 * arg,
    "LIST_EXTEND": lambda arg: arg + 1,
    "SET_UPDATE": lambda arg: arg + 1,
    "DICT_UPDATE": lambda arg: arg + 1,
}
GOES_ON = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "END_FOR")  # and does nothing else
READS_CELLS = ("LOAD_DEREF", "DELETE_DEREF")  # and raise where one has no value
KEEP_ON_JUMP = ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")


MODE_CODE = "context-manager"  # of breaks after which Python changes a mode of torch


def can_execute(instr: Instr) -> bool:
    return instr.op in OPERANDS


def refuse_dicts_of_objects(values: Sequence[Value]) -> None:
    """The resume function would take the `__dict__` of an object for a dict of its own."""
    for value in reached(values):
        if isinstance(value, InstanceDict):
            raise unsupported("rebuild", f"{value.describe()}, which is used after the graph break,")


def refuse_let_go(frame: SymbolicFrame, needed: Sequence[Value]) -> None:
    """A weak reference is used after the break, and its object is held by a variable alone that is not, which Python would keep until the frame ends."""
    for value in needed:
        if not isinstance(value, MadeReference) or not may_end(frame.cx, value.owner) or value.owner in needed:
            continue
        if any(slot is value.owner or is_variable(slot, value.owner) for slot in frame.slots):
            raise unsupported(LIFETIME, "what a weak reference to an object of the frame refers to")


def finish_break(frame: SymbolicFrame, execute: bool, code: str) -> Ending:
    """The residual code of a frame that stops before `frame.current`; execute: it runs that instruction itself. code: of the break."""
    cx, instr = frame.cx, frame.current
    taken = OPERANDS[instr.op](instr.arg) if execute else 0
    lower, operands = split(frame.stack, taken)
    handler = frame.decoded.handler_of(instr) if execute else None
    exceptions = handled(frame.stack, cx.handling)
    alone = private([*left(frame, points_after(frame, instr, execute, handler, [])), *frame.stack, *cx.effects.values()])
    refuse_unbound(frame, points_after(frame, instr, execute, handler, []))
    made = made_by_resume(lower, alone, code == MODE_CODE)
    refuse_open(cx, made.blocks)
    base, parts = stack_entries(lower, made, exceptions)
    below, kept = flat(parts), flat(parts[: handler.depth]) if handler is not None else []
    points = points_after(frame, instr, execute, handler, base)
    slots = sorted({slot for point in points for slot in point.slots})
    local_values = {slot: frame.slots[slot] for slot in slots}
    states = [part for value in below if isinstance(value, StateValue) for part in value.children()]
    needed = [v for v in (*local_values.values(), *below, *states, *operands) if v is not None]
    keeps = decide_cells(cx, needed, bool(frame.code.co_cellvars))
    refuse_dicts_of_objects([v for v in (*local_values.values(), *below) if v is not None])
    needed_now = [*needed, *cx.effects.values()]
    refuse_let_go(frame, reached(needed_now))
    frame.refuse_pending([*reached(needed_now), *unfolded(lower, alone)])
    targets = [target(cx.codes, frame.decoded, point) for point in points]
    final_mode = cx.modes.is_grad_enabled()
    outputs = outputs_in([*needed_now, *cx.effects.asked()])

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        out.position = instr.position
        start(cx, out, roots, outputs, needed, True)
        enter_blocks(out, frame.entry_grad_mode, made.blocks, final_mode)
        if execute:
            enter_handlers(out, [value for value in exceptions.values() if value is not None])
        for operand in operands:
            out.value(operand)
        cx.effects.modes.restore(out)
        for name in spent(frame, out.cells):
            out.local("DELETE_FAST", name)
        tail = Tail(out, frame, local_values, below, out.temps(), [block for block in made.blocks if block in made.again])
        if not execute:
            tail.go_on(targets[0], [])
        elif handler is not None:
            tail.run_handled(instr, targets, kept)
        elif any(v.is_pending() for v in reached(below)):
            tail.run_letting_go(instr, targets)
        else:
            tail.run_instruction(instr, targets, not lower)

    return Ending(outputs, keeps, emit, [code for to in targets for code in to.codes()])


@dataclass
class Tail:
    """Writes how a frame goes on. No variable of the residual code keeps what Python would have dropped while the rest runs.

    local_values: the live variables by slot. below: the stack under the operands. temps: variables of the residual code's own that are set.
    again: with blocks that the resume function enters again, outermost first.
    """

    out: Builder
    frame: SymbolicFrame
    local_values: dict[int, Value | None]
    below: list[Value]
    temps: list[str]
    again: list[ExitValue]

    def run_instruction(self, instr: Instr, targets: list[Target], is_bare: bool) -> Instr:
        """The breaking instruction itself, and what follows each of its outcomes; returns it as emitted.

        Its operands are on the stack; is_bare: nothing else was.
        """
        out, frame = self.out, self.frame
        if instr.op == "FOR_ITER":
            branch = out.emit(instr.op, 0)
            item, iterator = store_temp(out), store_temp(out)
            self.go_on(targets[0], [iterator, item])
            branch.target = out.emit("END_FOR")
            self.go_on(targets[1], [])
            return branch
        if instr.target is not None:
            branch = out.emit(instr.op, 0)
            self.go_on(targets[0], [])
            branch.target = out.emit("NOP")
            kept = [store_temp(out)] if instr.op in KEEP_ON_JUMP else []
            self.go_on(targets[1], kept)
            return branch
        told = self.tell_of_local(instr)
        if instr.op == "CALL":
            out.call(instr.arg, frame.kw_names)
        elif instr.op == "LOAD_METHOD":
            out.emit("LOAD_ATTR", instr.arg)
        elif instr.op in READS_CELLS:
            out.emit(f"{instr.op} by name", instr.arg)
        elif pushes_callable(instr):
            out.emit(instr.op, instr.arg & ~1)
        else:
            out.emit(instr.op, instr.arg)
        done = out.instrs[-1]
        if told is not None:
            out.handlers.append(Handler(done, done, told[0], out.handling, False))
            done = told[1]
        if not targets:
            return done
        if is_bare and returns_next(frame, instr):
            out.emit("RETURN_VALUE")
            return done
        if drops_result(frame, instr):
            out.emit("POP_TOP")
        pushed = 0 if drops_result(frame, instr) else pushed_by(instr)
        stack = targets[0].point.stack
        flags = stack[len(stack) - pushed :]
        self.go_on(targets[0], [store_temp(out) for null in reversed(flags) if not null][::-1])
        return done

    def tell_of_local(self, instr: Instr) -> tuple[Instr, Instr] | None:
        """The first and the last instruction of a handler, ahead of `instr`, where that one reads a closure variable of the frame itself, which is a free
        variable of the resume function: without a value Python would raise the error of those there."""
        name = self.frame.decoded.slots[instr.arg] if instr.op in READS_CELLS else ""
        if name in self.frame.code.co_cellvars or name not in self.frame.cx.codes.cellvars(self.frame.decoded):
            return None
        out = self.out
        over = out.emit("JUMP_FORWARD")
        first = out.emit("POP_TOP")
        out.callee(UnboundLocalError)
        out.const(UNBOUND.format(name))
        out.call(1)
        last = out.emit("RAISE_VARARGS", 1)
        over.target = out.emit("NOP")
        return first, last

    def run_handled(self, instr: Instr, targets: list[Target], kept: list[Value]) -> None:
        """The instruction, where the frame handles what it raises: the last target is the handler. kept: the stack that is left for it."""
        out, first = self.out, len(self.out.instrs)
        last = self.run_instruction(instr, targets[:-1], False)
        label = out.emit("PUSH_EXC_INFO")
        caught = store_temp(out)
        out.emit("POP_EXCEPT")
        self.below = kept
        self.go_on(targets[-1], [caught])
        out.handlers.append(Handler(out.instrs[first], last, label, out.handling, False))

    def run_letting_go(self, instr: Instr, targets: list[Target]) -> None:
        """The instruction, where an exception that leaves the frame ends generators on its stack: the traceback would keep them otherwise."""
        out, first = self.out, len(self.out.instrs)
        last = self.run_instruction(instr, targets, False)
        label = len(out.instrs)
        self.let_go()
        out.emit("RERAISE", 0)
        out.handlers.append(Handler(out.instrs[first], last, out.instrs[label], 0, False))

    def let_go(self, also: Sequence[str] = ()) -> None:
        for name in (*self.temps, *also):
            self.out.local("DELETE_FAST", name)

    def go_on(self, to: Target, temps: list[str]) -> None:
        """Calls the resume function and returns its result. temps: variables with the values on top of the stack."""
        for block in reversed(self.again):
            with self.out.calling():
                self.out.value(block)
            self.out.tuple_of([ConstantValue(None)] * 3)
            self.out.emit("CALL_FUNCTION_EX", 0)
            self.out.emit("POP_TOP")
        left = set(self.out.params) - set(spent(self.frame, self.out.cells)) - set(self.out.cells)
        passed = (self.frame.decoded.slots[slot] for slot in to.point.slots)
        gone = [*self.temps, *temps, *(name for name in passed if name in left)]
        go_on(self.out, self.frame.decoded, to, self.local_values, self.below, temps, gone)


def split(stack: list[Value], count: int) -> tuple[list[Value], list[Value]]:
    return (stack[:-count], stack[-count:]) if count else (list(stack), [])


def pushed_by(instr: Instr) -> int:
    if instr.op == "CALL":
        return 1
    if pushes_callable(instr):
        return 2
    return OPERANDS[instr.op](instr.arg) + TABLE[instr.op].height(instr.arg, False)


def private(values: Iterable[Value | None]) -> Callable[[Value], bool]:
    """Whether a value is used at one place alone, of those that the values lead to."""
    uses: Counter[Value] = Counter()
    work = [v for v in values if v is not None]
    while work:
        value = work.pop()
        uses[value] += 1
        if uses[value] == 1 and not is_loadable(value):
            work.extend([*value.children(), *(v for v in [value.referred()] if v is not None)])
    return lambda value: uses[value] <= 1


def stack_entries(stack: list[Value], made: Made, exceptions: Mapping[Value, ExceptionValue | None]) -> tuple[list[bool | Recipe], list[list[Value]]]:
    """How the resume function gets each value of the stack, and the values to pass for it. Iterators of loops that nobody else has, and some with
    blocks, it makes itself, so that capture can follow them. exceptions: those that are handled, by what a handler keeps on the stack."""
    entries: list[bool | Recipe] = []
    passed: list[list[Value]] = []
    for value in stack:
        caught = exceptions.get(value)
        if caught is not None:
            own: tuple[Recipe, list[Value]] | None = (HANDLED, [caught])
        elif isinstance(value, IteratorValue):
            own = recipe_of(value) if can_hand_on(value, made.alone) else None
        else:
            own = made.recipe_of(value)
        entry, values = (value is NULL, [] if value is NULL else [value]) if own is None else own
        entries.append(entry)
        passed.append(values)
    return entries, passed


def flat(parts: Iterable[Sequence[Value]]) -> list[Value]:
    return [value for values in parts for value in values]


def points_after(frame: SymbolicFrame, instr: Instr, execute: bool, handler: Handler | None, base: list[bool | Recipe]) -> list[ResumePoint]:
    """Where the frame can go on; the last of them is the handler of what the instruction raises, where there is one."""
    points = resume_points(frame, instr, execute, base)
    return points if handler is None else [*points, handler_point(frame, handler, base[: handler.depth])]


def refuse_unbound(frame: SymbolicFrame, points: Sequence[ResumePoint]) -> None:
    """A closure variable of the frame is a free one of the resume function: reading one without a value, Python would raise another error there, were that
    function left to Python. In a resume function nothing is won by a refusal."""
    own = frame.code.co_cellvars
    for slot, cell in enumerate(frame.slots):
        if isinstance(cell, CellValue) and cell.content is None and cell.name in own:
            if any(frame.decoded.may_read_cell(slot, frame.decoded.instrs[point.index]) for point in points):
                raise unsupported("rebuild", f"the closure variable {cell.name!r}, which has no value,")


def left(frame: SymbolicFrame, points: Sequence[ResumePoint]) -> list[Value | None]:
    """What the variables hold that are not over."""
    live = {slot for point in points for slot in point.slots}
    return [value for slot, value in enumerate(frame.slots) if slot in live or isinstance(value, CellValue)]


def resume_points(frame: SymbolicFrame, instr: Instr, execute: bool, base: list[bool | Recipe]) -> list[ResumePoint]:
    """Where the frame can go on: one point, two for a branch, none after a raise."""
    if not execute:
        return [point_at(frame, instr.index, base)]
    if instr.op == "RAISE_VARARGS":
        return []
    if instr.op == "FOR_ITER":
        return [point_at(frame, instr.index + 1, [*base, False, False]), point_at(frame, instr.target.index, base)]  # type: ignore[union-attr]
    if instr.target is not None:
        kept: list[bool | Recipe] = [False] if instr.op in KEEP_ON_JUMP else []
        return [point_at(frame, instr.index + 1, base), point_at(frame, instr.target.index, base + kept)]
    if drops_result(frame, instr):
        return [point_at(frame, instr.index + 2, base)]
    flags: list[bool | Recipe] = with_null(False, True) if pushes_callable(instr) else [False] * pushed_by(instr)
    return [point_at(frame, instr.index + 1, base + flags)]


def pushes_callable(instr: Instr) -> bool:
    """Whether it pushes what a call will take: a callable and NULL."""
    return instr.op == "LOAD_METHOD" or instr.op in ("LOAD_GLOBAL", "LOAD_SUPER_ATTR") and bool(instr.arg & 1)


def point_at(frame: SymbolicFrame, index: int, entries: Sequence[bool | Recipe]) -> ResumePoint:
    decoded, code = frame.decoded, frame.code
    seen: set[int] = set()
    while decoded.instrs[index].op in GOES_ON and index not in seen:  # so that one place has one resume function
        seen.add(index)
        to = decoded.instrs[index].target
        index = index + 1 if to is None else to.index
    live = {s for s in decoded.live_slots(decoded.instrs[index]) if frame.slots[s] is not None}
    live |= {s for s, value in enumerate(frame.slots) if value is not None and (value.ends_late() or is_referred_to(value))}
    if "__class__" in code.co_freevars and code.co_argcount and frame.slots[0] is not None:  # super() looks at the first parameter
        if not isinstance(frame.slots[0], CellValue):
            live.add(0)
        elif calls_super(decoded):
            raise unsupported("rebuild", "the first parameter, which is a closure variable, for super()")
    return ResumePoint(index, tuple(sorted(live)), tuple(entries))


def is_referred_to(value: Value) -> bool:
    """Whether a weak reference, or a proxy, tells how long an object lives that was there before the frame."""
    real = getattr(value, "real", None)
    return real is not None and not is_a(real, KEPT_BY_OTHERS) and bool(weakref.getweakrefcount(real))


KEPT_BY_OTHERS = (type, types.FunctionType, types.ModuleType, torch.Tensor, torch.nn.Module)


def calls_super(decoded: Decoded) -> bool:
    """Whether the code calls super() without arguments as a function; CPython 3.12 reads an attribute of it without that."""
    names = decoded.code.co_names
    pairs = zip(decoded.instrs, decoded.instrs[1:])
    return any(one.op == "LOAD_GLOBAL" and names[one.arg >> 1] == "super" and after.op == "CALL" and not after.arg for one, after in pairs)


def handler_point(frame: SymbolicFrame, handler: Handler, entries: Sequence[bool | Recipe]) -> ResumePoint:
    """Where the frame goes on when the instruction that the residual code runs for it raises."""
    point = point_at(frame, handler.target.index, entries)
    return ResumePoint(point.index, point.slots, point.stack, handler.lasti)


def enter_blocks(out: Builder, mode: bool, blocks: Sequence[ExitValue], final_mode: bool) -> None:
    """Enters the managers of the with blocks around the break, outermost first."""
    modes = [pair for block in blocks if (pair := block.context.grad_modes()) is not None]
    wanted = modes[0][0] if modes else final_mode
    if wanted != mode:
        out.grad_mode(wanted)
    if any(pair[1] != after for pair, after in zip(modes, [*(before for before, _ in modes[1:]), final_mode])):
        raise unsupported("in-block", "grad mode was changed inside of the block")
    for block in blocks:
        out.prepare(block)


def returns_next(frame: SymbolicFrame, instr: Instr) -> bool:
    return frame.decoded.instrs[instr.index + 1].op == "RETURN_VALUE" and pushed_by(instr) == 1


def drops_result(frame: SymbolicFrame, instr: Instr) -> bool:
    """A statement of a call: the next instruction throws the result away, and nothing jumps between the two."""
    return instr.op == "CALL" and frame.decoded.instrs[instr.index + 1].op == "POP_TOP"
