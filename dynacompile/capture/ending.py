"""How a captured frame ends: with its return, or at a break that Python runs and a resume function follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType

import torch

from dynacompile.capture.assemble import assemble
from dynacompile.capture.breaks import unsupported
from dynacompile.capture.bytecode import PY312, Handler, Instr, Position
from dynacompile.capture.interpreter import GeneratorValue, SymbolicFrame
from dynacompile.capture.opcodes import TABLE
from dynacompile.capture.residual import Builder, is_loadable, outputs_in
from dynacompile.capture.resume import Recipe, ResumePoint, recipe_of, resume_code
from dynacompile.capture.trace import Trace
from dynacompile.capture.values.base import NULL, IteratorValue, Value
from dynacompile.capture.values.contexts import ExitValue, GradModeContext
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import CellValue
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.ir.source import Source

# Instructions that residual code can run in the frame's stead, by how many values they take from the stack.
COUNTS = {
    0: "LOAD_GLOBAL",
    1: "LOAD_ATTR LOAD_METHOD DELETE_ATTR UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT GET_ITER UNPACK_SEQUENCE UNPACK_EX BEFORE_WITH STORE_GLOBAL "
    "POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP",
    2: "BINARY_OP COMPARE_OP IS_OP CONTAINS_OP BINARY_SUBSCR DELETE_SUBSCR STORE_ATTR IMPORT_NAME",
    3: "LOAD_SUPER_ATTR STORE_SUBSCR BINARY_SLICE",
    4: "STORE_SLICE",
}
OPERANDS: dict[str, Callable[[int], int]] = {
    **{name: lambda arg, count=count: count for count, names in COUNTS.items() for name in names.split()},  # type: ignore[misc]
    "CALL": lambda arg: arg + 2,
    "CALL_FUNCTION_EX": lambda arg: 3 + (arg & 1),
    "FORMAT_VALUE": lambda arg: 2 if arg & 4 else 1,
    "RAISE_VARARGS": lambda arg: arg,
    "BUILD_SET": lambda arg: arg,
    "BUILD_MAP": lambda arg: 2 * arg,
    "LIST_EXTEND": lambda arg: arg + 1,
    "SET_UPDATE": lambda arg: arg + 1,
    "DICT_UPDATE": lambda arg: arg + 1,
}
KEEP_ON_JUMP = ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")


MAX_UNROLLED = 16  # a break in a loop nests one call per iteration that is left


def is_short_loop(frame: SymbolicFrame) -> bool:
    """Whether the one loop that the frame is in has few, known iterations left."""
    iterators = [v for v in frame.stack if isinstance(v, IteratorValue)]
    left = iterators[0].remaining() if len(iterators) == 1 else None
    return left is not None and left <= MAX_UNROLLED


def can_execute(instr: Instr) -> bool:
    return instr.op in OPERANDS


@dataclass
class Ending:
    """outputs: tensors the graph returns. emit: writes the residual code; takes the roots of the graph's inputs, None where there is no graph."""

    outputs: list[TensorValue]
    keeps_cells: bool
    emit: Callable[[Builder, Sequence[Source] | None], None]
    resumes: list[CodeType] = field(default_factory=list)


def start(cx: Trace, out: Builder, roots: Sequence[Source] | None, outputs: list[TensorValue], values: list[Value], keep: bool) -> None:
    """Calls the graph, builds all values that later effects could change, and replays the effects. keep: build them in any case."""
    out.outputs = {value: i for i, value in enumerate(outputs)}
    if roots is not None:
        out.call_graph(roots, cx.recorder.uncounted())
    stored = cx.effects.values()
    out.count([*values, *stored])
    if stored or keep:
        for value in (*stored, *values):
            if not isinstance(value, ExitValue):
                out.prepare(value)
    cx.effects.replay(out)


def decide_cells(cx: Trace, values: Sequence[Value], forced: bool) -> bool:
    """Whether the residual code needs the frame's own cells, since something that outlives the frame holds one."""
    cx.effects.own_cells = forced or any(isinstance(v, CellValue) and v.slot is not None for v in reached([*values, *cx.effects.values()]))
    return cx.effects.own_cells


