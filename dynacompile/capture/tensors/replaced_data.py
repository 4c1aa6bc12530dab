"""`tensor.data = other`: from there on a tensor of before the frame has the memory of another one, and its own history."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operands import tensors_in
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.tensor import SETTERS, TensorValue
from dynacompile.capture.values.base import Value

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class WithHistory(torch.autograd.Function):
    """The memory of `data`. Gradients are those of `tensor`."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def data_with_history(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """What `tensor` is after `tensor.data = data`, also where gradients are off for now."""
    with torch.enable_grad():
        return WithHistory.apply(tensor, data)


def data_alone(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """The same of a tensor that gets no gradient in the graph."""
    return data.detach()


def place(fake: torch.Tensor) -> tuple:
    return fake.dtype, fake.device, tuple(fake.shape), fake.stride(), fake.storage_offset()


def replace_data(cx: Context, tensor: TensorValue, value: Value) -> None:
    """Does nothing where the tensor has that memory already, as after `tensor.data -= step`. The frame's tensor goes on as the result of an operation, and the
    real one is given that result's memory after the graph."""
    if type(value) is not TensorValue or type(tensor) is not TensorValue:
        raise refusal(tensor)
    mine, given = tensor.fake, value.fake
    if place(mine) == place(given) and storage_of(mine) == storage_of(given):
        return
    recorder = cx.recorder
    alike = (mine.dtype, mine.device, mine.shape) == (given.dtype, given.device, given.shape)
    if tensor.source is None or tensor.has_array or not alike or cx.bodies or recorder.is_inference(mine) or recorder.is_inference(given):
        raise refusal(tensor)
    if mine.requires_grad and any(t.requires_grad and not t.is_leaf for user in tensor.node.users for t in tensors_in(user.meta.get("val"))):
        raise refusal(tensor)  # a backward pass would have to tell what was kept of the tensor from what is computed of it again
    with_history = mine.requires_grad and recorder.begins_with_gradients
    made = cx.op("call_function", data_with_history if with_history else data_alone, [tensor, value], {})
    assert isinstance(made, TensorValue)
    if tensor.new_data is None:
        recorder.stand_in(tensor, copy.copy(tensor))
    tensor.node, tensor.fake = made.node, made.fake
    tensor.new_data = cx.op("call_method", "detach", [value], {}) if with_history else made  # the real one has its history already
    if with_history:
        recorder.rebound.add(id(made.fake))
    cx.effects.touch(tensor)


def refusal(tensor: TensorValue) -> Exception:
    return unsupported("tensor-attribute", f"{tensor.describe()}.data = ...")


SETTERS["data"] = replace_data
