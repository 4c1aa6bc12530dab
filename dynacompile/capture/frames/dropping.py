"""What Python runs of a generator that is dropped unfinished: GeneratorExit is raised where it stopped."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from dynacompile.capture.bytecode import Decoded
from dynacompile.cpython.instructions import Handler, Instr

QUIET = frozenset({"COPY", "POP_EXCEPT", "RERAISE", "PUSH_EXC_INFO"})  # what leaves a handler with the same exception


def runs_code(decoded: Decoded, at: Instr, table: Mapping[str, Any]) -> bool:
    """Whether a block would run: a finally, a with, or an except that takes GeneratorExit. table: the globals of the code."""
    handler = decoded.handler_of(at)
    while handler is not None and handler.target.op != "STOPITERATION_ERROR":  # since 3.12 there is one that turns StopIteration into RuntimeError
        left = leaves(decoded, handler, table)
        if left is None:
            return True
        handler = decoded.handler_of(left)
    return False


def leaves(decoded: Decoded, handler: Handler, table: Mapping[str, Any]) -> Instr | None:
    """The instruction by which GeneratorExit leaves a handler that does nothing with it; None for one that does."""
    instrs, index = decoded.instrs, handler.target.index
    while True:
        instr = instrs[index]
        if instr.op in ("RERAISE", "CLEANUP_THROW"):  # the second: after `yield from`, whose iterator is asked for itself
            return instr
        if instr.op in QUIET:
            index += 1
        elif instr.op == "LOAD_GLOBAL" and instrs[index + 1].op == "CHECK_EXC_MATCH" and instrs[index + 2].op == "POP_JUMP_IF_FALSE":
            name = decoded.code.co_names[instr.arg >> 1]
            caught = table.get(name, vars(builtins).get(name))
            jump = instrs[index + 2].target
            if not isinstance(caught, type) or issubclass(GeneratorExit, caught) or jump is None:
                return None
            index = jump.index
        else:
            return None
