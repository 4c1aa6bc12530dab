"""Statements that raise where a tensor is not what they ask for: `assert torch.isfinite(x).all()`, `if (x < 0).any(): raise ValueError("...")`.

The frame goes on as if the tensor were, and residual code asks for it after the graph, under the conditions of assumptions (`tensors/assumptions.py`):
nobody waits for the error, and what follows is harmless. What others see may have changed before, as far as residual code makes that change and makes
it before it asks: attributes, items of lists and dicts, cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import Raised, Unsupported
from dynacompile.capture.tensors.assumptions import HARMLESS, assume, is_harmless, may_assume
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.exceptions import ExceptionValue, exception_of

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr

# What makes an exception: its class, and arguments that capture knows, or that harmless operations compute for it.
MAKES = frozenset(
    """
    LOAD_ASSERTION_ERROR LOAD_GLOBAL LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_DEREF LOAD_ATTR LOAD_METHOD BINARY_SUBSCR PUSH_NULL CALL
    FORMAT_VALUE CONVERT_VALUE BUILD_STRING BUILD_TUPLE BINARY_OP
    """.split()
)


READS = frozenset({"item", "tolist"})


def assumed(frame: SymbolicFrame, instr: Instr, condition: Value, jumps_if: bool) -> bool:
    """Whether one side of the jump is a statement that raises, over a tensor that residual code asks: then the frame goes on at the other side."""
    cx = frame.cx
    if isinstance(condition, ReadNumber):
        condition = condition.asked(cx)
    if not isinstance(condition, TensorValue) or condition.source is not None or condition.number() is not None or condition.fake.numel() != 1:
        return False
    ahead, target = frame.decoded.instrs[instr.index + 1 :], instr.target
    assert target is not None
    jumps, arm = True, raising(ahead)
    if not arm:  # as of `assert a and b`, whose first jump goes to the statement that raises
        jumps, arm = False, raising(frame.decoded.instrs[target.index :])
    if not arm or not may_assume(cx, after_changes=True):
        return False
    error = made(frame, arm)
    if error is None or issubclass(error.cls, StopIteration):  # which may end an iteration
        return False
    flag = condition if jumps_if == jumps else cx.op("call_function", torch.logical_not, [condition], {})
    assume(cx, flag, None, [error])
    if jumps:
        frame.index = target.index
    return True


def raising(ahead: Sequence[Instr]) -> list[Instr]:
    """The first of these instructions, where they make an exception and raise it; none where they do anything else."""
    found = []
    for step in ahead:
        found.append(step)
        if step.op == "RAISE_VARARGS":
            return found if step.arg == 1 and len(found) > 1 else []
        if step.op not in MAKES:
            return []
    return []


def made(frame: SymbolicFrame, arm: list[Instr]) -> ExceptionValue | None:
    """The exception that an arm raises, without a change of the frame; None where capture does not know it whole."""
    stack, current, index, cx = list(frame.stack), frame.current, frame.index, frame.cx
    changes, recorded = (cx.effects.count, cx.effects.moves), len(cx.recorder.nodes)
    try:
        frame.index = arm[0].index
        for step in arm[:-1]:
            if frame.index != step.index or step.op == "CALL" and not calls_known(frame, step):
                return None
            frame.step()
        error = exception_of(cx, frame.pop())
    except (Raised, Unsupported):
        return None
    finally:
        frame.stack, frame.current, frame.index, frame.kw_names = stack, current, index, ()
    if (cx.effects.count, cx.effects.moves) != changes or not all(map(is_harmless, cx.recorder.nodes[recorded:])):
        return None
    return error if error.source is None and not error.stored and all(arg.source is None for arg in error.known_args()) else None


def calls_known(frame: SymbolicFrame, step: Instr) -> bool:
    """Whether a call makes an exception of a class that is written in C, or is one of torch's, or of a tensor's method."""
    for value in frame.stack[-step.arg - 2 :][:2]:
        value = frame.cx.force(value)
        cls = getattr(value, "real", None)
        if isinstance(cls, type) and issubclass(cls, BaseException) and cls.__module__ == "builtins":
            return True
        if isinstance(value, TorchFunction) and value.real.__name__ in HARMLESS:
            return True
        if isinstance(value, Method) and isinstance(value.owner, TensorValue) and value.name in HARMLESS | READS:
            return True
    return False
