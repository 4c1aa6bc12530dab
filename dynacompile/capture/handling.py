"""Breaks while exceptions are handled: the residual code and the resume function are in the same state of handling as the frame was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType

from dynacompile.capture.assemble import assemble
from dynacompile.capture.calling import callable_first
from dynacompile.capture.residual import Builder
from dynacompile.capture.resume import Recipe
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.exceptions import ExceptionValue, HandledValue
from dynacompile.cpython.instructions import Handler, Instr, Position

HANDLED = Recipe((("LEAF", 0), ("PUSH_EXC_INFO", 0), ("POP_TOP", 0)))
"""How a resume function gets what PUSH_EXC_INFO keeps on the stack: by handling the exception, its parameter."""
OPTIMIZED = 0x1 | 0x2  # locals in slots, and of its own
Trail = tuple[tuple[CodeType, Position], ...]  # of the frames through which an exception was raised, outermost first


def handled(stack: Sequence[Value], handling: ExceptionValue | None) -> dict[Value, ExceptionValue | None]:
    """The exception that each handler on the stack handles, outermost first. handling: the innermost."""
    found: dict[Value, ExceptionValue | None] = {}
    for value in reversed(stack):
        if isinstance(value, HandledValue):
            found[value] = handling
            handling = value.previous
    return dict(reversed(found.items()))


def can_be_handed_on(stack: Sequence[Value], handling: ExceptionValue | None) -> bool:
    """Whether residual code has the exceptions that are being handled, or can raise equal ones."""
    return all(value is not None and (value.source is not None or value.can_be_made()) for value in handled(stack, handling).values())


def enter_handlers(out: Builder, exceptions: Iterable[Value]) -> None:
    """From here on, the residual code handles these exceptions."""
    for value in exceptions:
        out.value(value)
        out.emit("PUSH_EXC_INFO")
        out.emit("POP_TOP")
        out.handling += 1


def leave_handlers(out: Builder) -> None:
    for _ in range(out.handling):
        out.emit("POP_EXCEPT")


def make_raised(out: Builder, value: ExceptionValue) -> None:
    """Raises an exception that the frame raised and caught, with those that it came from, and keeps it: now it has a traceback."""
    for link in (value.context, value.cause):
        if isinstance(link, ExceptionValue) and link.raised and link.source is None and not out.has(link):
            make_raised(out, link)
    before = out.position
    during = handle_context(out, value)
    first = len(out.instrs)
    raise_made(out, value, value.trail)
    last = out.instrs[-1]
    label = out.emit("PUSH_EXC_INFO")
    out.keep(value)
    for _ in range(1 + during):
        out.emit("POP_EXCEPT")
    out.handlers.append(Handler(out.instrs[first], last, label, int(during), False))
    out.position = before


def handle_context(out: Builder, value: ExceptionValue) -> bool:
    """Handles the exception's context from here on, if it has one: what is handled at a raise becomes the context, and a caller may handle another."""
    link = value.context
    if link is None:
        return False
    if link.raised and link.source is None and not out.has(link):
        make_raised(out, link)
    handle(out, link)
    return True


def handle(out: Builder, value: ExceptionValue) -> None:
    """Handles an exception from here on."""
    value.rebuild_chain(out)
    out.emit("PUSH_EXC_INFO")
    out.emit("POP_TOP")


def raise_out(out: Builder, value: ExceptionValue, gone: Iterable[str]) -> None:
    """Makes an exception and raises it out of the frame. gone: as in raise_made."""
    during, first = handle_context(out, value), len(out.instrs)
    raise_made(out, value, value.trail, [*gone, *(out.temps() if during else ())])
    if during:
        leave(out, first)


def raise_again(out: Builder, value: ExceptionValue, trail: Trail, during: ExceptionValue | None, gone: Iterable[str]) -> None:
    """Raises an exception that was raised before out of the frame. trail: of the raise statement; empty where it is passed on, as it is.
    during: what is handled then; the context is left alone where that is the exception itself. gone: as in raise_made."""
    if not trail:
        out.value(value)
        for name in gone:
            out.local("DELETE_FAST", name)
        out.emit("RERAISE", 0)
        return
    if during is not None:
        handle(out, during)
    first = len(out.instrs)
    raise_made(out, value, trail, [*gone, *(out.temps() if during is not None else ())])
    if during is not None:
        leave(out, first)


def leave(out: Builder, first: int) -> None:
    """What is raised since instruction `first` leaves the frame, which handles one exception till then."""
    last, label = out.instrs[-1], out.emit("SWAP", 2)
    out.emit("POP_EXCEPT")
    out.emit("RERAISE", 0)
    out.handlers.append(Handler(out.instrs[first], last, label, 1, False))


def raise_made(out: Builder, value: ExceptionValue, trail: Trail, gone: Iterable[str] = ()) -> None:
    """Makes an exception and raises it, through code that stands for the inlined frames. gone: variables that are not needed then."""
    (_, out.position), *inner = trail or ((None, out.position),)
    if inner:
        with out.calling():
            out.const(raising_code(inner))  # type: ignore[arg-type]
            out.emit("MAKE_FUNCTION", 0)
    value.rebuild_chain(out)
    for name in gone:
        out.local("DELETE_FAST", name)
    if inner:
        out.call(1)
    out.emit("RAISE_VARARGS", 1)


def raising_code(trail: Sequence[tuple[CodeType, Position]]) -> CodeType:
    """A function that raises its argument, by way of one that stands for the next frame of the trail."""
    (code, position), *inner = trail
    consts = (raising_code(inner),) if inner else (None,)
    instrs = [Instr("RESUME", 0, None, position)]
    if inner:
        instrs += [Instr(op, 0, None, position) for op in callable_first("LOAD_CONST", "MAKE_FUNCTION")]
    instrs.append(Instr("LOAD_FAST", 0, None, position))
    if inner:
        instrs.append(Instr("CALL", 1, None, position))
    instrs.append(Instr("RAISE_VARARGS", 1, None, position))
    fields = {"co_varnames": ("exception",), "co_cellvars": (), "co_freevars": (), "co_names": (), "co_consts": consts}
    return assemble(code, instrs, (), co_argcount=1, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=OPTIMIZED, **fields)
