"""Resume functions: the rest of a frame after a break, as a function of its live locals and its stack."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from dynacompile.capture.assemble import assemble
from dynacompile.capture.bytecode import (
    CELL_OPS,
    LOOP_SUFFIX,
    RESUME_PREFIX,
    SLOT_OPS,
    STACK_PREFIX,
    CodeCache,
    Decoded,
    Origin,
    reachable,
)
from dynacompile.capture.calling import CallWriter
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.positions import hand_on, positioned
from dynacompile.cpython.instructions import NOWHERE, Handler, Instr, Position
from dynacompile.errors import VerifyError

# flags that a resume function keeps: OPTIMIZED, NEWLOCALS, NESTED and the future imports; not *args, **kwargs
GENERATOR = 0x20
KEPT_FLAGS = 0x1 | 0x2 | 0x10 | 0xFFE0000


@dataclass(frozen=True)
class Recipe:
    """A value that the resume function makes itself, from parameters: steps are (instruction, argument), the argument of LEAF counting parameters."""

    steps: tuple[tuple[str, Any], ...]

    @property
    def is_loop(self) -> bool:
        """Whether it makes the iterator of a loop."""
        return any(arg is positioned for _, arg in self.steps)


@dataclass(frozen=True)
class ResumePoint:
    """index: the instruction to go on with. slots: live locals, by localsplus index.

    lasti: where it is no None, `index` is that of a handler for an exception, the last parameter; this is the handler's flag.
    stack: for each value on the stack, False for a parameter, True for a NULL, or how it is made.
    generates: the frame is a generator's, and `index` is the yield that it is suspended at: the first value is to be thrown away.
    ends: the innermost loop has nothing left. That is the same code as where it has, but an object of its own, with entries of its own.
    """

    index: int
    slots: tuple[int, ...]
    stack: tuple[bool | Recipe, ...]
    lasti: bool | None = None
    generates: bool = False
    ends: bool = False


class RecipeWriter(CallWriter):
    """Takes the place of a residual Builder in `Value.rebuild`, for iterators: what they are made of becomes parameters."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Any]] = []
        self.leaves: list[Value] = []

    def value(self, value: Value) -> None:
        if isinstance(value, IteratorValue):
            hand_on(value, self)
        else:
            self.leaf(value)

    def leaf(self, value: Value) -> None:
        self.steps.append(("LEAF", len(self.leaves)))
        self.leaves.append(value)

    def const(self, value: Hashable) -> None:
        self.steps.append(("LOAD_CONST", value))

    def push_null(self) -> None:
        self.steps.append(("PUSH_NULL", 0))

    def call(self, count: int) -> None:
        self.steps.append(("CALL", count))

    def tuple_of(self, count: int) -> None:
        self.steps.append(("BUILD_TUPLE", count))

    def call_function(self, function: Hashable, args: Sequence[Value]) -> None:
        self.callee(function)
        for arg in args:
            self.value(arg)
        self.call(len(args))


def recipe_of(value: IteratorValue) -> tuple[Recipe, list[Value]]:
    writer = RecipeWriter()
    writer.value(value)
    return Recipe(tuple(writer.steps)), writer.leaves


def resume_code(codes: CodeCache, decoded: Decoded, point: ResumePoint) -> CodeType:
    """The code object that goes on at `point`: parameters are the live locals, then the stack values that are no NULL.

    A resume function's own breaks are looked up in the function that it is a part of: a loop comes back to the code that it came from.
    Cells of the original frame are free variables of the resume function, before the original free variables.
    """
    decoded, point = in_whole(codes, decoded, point)
    known = codes.known(decoded.code)
    found = known.resumes.get(point)
    if found is None:
        found, indices = build(decoded, point)
        codes.known(found).origin = Origin(decoded, codes.cellvars(decoded), indices)
        known.resumes[point] = found
    return found


def in_whole(codes: CodeCache, decoded: Decoded, point: ResumePoint) -> tuple[Decoded, ResumePoint]:
    """A point of a resume function as one of the function that it is a part of, where that has it and is still there."""
    origin = codes.origin(decoded)
    if origin is None or origin.whole.reference() is None:
        return decoded, point
    index = origin.indices[point.index]
    names = [decoded.slots[slot] for slot in point.slots]
    if index is None or any(name not in origin.whole.slots for name in names):
        return decoded, point
    return origin.whole, replace(point, index=index, slots=tuple(sorted(origin.whole.slots.index(name) for name in names)))


def arguments(code: CodeType, decoded: Decoded, slots: Sequence[int]) -> list[int]:
    """The slots of `decoded` in the order of the parameters of a resume function that takes them."""
    by_name = {decoded.slots[slot]: slot for slot in slots}
    return [by_name[name] for name in code.co_varnames[: len(slots)]]


