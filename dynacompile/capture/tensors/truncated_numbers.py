"""`int(number)` of a float that is read from a tensor: the graph computes with a whole float64, and Python's errors are raised after it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.tensors.assumptions import assume, may_assume
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue
from dynacompile.ops.python_numbers import PYTHON_NUMBER, call_text, in_64_bits

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class TruncatedNumber(ReadNumber):
    """tensor: holds the int as a float64, which may have any size. of: the float."""

    def __init__(self, tensor: TensorValue, of: ReadNumber):
        super().__init__(tensor, int)
        self.of = of

    def with_tensors(self, cx: Context) -> bool:
        return asked_later(cx, self.of, lambda: cx.op("call_function", operator.lt, [absolute(cx, self.tensor), ConstantValue(float(2**63))], {}), in_64_bits)

    def children(self) -> Sequence[Value]:
        return self.of.children()

    def rebuild(self, out: Writer) -> None:
        out.callee(whole)
        self.of.rebuild(out)
        out.call(1)


def whole(number: float) -> int:
    """int(number); 0 where that raises, which residual code does when all changes before it have been made."""
    return int(number) if math.isfinite(number) else 0


def truncated(cx: Context, number: ReadNumber) -> Value | None:
    """int(number); None where Python's error could not be raised."""
    if number.cls is not float:
        return None
    if cx.symbols is not None and cx.symbols.policy.values:
        if cx.effects.outside:
            return None
        found = cx.op("call_function", PYTHON_NUMBER, [ListValue([number.tensor]), ConstantValue(call_text("int", [None]))], {})
        return cx.op("call_method", "to", [found, ConstantValue(torch.int64)], {}).method(cx, "item", [], {})
    if not asked_later(cx, number, lambda: cx.op("call_function", torch.isfinite, [number.tensor], {}), int):
        return None
    kept = cx.op("call_function", torch.trunc, [number.tensor], {})
    assert isinstance(kept, TensorValue)
    return TruncatedNumber(kept, number)


def asked_later(cx: Context, number: ReadNumber, condition: Callable[[], Value], function: Callable[[float], int]) -> bool:
    """Assumes a condition, and that function(number) raises where it does not hold; whether that could be done."""
    if not may_assume(cx, after_changes=True):
        return False
    assume(cx, condition(), function, [number])
    return True


def absolute(cx: Context, tensor: TensorValue) -> Value:
    return cx.op("call_function", torch.abs, [tensor], {})
