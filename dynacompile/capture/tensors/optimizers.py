"""torch.optim: what of its steps capture does not follow as Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.ir.source import Constant
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """What Optimizer.zero_grad does, for capture to follow."""
    for group in self.param_groups:
        for p in group["params"]:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()


@handles(torch.optim.Optimizer.zero_grad, one_operation=True)
def call_zero_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.call_real(zero_grad, Constant(zero_grad, "zero_grad"), args, kwargs)


@handles(of_torch.optimizer_get_value, one_operation=True)
def value_of_step(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A count of steps as a tensor that stands for eager's number."""
    (value,) = args
    if not isinstance(value, TensorValue) or not value.sample.is_floating_point() or value.sample.dim():
        return value
    return value.as_number(cx)


@handles(of_torch.optimizer_stack_if_compiling, one_operation=True)
def numbers_of_steps(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The list itself, as in eager, where each of its numbers scales the tensor at its place: joined to one tensor, they would connect all parameters."""
    (numbers,) = args
    return numbers


def order_of_groups(keys: list[tuple[torch.device, torch.dtype]]) -> list[tuple[torch.device, torch.dtype]]:
    """Torch's order, which is that of a hash table and not of first appearance. Adafactor takes its eps from the first group."""
    if len(keys) < 2:
        return keys
    with of_torch.disable_current_modes():
        return list(of_torch.group_tensors_by_device_and_dtype([[torch.empty(0, device=device, dtype=dtype) for device, dtype in keys]], False))


@handles(of_torch.optimizer_group_tensors)  # which groups nothing while a program is compiled
@handles(of_torch.foreach_group_tensors, one_operation=True)
def group_tensors(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Lists of tensors, split by the device and dtype of those of the first list; what clipping and foreach steps loop over."""
    nested, indexed = bind_arguments("group_tensors", ["tensorlistlist", "with_indices"], args, kwargs, {"with_indices": ConstantValue(False)})
    columns = [column.elements(cx) for column in nested.elements(cx)]
    if not columns or not columns[0]:
        raise unsupported("would-raise", "grouping an empty list of tensors")
    rows: dict[tuple, list[int]] = {}
    for index, first in enumerate(columns[0]):
        if not isinstance(first, TensorValue):
            raise unsupported("unknown-operation", "grouping tensors by a list that does not hold tensors alone")
        rows.setdefault((first.sample.device, first.sample.dtype), []).append(index)
    if any(len(column) not in (0, len(columns[0])) for column in columns):
        raise unsupported("would-raise", "lists of tensors of different lengths")
    pairs: list[tuple[Value, Value]] = []
    for device, dtype in order_of_groups(list(rows)):
        indices = rows[device, dtype]
        lists = ListValue([ListValue([column[i] for i in indices] if column else []) for column in columns])
        numbers = ListValue([ConstantValue(i) for i in indices] if indexed.truth(cx) else [])
        pairs.append((TupleValue([ConstantValue(device), ConstantValue(dtype)]), TupleValue([lists, numbers])))
    return DictValue.of(pairs)