def reached(values: Sequence[Value]) -> list[Value]:
    seen: dict[Value, None] = {}
    work = list(values)
    while work:
        value = work.pop()
        if value not in seen:
            seen[value] = None
            work.extend(() if is_loadable(value) else value.children())
    return list(seen)


def finish_return(cx: Trace, frame: SymbolicFrame, value: Value) -> Ending:
    frame.refuse_pending(reached([value, *cx.effects.values()]))
    before = frame.entry_grad_mode
    after = torch.is_grad_enabled()
    keeps = decide_cells(cx, [value], False)
    outputs = outputs_in([value, *cx.effects.values()])

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        start(cx, out, roots, outputs, [value], False)
        if after != before:
            out.grad_mode(after)
        out.value(value)
        out.emit("RETURN_VALUE")

    return Ending(outputs, keeps, emit)


def finish_raise(cx: Trace, frame: SymbolicFrame, value: ExceptionValue) -> Ending:
    """The exception leaves the frame: effects first, then it is raised through code that stands for the inlined frames, for its traceback."""
    frame.refuse_pending()
    before, after = frame.entry_grad_mode, torch.is_grad_enabled()
    made = list(value.children()) if value.source is None else [value]
    keeps = decide_cells(cx, made, False)
    outputs = outputs_in([*made, *cx.effects.values()])
    (_, position), *inner = value.trail

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        start(cx, out, roots, outputs, [v for v in made if not isinstance(v, ExceptionValue)], True)
        if after != before:
            out.grad_mode(after)
        out.position = position
        if inner:
            out.push_null()
            out.const(raising_code(inner))
            out.emit("MAKE_FUNCTION", 0)
        value.rebuild_chain(out)
        if inner:
            out.call(1)
        out.emit("RAISE_VARARGS", 1)

    return Ending(outputs, keeps, emit)


def raising_code(trail: Sequence[tuple[CodeType, Position]]) -> CodeType:
    """A function that raises its argument, by way of one that stands for the next frame of the trail."""
    (code, position), *inner = trail
    consts = (raising_code(inner),) if inner else (None,)
    instrs = [Instr("RESUME", 0, None, position)]
    if inner:
        instrs += [Instr(op, 0, None, position) for op in ("PUSH_NULL", "LOAD_CONST", "MAKE_FUNCTION")]
    instrs.append(Instr("LOAD_FAST", 0, None, position))
    if inner:
        instrs += [Instr(op, 1, None, position) for op in (("CALL",) if PY312 else ("PRECALL", "CALL"))]
    instrs.append(Instr("RAISE_VARARGS", 1, None, position))
    fields = {"co_varnames": ("exception",), "co_cellvars": (), "co_freevars": (), "co_names": (), "co_consts": consts}
    return assemble(code, instrs, (), co_argcount=1, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=OPTIMIZED, **fields)


OPTIMIZED = 0x1 | 0x2  # locals in slots, and of its own


def finish_break(cx: Trace, frame: SymbolicFrame, execute: bool) -> Ending:
    """The residual code of a frame that stops before `frame.current`; execute: it runs that instruction itself."""
    instr = frame.current
    taken = OPERANDS[instr.op](instr.arg) if execute else 0
    lower, operands = split(frame.stack, taken)
    base, below = stack_entries(frame, instr, lower)
    points = resume_points(frame, instr, execute, base)
    handler = frame.decoded.handler_of(instr) if execute else None
    unwound, kept = stack_entries(frame, instr, lower[: handler.depth]) if handler is not None else ([], [])
    if handler is not None:
        points.append(handler_point(frame, handler, unwound))
    slots = sorted({slot for point in points for slot in point.slots})
    local_values = {slot: frame.slots[slot] for slot in slots}
    needed = [v for v in (*local_values.values(), *below, *operands) if v is not None]
    keeps = decide_cells(cx, needed, bool(frame.code.co_cellvars))
    needed_now = [*needed, *cx.effects.values()]
    frame.refuse_pending(reached(needed_now))
    resumes = [resume_code(cx.codes, frame.decoded, point) for point in points]
    final_mode = torch.is_grad_enabled()

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        out.position = instr.position
        start(cx, out, roots, outputs, needed, True)
        enter_blocks(out, frame.entry_grad_mode, below, final_mode)
        for operand in operands:
            out.value(operand)
        if not execute:
            go_on(out, points[0], resumes[0], local_values, below, [])
            return
        first = len(out.instrs)
        if handler is None:
            run_instruction(out, frame, instr, points, resumes, local_values, below, not lower)
            return
        last = run_instruction(out, frame, instr, points[:-1], resumes, local_values, below, False)
        label = out.emit("PUSH_EXC_INFO")
        caught = store_temp(out)
        out.emit("POP_EXCEPT")
        go_on(out, points[-1], resumes[-1], local_values, kept, [caught])
        out.handlers.append(Handler(out.instrs[first], last, label, 0, False))

    outputs = outputs_in(needed_now)
    return Ending(outputs, keeps, emit, resumes)


