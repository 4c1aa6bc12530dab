"""torch.optim: which steps are captured. A step is a graph of its hyperparameters, so one whose learning rate moves as a Python number is Python's."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _get_value
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import GetMethod, SpecialFunction, function_value
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.ir.guard_facts import function_facts
from dynacompile.ir.source import Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace

STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__  # of every optimizer's `step`


class StepValue(SpecialFunction):
    """SomeOptimizer.step."""

    def get_attr(self, cx: Trace, name: str) -> Value:
        return GetMethod(self) if name == "__get__" else super().get_attr(cx, name)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        optimizer = getattr(args[0], "real", None) if args else None
        if is_scheduled(optimizer):
            raise unsupported("scheduled-rate", type(optimizer).__name__)
        return self.function.call(cx, args, kwargs)


def is_scheduled(optimizer: Any) -> bool:
    """Whether a scheduler gives the optimizer another learning rate again and again, as a Python number."""
    groups = getattr(optimizer, "param_groups", ()) if isinstance(optimizer, torch.optim.Optimizer) else ()
    return any("initial_lr" in group and not isinstance(group["lr"], torch.Tensor) for group in groups)


def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """What Optimizer.zero_grad does, for capture to follow."""
    for group in self.param_groups:
        for p in group["params"]:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()


@handles(torch.optim.Optimizer.zero_grad)
def call_zero_grad(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.call_real(zero_grad, Constant(zero_grad, "zero_grad"), args, kwargs)


@handles(_get_value)
def value_of_step(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A count of steps as a number of eager's precision."""
    (value,) = args
    fake = getattr(value, "fake", None)
    return cx.op("call_method", "double", [value], {}) if isinstance(fake, torch.Tensor) and fake.is_floating_point() and not fake.dim() else value


def wrap_step(cx: Trace, real: types.FunctionType, source: Source) -> Value | None:
    """The value of an optimizer's `step`, None for other functions."""
    if real.__code__ is not STEP_CODE:
        return None
    cx.guard("FUNCTION", source, function_facts(real))
    return StepValue(function_value(cx, real, source))


@handles(_group_tensors_by_device_and_dtype)
def group_tensors(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Lists of tensors, split by the device and dtype of those of the first list; what clipping and foreach steps loop over."""
    nested, indexed = bind_arguments("group_tensors", ["tensorlistlist", "with_indices"], args, kwargs, {"with_indices": ConstantValue(False)})
    columns = [column.elements(cx) for column in nested.elements(cx)]
    rows: dict[tuple, list[int]] = {}
    for index, first in enumerate(columns[0]):
        if not isinstance(first, TensorValue):
            raise unsupported("unknown-operation", "grouping tensors by a list that does not hold tensors alone")
        rows.setdefault((first.fake.device, first.fake.dtype), []).append(index)
    if any(len(column) not in (0, len(columns[0])) for column in columns):
        raise unsupported("would-raise", "lists of tensors of different lengths")
    pairs: list[tuple[Value, Value]] = []
    for (device, dtype), indices in rows.items():
        lists = ListValue([ListValue([column[i] for i in indices] if column else []) for column in columns])
        numbers = ListValue([ConstantValue(i) for i in indices] if indexed.truth(cx) else [])
        pairs.append((TupleValue([ConstantValue(device), ConstantValue(dtype)]), TupleValue([lists, numbers])))
    return DictValue.of(pairs)