def build(decoded: Decoded, point: ResumePoint) -> tuple[CodeType, tuple[int | None, ...]]:
    code = decoded.code
    start = decoded.instrs[point.index]
    alive = reachable(decoded.instrs, decoded.handlers, [start])
    passed = [decoded.slots[s] for s in point.slots]
    used = {i.arg for i in decoded.instrs if i.index in alive and i.op in SLOT_OPS}
    others = [n for i, n in enumerate(code.co_varnames) if i in used and i not in point.slots and n not in code.co_cellvars]
    fresh = (name for n in itertools.count() if (name := f"{STACK_PREFIX}{n}") not in passed and name not in others)
    entries = (*point.stack, *(() if point.lasti is None else (False,)))
    stack_names = [next(fresh) + (LOOP_SUFFIX if isinstance(entry, Recipe) and entry.is_loop else "") for entry in entries for _ in range(parameters_of(entry))]
    varnames = tuple(passed + stack_names + others)
    freevars = code.co_cellvars + code.co_freevars
    where = {name: i for i, name in enumerate(varnames)}

    def slot(index: int, is_cell: bool) -> int:
        if index >= decoded.first_free:
            return len(varnames) + len(code.co_cellvars) + index - decoded.first_free
        name = decoded.slots[index]
        if name in code.co_cellvars and is_cell:
            return len(varnames) + code.co_cellvars.index(name)
        return where[name]

    copies: dict[int, Instr] = {}
    for instr in decoded.instrs:
        if instr.index in alive and instr.op not in ("MAKE_CELL", "COPY_FREE_VARS"):
            arg = slot(instr.arg, instr.op in CELL_OPS) if instr.op in SLOT_OPS else instr.arg
            copies[instr.index] = Instr(instr.op, arg, None, instr.position)
    for index, copy in copies.items():
        target = decoded.instrs[index].target
        if target is not None:
            copy.target = copies[target.index]
    prologue = [Instr("COPY_FREE_VARS", len(freevars), None, NOWHERE)] if freevars else []
    if point.generates:
        prologue += [Instr("RETURN_GENERATOR", 0, None, start.position), Instr("POP_TOP", 0, None, start.position)]
    prologue.append(Instr("RESUME", 0, None, start.position))
    names = iter(stack_names)
    consts = list(code.co_consts)
    for entry in point.stack:
        if isinstance(entry, Recipe):
            prologue += recipe_instrs(entry, [where[next(names)] for _ in range(parameters_of(entry))], consts, start.position)
        else:
            prologue += [Instr("PUSH_NULL", 0, None, start.position)] if entry else moved(where[next(names)], start.position)
    body = [copies[i] for i in sorted(copies)]
    handlers = kept_handlers(decoded.handlers, copies)
    if point.lasti is not None:
        prologue += moved(where[next(names)], start.position)
        positions = (decoded.instrs[i].position for i in range(point.index, len(decoded.instrs)))
        # it was raised before: `raise` would give it another context, and its traceback an entry more
        raising = Instr("RERAISE", 0, None, next((p for p in positions if p[0] is not None), (code.co_firstlineno, None, None, None)))
        prologue.append(raising)
        handlers.append(Handler(raising, raising, copies[point.index], len(point.stack), point.lasti))
    elif body[0] is not copies[point.index]:
        prologue.append(Instr("JUMP_FORWARD", 0, copies[point.index], start.position))
    indices = (*(None for _ in prologue), *sorted(copies))
    base = re.sub(rf"^{RESUME_PREFIX}\d+ of (.*)>$", r"\1", code.co_qualname)
    made = assemble(
        code,
        prologue + body,
        handlers,
        co_consts=tuple(consts),
        co_varnames=varnames,
        co_cellvars=(),
        co_freevars=freevars,
        co_argcount=len(passed) + len(stack_names),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & (KEPT_FLAGS | GENERATOR if point.generates else KEPT_FLAGS),
        co_qualname=f"{RESUME_PREFIX}{start.line or code.co_firstlineno} of {base}>",
    )
    return made, indices


def moved(slot: int, position: Position) -> list[Instr]:
    """A parameter as a value of the stack alone: it ends where the frame before the break would have dropped it."""
    return [Instr(op, slot, None, position) for op in ("LOAD_FAST", "DELETE_FAST")]


def parameters_of(entry: bool | Recipe) -> int:
    return sum(op == "LEAF" for op, _ in entry.steps) if isinstance(entry, Recipe) else int(not entry)


def recipe_instrs(recipe: Recipe, leaves: list[int], consts: list, position: Position) -> list[Instr]:
    out = []
    for op, arg in recipe.steps:
        if op == "LEAF":
            out += moved(leaves[arg], position)
            continue
        if op == "LOAD_CONST":
            consts.append(arg)
            arg = len(consts) - 1
        out.append(Instr(op, arg, None, position))
    return out


def kept_handlers(handlers: tuple[Handler, ...], copies: dict[int, Instr]) -> list[Handler]:
    out = []
    for handler in handlers:
        inside = [copies[i] for i in range(handler.start.index, handler.end.index + 1) if i in copies]
        if inside:
            if handler.target.index not in copies:
                raise VerifyError("capture", "a handler of live code is dead")
            out.append(Handler(inside[0], inside[-1], copies[handler.target.index], handler.depth, handler.lasti))
    return out
