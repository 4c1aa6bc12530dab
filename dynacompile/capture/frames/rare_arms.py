"""Branches on tensors of which one arm raises or warns: `if x.isnan().any(): warnings.warn(...)`, and validation inside of `try`.

The frame goes on at the other side. The condition is an output of the graph, which is asked before anything is changed: where the rare arm would run, the
call starts again as Python (`tensors/restarting.py`), so that the arm does what it does in eager, whatever that is and whoever waits for its error. Other
arms, of which nothing is known, end the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.restarting import may_require
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr

MOST_INSTRUCTIONS = 96  # of a rare arm
WARNS = frozenset({"warn", "warn_explicit", "warning", "error", "exception", "critical"})  # functions of `warnings` and of loggers
LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "IMPORT_FROM"})
LEAVES = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE", "YIELD_VALUE", "SEND"})


def required(frame: SymbolicFrame, instr: Instr, condition: Value, jumps_if: bool) -> bool:
    """Whether one arm of the branch is rare: then the frame goes on at the other one, and the graph gives what tells which it is."""
    cx, target = frame.cx, instr.target
    if isinstance(condition, ReadNumber):
        condition = condition.asked(cx)
    if not isinstance(condition, TensorValue) or condition.source is not None or condition.number() is not None or condition.fake.numel() != 1:
        return False
    assert target is not None
    instrs, behind = frame.decoded.instrs, instr.index + 1
    if raises_always(instrs, behind) or behind < target.index and warns(frame, instrs[behind : target.index]):
        jumps = True
    elif raises_always(instrs, target.index):
        jumps = False
    else:
        return False
    if not may_require(cx, f"the branch at {cx.site()}"):
        return False
    compares = torch.ne if jumps_if == jumps else torch.eq
    cx.effects.require(cx.op("call_function", compares, [condition, ConstantValue(0)], {}))
    if jumps:
        frame.index = target.index
    return True


def raises_always(instrs: Sequence[Instr], begin: int) -> bool:
    """Whether all that can follow from an instruction is a statement that raises, a few instructions on."""
    seen: set[int] = set()
    work = [begin]
    while work:
        at = work.pop()
        if at in seen:
            continue
        seen.add(at)
        if at < begin or at >= len(instrs) or len(seen) > MOST_INSTRUCTIONS or instrs[at].op in LEAVES:
            return False
        if instrs[at].op == "RAISE_VARARGS":
            continue
        if (target := instrs[at].target) is not None:
            work.append(target.index)
        if not instrs[at].op.startswith("JUMP_") or "_IF_" in instrs[at].op:
            work.append(at + 1)
    return any(instrs[at].op == "RAISE_VARARGS" for at in seen)


def warns(frame: SymbolicFrame, arm: Sequence[Instr]) -> bool:
    """Whether an arm of a few instructions calls, by its name, a function that warns."""
    if len(arm) > MOST_INSTRUCTIONS:
        return False
    names = frame.code.co_names
    return any(one.op in LOADS and names[one.arg >> (one.op == "LOAD_GLOBAL")] in WARNS for one in arm)
