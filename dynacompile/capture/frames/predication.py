"""Branches on numbers that tensors stand for (`tensors/number_tensors.py`): both arms are followed, and the condition chooses between what they give.

An optimizer keeps its count of steps in a tensor, and eager branches on what it computes of the count: whether RAdam rectifies its rate, whether ASGD
averages yet. A guard on such a condition would cost an entry for each of its answers, and a check for each parameter and call. This is the if-conversion
of vectorizing compilers: the arms are straight code from the branch to the place where they meet; numbers that both leave on the stack are selected, and a
write in an arm to a tensor that was there before the branch writes the old values where the condition does not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.bytecode import Decoded
from dynacompile.capture.frames.repeats import state_now, tensors_in
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.gradients import Hooks
from dynacompile.capture.tensors.number_tensors import is_condition, is_real_number, selected
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, next_serial
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.cpython.instructions import Instr

if TYPE_CHECKING:
    from types import CodeType

    from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame

FORWARD = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))
# What an arm consists of: it computes, calls functions, and keeps nothing but what it leaves on the stack.
IN_ARMS = FORWARD | frozenset(
    "LOAD_FAST LOAD_FAST_CHECK LOAD_CONST LOAD_DEREF LOAD_GLOBAL LOAD_ATTR LOAD_METHOD POP_TOP COPY SWAP PUSH_NULL NOP KW_NAMES CALL "
    "BINARY_OP COMPARE_OP UNARY_NEGATIVE UNARY_POSITIVE BINARY_SUBSCR BUILD_TUPLE".split()
)
# Functions that arms call may have variables, and branches on what is known.
IN_CALLS = IN_ARMS | frozenset("STORE_FAST COPY_FREE_VARS MAKE_CELL RESUME RETURN_VALUE RETURN_CONST".split())
ARMS_OF_CALLS = "POP_JUMP"


class Arm:
    """One arm of a branch, while it is followed. condition: holds where eager takes it."""

    def __init__(self, cx: FrameContext, condition: TensorValue):
        self.cx, self.condition = cx, condition
        self.outer, self.state = cx.arm, state_now(cx)
        self.changes, self.hooks, self.logged = cx.effects.count, len(cx.state(Hooks).all), len(cx.recorder.log)
        self.moves, self.serial = cx.effects.moves, next_serial()
        self.guarded: set[int] = set()  # places in the log of writes that the condition guards

    def check_call(self, code: CodeType) -> None:
        """Refuses functions that may do what an arm may not."""
        for instr in self.cx.codes.decode(code).instrs:
            if instr.op not in IN_CALLS and not instr.op.startswith(ARMS_OF_CALLS):
                raise refusal(f"calls {code.co_qualname}")

    def store(self, owner: Value, name: str, value: Value) -> None:
        raise refusal(f"stores {owner.describe()}.{name}")

    def stored(self, owner: Value, name: str) -> Value | None:
        """What an arm has stored as an attribute, which is stored after the branch."""
        return None

    def fresh(self) -> set[int]:
        """Storages that operations of the arm made."""
        made: set[int] = set()
        for operation in self.cx.recorder.done(self.logged):
            if operation is not None:
                given = {storage_of(t.fake) for t in tensors_in(*operation.args, *operation.kwargs.values())}
                made |= {storage_of(t.fake) for t in tensors_in(operation.result)} - (given - made)
        return made

    def write(self, kind: str, target: object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """x.add_(y) of a tensor that was there before the branch, where the condition holds; None for other operations."""
        if kind != "call_method" or not isinstance(target, str) or not target.endswith("_") or target.endswith("__"):
            return None
        written = args[0]
        if not isinstance(written, TensorValue) or storage_of(written.fake) in self.fresh():
            return None
        recorder = self.cx.recorder
        plain = target.rstrip("_")
        if plain == "copy" and len(args) == 2 and not kwargs:
            new: Value = args[1]
        elif callable(getattr(torch.Tensor, plain, None)):
            new = recorder.op(kind, plain, args, kwargs)
        else:
            raise refusal(f"writes a tensor by {target}")
        chosen = recorder.op("call_function", torch.where, [self.condition, new, written], {})
        self.guarded.add(len(recorder.log))
        recorder.op("call_method", "copy_", [written, chosen], {})
        return written

    def finish(self) -> None:
        """Refuses an arm that did more than compute, and write tensors under the condition."""
        cx = self.cx
        if cx.effects.moves_older(self.moves, self.serial):
            raise refusal("advances an iterator, or changes a set")
        if cx.effects.count != self.changes or len(cx.state(Hooks).all) != self.hooks or state_now(cx) != self.state:
            raise refusal("changes Python objects or settings")
        fresh = self.fresh()
        for place, operation in enumerate(cx.recorder.done(self.logged), self.logged):
            if operation is None or (place not in self.guarded and not operation.writes <= fresh):
                raise refusal("writes tensors by an operation that has no other form")


def refusal(what: str) -> Exception:
    return unsupported("data-dependent-branch", f"an arm of the branch {what}")


def branch(frame: SymbolicFrame, instr: Instr, condition: Value, jumps_if: bool) -> bool:
    """Follows both arms of a conditional jump, and goes on where they meet; False where the condition is not a tensor that stands for a bool of Python's."""
    if not is_condition(condition) or torch.is_grad_enabled():  # the gradient of an arm that is not taken may be NaN
        return False
    assert isinstance(condition, TensorValue) and instr.target is not None
    if condition.number() is not None:
        return False
    arms = path(frame.decoded, frame.decoded.instrs[instr.index + 1]), path(frame.decoded, instr.target)
    copy = frame.decoded.last_copy
    places = [[copy(step.index) for step in arm] for arm in arms]
    join = next((place for place in places[1] if place in places[0]), None)
    if join is None:
        return False
    cx, stack = frame.cx, list(frame.stack)
    negated = cx.op("call_function", torch.logical_not, [condition], {})
    falls, jumps = (negated, condition) if jumps_if else (condition, negated)
    left = follow(frame, arms[0], join, falls)
    frame.stack = list(stack)
    right = follow(frame, arms[1], join, jumps)
    frame.index = join
    frame.stack = [meet(cx, falls, *pair) for pair in zip(left, right, strict=True)]
    return True