def split(stack: list[Value], count: int) -> tuple[list[Value], list[Value]]:
    return (stack[:-count], stack[-count:]) if count else (list(stack), [])


def pushed_by(instr: Instr) -> int:
    if instr.op == "CALL":
        return 1
    if instr.op in ("LOAD_METHOD",):
        return 2
    return OPERANDS[instr.op](instr.arg) + TABLE[instr.op].height(instr.arg, False)


def stack_entries(frame: SymbolicFrame, instr: Instr, stack: list[Value]) -> tuple[list[bool | Recipe], list[Value]]:
    """How the resume function gets the stack, and the values to pass for it. Iterators of loops are made anew, so that the loop can be followed."""
    entries: list[bool | Recipe] = []
    passed: list[Value] = []
    in_loop = bool(frame.decoded.loop_heads(instr)) and instr.op != "FOR_ITER"
    for value in stack:
        if in_loop and isinstance(value, IteratorValue) and not isinstance(value, GeneratorValue):
            recipe, leaves = recipe_of(value)
            entries.append(recipe)
            passed += leaves
        else:
            entries.append(value is NULL)
            passed += [] if value is NULL else [value]
    return entries, passed


def resume_points(frame: SymbolicFrame, instr: Instr, execute: bool, base: list[bool | Recipe]) -> list[ResumePoint]:
    """Where the frame can go on: one point, two for a branch, none after a raise."""
    if not execute:
        return [point_at(frame, instr.index, base)]
    if instr.op == "RAISE_VARARGS":
        return []
    if instr.target is not None:
        kept: list[bool | Recipe] = [False] if instr.op in KEEP_ON_JUMP else []
        return [point_at(frame, instr.index + 1, base), point_at(frame, instr.target.index, base + kept)]
    if drops_result(frame, instr):
        return [point_at(frame, instr.index + 2, base)]
    flags: list[bool | Recipe] = [False] * pushed_by(instr)
    if is_method_load(instr) or instr.op == "LOAD_GLOBAL" and instr.arg & 1:
        flags[-2] = True
    return [point_at(frame, instr.index + 1, base + flags)]


def is_method_load(instr: Instr) -> bool:
    return instr.op == "LOAD_METHOD" or PY312 and instr.op in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(instr.arg & 1)


def point_at(frame: SymbolicFrame, index: int, entries: Sequence[bool | Recipe]) -> ResumePoint:
    decoded, code = frame.decoded, frame.code
    live = {s for s in decoded.live_slots(decoded.instrs[index]) if frame.slots[s] is not None}
    if "__class__" in code.co_freevars and code.co_argcount and frame.slots[0] is not None:  # super() looks at the first parameter
        if not isinstance(frame.slots[0], CellValue):
            live.add(0)
        elif not PY312 and "super" in code.co_names:
            raise unsupported("rebuild", "the first parameter, which is a closure variable, for super()")
    return ResumePoint(index, tuple(sorted(live)), tuple(entries))


