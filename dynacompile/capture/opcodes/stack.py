"""Moving values on the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynacompile.capture.frames.table import opcode
from dynacompile.capture.residual import reached
from dynacompile.capture.values.base import NULL, IteratorValue

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr


@opcode("NOP", "RESUME", "END_FOR", effect=0)
def nop(f: SymbolicFrame, i: Instr) -> None:
    """Nothing to do."""


@opcode("POP_TOP", effect=-1)
def pop_top(f: SymbolicFrame, i: Instr) -> None:
    (value,) = f.pop_unread(1)
    root = f.cx.frames[0]
    if isinstance(value, IteratorValue) and any(generator.is_pending() for generator in root.generators):  # a loop is left
        held = [v for frame in f.cx.frames for v in (*frame.slots, *frame.stack) if v is not None]
        root.refuse_pending(reached([*held, *f.cx.effects.values()]))
    f.dropped(value)


@opcode("PUSH_NULL", effect=1)
def push_null(f: SymbolicFrame, i: Instr) -> None:
    f.push(NULL)


@opcode("COPY", effect=1)
def copy(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.stack[-i.arg])


@opcode("SWAP", effect=0)
def swap(f: SymbolicFrame, i: Instr) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


@opcode("END_SEND", effect=-1)
def end_send(f: SymbolicFrame, i: Instr) -> None:
    del f.stack[-2]