def path(decoded: Decoded, start: Instr) -> list[Instr]:
    """The straight code from an instruction on, up to the first one that an arm cannot have."""
    found = [start]
    while found[-1].op in IN_ARMS:
        last = found[-1]
        after = last.target if last.op in FORWARD else decoded.instrs[last.index + 1]
        if after is None or after in found:
            break
        found.append(after)
    return found


def follow(frame: SymbolicFrame, steps: list[Instr], join: int, condition: Value) -> list[Value]:
    """The stack at the end of an arm. join: where it ends, or the last copy of what stands there."""
    cx, copy = frame.cx, frame.decoded.last_copy
    assert isinstance(condition, TensorValue)
    arm = cx.arm = Arm(cx, condition)
    if arm.outer is not None:
        raise refusal("has a branch of its own")
    try:
        frame.index = steps[0].index
        for step in steps:
            if frame.index != step.index:
                raise refusal("raises an exception")
            if copy(step.index) == join:
                break
            frame.step()
    finally:
        cx.arm = arm.outer
    arm.finish()
    return frame.stack


def meet(cx: FrameContext, condition: Value, left: Value, right: Value) -> Value:
    """The value after the branch, of what the arms left in its place."""
    if left is right or (isinstance(left, ConstantValue) and isinstance(right, ConstantValue) and same(left.value, right.value)):
        return left
    if not is_real_number(left) or not is_real_number(right):
        raise refusal("gives what is no number")
    return selected(cx, condition, left, right)


def same(left: object, right: object) -> bool:
    return type(left) is type(right) and repr(left) == repr(right) and bool(left == right)