def handler_point(frame: SymbolicFrame, handler: Handler, entries: Sequence[bool | Recipe]) -> ResumePoint:
    """Where the frame goes on when the instruction that the residual code runs for it raises."""
    point = point_at(frame, handler.target.index, entries)
    return ResumePoint(point.index, point.slots, point.stack, handler.lasti)


def enter_blocks(out: Builder, mode: bool, below: list[Value], final_mode: bool) -> None:
    """Enters the managers of the with blocks around the break, outermost first."""
    blocks = [v for v in below if isinstance(v, ExitValue)]
    grads = [b.context for b in blocks if isinstance(b.context, GradModeContext)]
    wanted = bool(grads[0].before) if grads else final_mode
    if wanted != mode:
        out.grad_mode(wanted)
    if grads and grads[-1].mode != final_mode:
        raise unsupported("in-block", "grad mode was changed inside of the block")
    for block in blocks:
        out.prepare(block)


def run_instruction(
    out: Builder,
    frame: SymbolicFrame,
    instr: Instr,
    points: list[ResumePoint],
    resumes: list[CodeType],
    local_values: dict[int, Value | None],
    below: list[Value],
    is_bare: bool,
) -> Instr:
    """The breaking instruction itself, and what follows each of its outcomes; returns it as emitted.

    Its operands are on the stack; is_bare: nothing else was.
    """
    if instr.target is not None:
        branch = out.emit(instr.op, 0)
        go_on(out, points[0], resumes[0], local_values, below, [])
        label = out.emit("NOP")
        branch.target = label
        kept = [store_temp(out)] if instr.op in KEEP_ON_JUMP else []
        go_on(out, points[1], resumes[1], local_values, below, kept)
        return branch
    if instr.op == "CALL":
        out.call(instr.arg, frame.kw_names)
    elif is_method_load(instr):
        out.emit("LOAD_ATTR" if instr.op == "LOAD_METHOD" else instr.op, instr.arg if instr.op == "LOAD_METHOD" else instr.arg & ~1)
    else:
        out.emit(instr.op, instr.arg)
    done = out.instrs[-1]
    if not points:
        return done
    if is_bare and returns_next(frame, instr):
        out.emit("RETURN_VALUE")
        return done
    if drops_result(frame, instr):
        out.emit("POP_TOP")
    pushed = 0 if drops_result(frame, instr) else pushed_by(instr)
    flags = points[0].stack[len(points[0].stack) - pushed :]
    if instr.op == "LOAD_GLOBAL" and instr.arg & 1:
        out.instrs[-1].arg &= ~1
    temps = [store_temp(out) for null in reversed(flags) if not null][::-1]
    go_on(out, points[0], resumes[0], local_values, below, temps)
    return done


def returns_next(frame: SymbolicFrame, instr: Instr) -> bool:
    return frame.decoded.instrs[instr.index + 1].op == "RETURN_VALUE" and pushed_by(instr) == 1


def drops_result(frame: SymbolicFrame, instr: Instr) -> bool:
    """A statement of a call: the next instruction throws the result away, and nothing jumps between the two."""
    return instr.op == "CALL" and frame.decoded.instrs[instr.index + 1].op == "POP_TOP"


def store_temp(out: Builder) -> str:
    name = out.new_temp()
    out.local("STORE_FAST", name)
    return name


def go_on(out: Builder, point: ResumePoint, code: CodeType, local_values: dict[int, Value | None], below: list[Value], temps: list[str]) -> None:
    """Calls the resume function and returns its result."""
    out.push_null()
    closure = (*out.code.co_cellvars, *out.code.co_freevars)
    for name in closure:
        out.emit("LOAD_CLOSURE by name", out.original_slot(name))
    if closure:
        out.emit("BUILD_TUPLE", len(closure))
    out.const(code)
    out.emit("MAKE_FUNCTION", 8 if closure else 0)
    count = 0
    for slot in point.slots:
        out.value(local_values[slot])  # type: ignore[arg-type]
        count += 1
    for value in below:
        out.value(value)
        count += 1
    for temp in temps:
        out.local("LOAD_FAST", temp)
        count += 1
    out.call(count)
    out.emit("RETURN_VALUE")
