"""How residual code goes on in a resume function.

The residual code of a resume function does not call the next one, but returns the call to be made; the residual code of the frame itself makes
such calls until one returns something else. So the stack does not grow with the breaks that were passed, and what a part of the frame held is
released when that part ends, as Python's own frame would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import CodeType

from dynacompile.capture.bytecode import CodeCache, Decoded, is_resume
from dynacompile.capture.handling import leave_handlers
from dynacompile.capture.residual import Builder
from dynacompile.capture.resume import Recipe, ResumePoint, arguments, resume_code
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.positions import END, NEXT_ITEM, StateValue


class Onward(tuple):
    """(arguments, function): the call that is to be made next."""

    __slots__ = ()


def store_temp(out: Builder) -> str:
    name = out.new_temp()
    out.local("STORE_FAST", name)
    return name


@dataclass(frozen=True)
class Target:
    """Where a frame goes on. last: the same for when the innermost loop has nothing left; None outside of loops that capture follows."""

    point: ResumePoint
    code: CodeType
    last: CodeType | None

    def codes(self) -> list[CodeType]:
        return [self.code] if self.last is None else [self.code, self.last]


def target(codes: CodeCache, decoded: Decoded, point: ResumePoint) -> Target:
    follows = any(isinstance(entry, Recipe) and entry.is_loop for entry in point.stack)
    return Target(point, resume_code(codes, decoded, point), resume_code(codes, decoded, replace(point, ends=True)) if follows else None)


def go_on(out: Builder, decoded: Decoded, to: Target, local_values: Mapping[int, Value | None], below: list[Value], temps: list[str], gone: list[str]) -> None:
    """Returns the result of the resume function: of the locals at its point, of the stack `below` and then `temps`.

    gone: variables of the residual code that are not needed then.
    """
    leave_handlers(out)
    inside = is_resume(out.code)
    states = [value for value in below if isinstance(value, StateValue)]
    state = None
    if states and to.last is not None:
        out.value(states[-1])
        state = store_temp(out)
    with out.calling():
        if inside:
            out.const(Onward)
        else:
            function(out, to, state)
    values = [local_values[slot] for slot in arguments(to.code, decoded, to.point.slots)] + below
    for value in values:
        if state is not None and value is states[-1]:
            out.local("LOAD_FAST", state)
        else:
            out.value(value)  # type: ignore[arg-type]
    for temp in temps:
        out.local("LOAD_FAST", temp)
    count = len(values) + len(temps)
    if inside:
        out.emit("BUILD_TUPLE", count)
        function(out, to, state)
        out.emit("BUILD_TUPLE", 2)
    for name in gone if state is None else [*gone, state]:
        out.local("DELETE_FAST", name)
    if not inside:
        out.call(count)
        follow(out)
        return
    out.call(1)
    out.emit("RETURN_VALUE")


def function(out: Builder, to: Target, state: str | None) -> None:
    """Pushes the resume function, which shares the frame's cells. state: where the innermost loop is."""
    closure = (*out.code.co_cellvars, *out.code.co_freevars)
    for name in closure:
        out.emit("LOAD_CLOSURE by name", out.original_slot(name))
    if closure:
        out.emit("BUILD_TUPLE", len(closure))
    out.const(to.code)
    if state is not None:
        out.const(to.last)
        out.emit("BUILD_TUPLE", 2)
        out.local("LOAD_FAST", state)
        out.const(NEXT_ITEM)
        out.emit("BINARY_SUBSCR")
        out.const(END)
        out.emit("IS_OP", 0)
        out.emit("BINARY_SUBSCR")
    out.emit("MAKE_FUNCTION", 8 if closure else 0)


def follow(out: Builder) -> None:
    """Makes the calls that the value on the stack asks for, and returns what the last one gives."""
    begin = out.emit("NOP")
    result = store_temp(out)
    out.callee(type)
    out.local("LOAD_FAST", result)
    out.call(1)
    out.const(Onward)
    out.emit("IS_OP", 0)
    done = out.emit("POP_JUMP_IF_FALSE")
    with out.calling():
        part(out, result, 1)
    part(out, result, 0)
    out.const(None)
    out.local("STORE_FAST", result)
    out.emit("CALL_FUNCTION_EX", 0)
    out.emit("JUMP_BACKWARD", 0, begin)
    done.target = out.emit("NOP")
    out.local("LOAD_FAST", result)
    out.emit("RETURN_VALUE")


def part(out: Builder, name: str, index: int) -> None:
    out.local("LOAD_FAST", name)
    out.const(index)
    out.emit("BINARY_SUBSCR")
