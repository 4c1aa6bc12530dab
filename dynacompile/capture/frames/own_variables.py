"""Frames that may ask for their own variables, by `locals()`, `eval()` or a frame object: after a graph break they would be shown others."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from dynacompile.ir.guard_facts import is_a

if TYPE_CHECKING:
    from dynacompile.cpython.instructions import Instr
    from dynacompile.ir.captured import Break

OF_BUILTINS = frozenset({"locals", "eval", "exec"})  # as attributes of other objects they are others, as `model.eval()` is
LOOKS_AT_FRAME = frozenset({"_getframe", "currentframe"})
FRAME_FUNCTIONS = frozenset({locals, eval, exec, sys._getframe, inspect.currentframe, inspect.stack})
WITHOUT_ARGUMENTS = frozenset({dir, vars})  # which look at the frame where they are called with none


def looks_at_frame(frame: Any, instrs: Sequence[Instr], why: Break | None) -> bool:
    """Whether the frame itself may ask for its variables. instrs: its instructions. why: what it breaks by."""
    code = frame.code
    if not LOOKS_AT_FRAME.isdisjoint(code.co_names) or why is not None and why.code == "frame-variables" and len(why.stack) == 1:
        return True
    loaded = {code.co_names[one.arg >> 1] for one in instrs if one.op == "LOAD_GLOBAL"}
    found = {name: frame.globals.get(name, frame.builtins.get(name)) for name in loaded}
    by_module = "builtins" in code.co_names or any(real is builtins for real in found.values())
    if not OF_BUILTINS.isdisjoint(code.co_names if by_module else loaded):
        return True
    if any(is_a(real, (FunctionType, BuiltinFunctionType)) and real in FRAME_FUNCTIONS for real in found.values()):
        return True
    if "stack" in code.co_names and any(real is inspect for real in found.values()):
        return True
    asking = {name for name, real in found.items() if is_a(real, BuiltinFunctionType) and real in WITHOUT_ARGUMENTS}
    return any(
        one.op == "LOAD_GLOBAL" and code.co_names[one.arg >> 1] in asking and after.op == "CALL" and not after.arg for one, after in zip(instrs, instrs[1:])
    )
