"""Branches, loops, with statements, returns, generators, exceptions."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.frames.assertions import assumed
from dynacompile.capture.frames.interpreter import GeneratorValue
from dynacompile.capture.frames.predication import branch
from dynacompile.capture.frames.rare_arms import required
from dynacompile.capture.frames.selection import selected_branch
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.tensors.function_modes import DeviceBlock
from dynacompile.capture.values.base import IteratorValue
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.exceptions import ExceptionValue, HandledValue, TracebackValue, exception_of, raised, raised_by_statement
from dynacompile.capture.values.functions import BoundMethod
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.cpython import RUNNING
from dynacompile.errors import Unsupported

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.capture.values.base import Value
    from dynacompile.cpython.instructions import Instr


def followed(f: SymbolicFrame, i: Instr, condition: Value, jumps_if: bool) -> bool:
    """Whether the frame has gone on without an answer: both arms were followed, or one of them raises."""
    return branch(f, i, condition, jumps_if) or assumed(f, i, condition, jumps_if) or selected_branch(f, i, condition, jumps_if)


def holds(f: SymbolicFrame, i: Instr, condition: Value, jumps_if: bool) -> bool | None:
    """Whether a condition holds; None where the frame has gone on at the side that it is expected to take."""
    try:
        return condition.truth(f.cx)
    except Unsupported as reason:
        if reason.code == "data-dependent-branch" and required(f, i, condition, jumps_if):
            return None
        raise


def jump(f: SymbolicFrame, i: Instr) -> None:
    f.index = i.target.index  # type: ignore[union-attr]


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", effect=0)
def jump_always(f: SymbolicFrame, i: Instr) -> None:
    jump(f, i)


@opcode("POP_JUMP_IF_TRUE", effect=-1)
def pop_jump_if_true(f: SymbolicFrame, i: Instr) -> None:
    condition = f.pop()
    if not followed(f, i, condition, True) and holds(f, i, condition, True):
        jump(f, i)


@opcode("POP_JUMP_IF_FALSE", effect=-1)
def pop_jump_if_false(f: SymbolicFrame, i: Instr) -> None:
    condition = f.pop()
    if not followed(f, i, condition, False) and holds(f, i, condition, False) is False:
        jump(f, i)


@opcode("POP_JUMP_IF_NONE", effect=-1)
def pop_jump_if_none(f: SymbolicFrame, i: Instr) -> None:
    if is_none(f.pop()):
        jump(f, i)


@opcode("POP_JUMP_IF_NOT_NONE", effect=-1)
def pop_jump_if_not_none(f: SymbolicFrame, i: Instr) -> None:
    if not is_none(f.pop()):
        jump(f, i)


def keeps_on_jump(arg: int, taken: bool) -> int:
    return 0 if taken else -1


@opcode("JUMP_IF_TRUE_OR_POP", effect=keeps_on_jump)
def jump_if_true_or_pop(f: SymbolicFrame, i: Instr) -> None:
    if f.peek(1).truth(f.cx):
        jump(f, i)
    else:
        f.pop()


@opcode("JUMP_IF_FALSE_OR_POP", effect=keeps_on_jump)
def jump_if_false_or_pop(f: SymbolicFrame, i: Instr) -> None:
    if not f.peek(1).truth(f.cx):
        jump(f, i)
    else:
        f.pop()


@opcode("GET_ITER", effect=0)
def get_iter(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.pop().iterate(f.cx))


@opcode("FOR_ITER", effect=lambda arg, taken: -1 if taken else 1)
def for_iter(f: SymbolicFrame, i: Instr) -> None:
    iterator = f.peek(1)
    if not isinstance(iterator, IteratorValue):
        raise unsupported("in-loop", f"{iterator.describe()} is")
    item = f.cx.rounds.next(f, i, iterator)
    if item is not None:
        f.push(item)
        return
    f.pop()
    jump(f, i)


@opcode("RETURN_VALUE", effect=-1)
def return_value(f: SymbolicFrame, i: Instr) -> None:
    f.returned = f.pop()


@opcode("RETURN_CONST", effect=0)
def return_const(f: SymbolicFrame, i: Instr) -> None:
    f.returned = f.cx.of(f.code.co_consts[i.arg])


@opcode("BEFORE_WITH", effect=1)
def before_with(f: SymbolicFrame, i: Instr) -> None:
    manager = f.pop()
    if isinstance(manager, ConstantValue) and isinstance(manager.value, torch.device):
        manager = DeviceBlock(manager.value)
    if isinstance(manager, ContextValue):
        f.push(manager.get_attr(f.cx, "__exit__"))
        f.push(manager.enter(f.cx))
        return
    if isinstance(manager, ObjectValue):
        leave, enter = f.cx.lookup(manager.cls, "__exit__"), f.cx.lookup(manager.cls, "__enter__")
        if isinstance(leave, types.FunctionType) and isinstance(enter, types.FunctionType):
            f.push(BoundMethod(f.cx.wrap(leave, class_source(manager.cls, "__exit__")), manager, None, "__exit__"))
            f.push(f.cx.call_real(enter, class_source(manager.cls, "__enter__"), [manager]))
            return
    raise unsupported("context-manager", manager.describe())


@opcode("RETURN_GENERATOR", effect=1)
def return_generator(f: SymbolicFrame, i: Instr) -> None:
    """The body starts with the None that the first next() sends."""
    f.push(ConstantValue(None))


@opcode("YIELD_VALUE", effect=0)
def yield_value(f: SymbolicFrame, i: Instr) -> None:
    if f.handled_since() is not None:
        raise unsupported("generator", "a yield inside an except block")
    f.yielded = f.pop()


@opcode("GET_YIELD_FROM_ITER", effect=0)
def get_yield_from_iter(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.pop().iterate(f.cx))


@opcode("SEND", effect=lambda arg, taken: -1 if taken and not RUNNING.send_keeps_receiver else 0)
def send(f: SymbolicFrame, i: Instr) -> None:
    sent, receiver = f.pop(), f.peek(1)
    if not isinstance(receiver, IteratorValue) or not is_none(sent) and not isinstance(receiver, GeneratorValue):
        raise unsupported("generator", f"a value is sent into {receiver.describe()}")
    item = receiver.send(f.cx, sent) if isinstance(receiver, GeneratorValue) else receiver.next(f.cx)
    if item is not None:
        f.push(item)
        return
    result = receiver.result(f.cx) or ConstantValue(None)
    if not RUNNING.send_keeps_receiver:
        f.pop()
    f.push(result)
    jump(f, i)


@opcode("RAISE_VARARGS", effect=lambda arg, taken: -arg)
def raise_varargs(f: SymbolicFrame, i: Instr) -> None:
    if not i.arg:
        if f.cx.handling is None:
            raise unsupported("raise", " again")
        raise raised(f.cx.handling)
    value, *cause = f.pop_many(i.arg)
    exception = exception_of(f.cx, value)
    reason = [c if is_none(c) else exception_of(f.cx, c, "exception causes must derive from BaseException") for c in cause]
    raise raised_by_statement(f.cx, exception, *reason)


@opcode("RERAISE", effect=-1)
def reraise(f: SymbolicFrame, i: Instr) -> None:
    exception = f.pop()
    if not isinstance(exception, ExceptionValue):
        raise unsupported("raise", " again")
    raise raised(exception)


@opcode("PUSH_EXC_INFO", effect=1)
def push_exc_info(f: SymbolicFrame, i: Instr) -> None:
    exception = f.pop()
    f.push(HandledValue(f.cx.handling, f.raised_at))
    f.push(exception)
    f.cx.handling = exception  # type: ignore[assignment]


@opcode("POP_EXCEPT", effect=-1)
def pop_except(f: SymbolicFrame, i: Instr) -> None:
    state = f.pop()
    if not isinstance(state, HandledValue):
        raise unsupported("raise", " in a handler that capture did not enter")
    f.cx.handling = state.previous


@opcode("CHECK_EXC_MATCH", effect=0)
def check_exc_match(f: SymbolicFrame, i: Instr) -> None:
    wanted, exception = f.pop().constant(), f.peek(1)
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in (wanted if isinstance(wanted, tuple) else (wanted,))):
        raise unsupported("would-raise", "catching classes that do not inherit from BaseException is not allowed")
    f.cx.names.of_ancestry(exception.pytype())
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    f.push(ConstantValue(any(base in classes for base in exception.pytype().__mro__)))  # no metaclass is asked


@opcode("WITH_EXCEPT_START", effect=1)
def with_except_start(f: SymbolicFrame, i: Instr) -> None:
    leave, exception = f.peek(4), f.peek(1)
    f.push(leave.call(f.cx, [f.cx.class_value(exception.pytype(), None), exception, TracebackValue()], {}))
