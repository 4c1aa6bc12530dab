"""Subscripts of tensors by symbolic ints, as the place where a ring buffer is written next. torch's indexing asks for the value of such an int, and each would
have an entry of its own; `select` takes it as it is."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.capture.values.symbolic import SymbolicInt
from dynacompile.ir.symbolic_graphs import shown_by_run

if TYPE_CHECKING:
    from dynacompile.capture.tensors.tensor import TensorValue
    from dynacompile.capture.values.context import Context


def dimensions_of(key: Value, tensor: torch.Tensor) -> dict[int, SymbolicInt]:
    """By dimension of what the other parts of a subscript take, the symbolic ints. Empty where there are none, or where it is more than ints and slices."""
    parts = key.items if isinstance(key, TupleValue) else [key]
    found, dim, taken = {}, 0, sum(is_int(part) or is_slice(part) for part in parts)
    dots = sum(isinstance(part, ConstantValue) and part.value is ... for part in parts)
    for part in parts:
        if isinstance(part, SymbolicInt):
            found[dim] = part
        if isinstance(part, ConstantValue) and part.value is ...:
            dim += tensor.dim() - taken
        elif isinstance(part, SymbolicInt) or is_slice(part) or isinstance(part, ConstantValue) and part.value is None:
            dim += 1
        elif not is_int(part):
            return {}
    return found if taken <= tensor.dim() and dots <= 1 and not any(shown_by_run(part.sym) for part in found.values()) else {}


def is_int(part: Value) -> bool:
    return isinstance(part, SymbolicInt) or isinstance(part, ConstantValue) and type(part.value) is int


def is_slice(part: Value) -> bool:
    return isinstance(part, SliceValue) or isinstance(part, ConstantValue) and type(part.value) is slice


def view_at(cx: Context, tensor: TensorValue, key: Value) -> Value | None:
    """tensor[key], by `select` where ints of the key are symbolic; None where none is."""
    selected = {} if cx.symbols is None or cx.bodies else dimensions_of(key, tensor.fake)
    if not selected:
        return None
    view: Value = tensor
    if isinstance(key, TupleValue):
        rest = [SliceValue([ConstantValue(None)] * 3) if isinstance(part, SymbolicInt) else part for part in key.items]
        view = cx.op("call_function", operator.getitem, [tensor, TupleValue(rest)], {})
    for dim, place in reversed(selected.items()):
        view = cx.op("call_function", torch.select, [view, ConstantValue(dim), place], {})
    return view
