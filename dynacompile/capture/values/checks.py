"""torch._check and its kin: conditions that hold from there on, also of numbers that depend on the values of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.symbolic import SymbolicBool
from dynacompile.ir.symbolic_graphs import required

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


@handles(torch._check)
def check(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition, message = bind_arguments("_check", ["cond", "message"], args, kwargs, {"message": ConstantValue(None)})
    if not isinstance(condition, SymbolicBool):
        if issubclass(condition.pytype(), bool) and condition.truth(cx):
            return ConstantValue(None)
        raise unsupported("would-raise", "torch._check of a condition that does not hold")
    text = message if isinstance(message, ConstantValue) and message.value is None else message.call(cx, [], {})
    torch._check(condition.sym)
    cx.recorder.python_effect(required, [condition, ConstantValue(text.constant())])
    return ConstantValue(None)


@handles(torch._check_is_size)
def check_is_size(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return check(cx, [cx.operator("ge", [args[0], ConstantValue(0)])], {})
