"""torch._check and its kin: conditions that hold from there on, also of numbers that depend on the values of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.tensors.assumptions import assume, may_assume
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.exceptions import make_exception
from dynacompile.capture.values.functions import function_value
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.symbolic import SymbolicBool
from dynacompile.ir.source import Constant
from dynacompile.ir.symbolic_graphs import required
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NONE = ConstantValue(None)
IMPROVABLE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an enhancement request to PyTorch.)"  # torch's own
)


@handles(of_torch.check_with)
def check_with(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """All others of that family call this one."""
    kind, condition, message = bind_arguments("_check_with", ["error_type", "cond", "message"], args, kwargs, {})
    if isinstance(condition, SymbolicBool):
        text = text_of(cx, message)
        torch._check(condition.sym)
        cx.recorder.python_effect(required, [condition, NONE if text is None else ConstantValue(text.constant())])
        return NONE
    if isinstance(condition, ReadNumber) and condition.cls is bool and may_assume(cx):
        error = make_exception(cx, kind.constant(), [text_of(cx, message) or ConstantValue(IMPROVABLE)], {})
        assume(cx, condition.tensor, None, [error])
        return NONE
    plain = of_torch.check_with
    return function_value(cx, plain, Constant(plain, "torch._check_with")).call(cx, [kind, condition, message], {})  # type: ignore[arg-type]


def text_of(cx: Context, message: Value) -> Value | None:
    """What the message says; None where there is none."""
    return None if isinstance(message, ConstantValue) and message.value is None else HANDLERS[str](cx, [message.call(cx, [], {})], {})


@handles(torch._check_is_size)
def check_is_size(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return check_with(cx, [cx.of(RuntimeError), cx.operator("ge", [args[0], ConstantValue(0)]), NONE], {})
