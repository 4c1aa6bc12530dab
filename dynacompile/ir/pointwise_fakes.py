"""What pointwise operations on fakes that look the same give: a fake that looks so, too.

Torch finds that out by its reference implementations, half a millisecond for each operation and shape that it meets, and keeps what it finds: a first compile
that meets many shapes spends a tenth of its time there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.layouts import LAYOUTS
from dynacompile.ir.looks import new_fake
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

aten = torch.ops.aten
ROWS = {
    ("Tensor", "Scalar"): (aten.add, aten.sub, aten.mul, aten.div, aten.rsub, aten.lerp),
    ("Tensor_Tensor", "Tensor_Scalar"): (aten.pow,),
    ("default",): (aten.addcmul, aten.addcdiv, aten.neg, aten.abs, aten.sqrt, aten.rsqrt, aten.reciprocal, aten.exp, aten.sigmoid, aten.tanh),
}
POINTWISE = frozenset(getattr(op, overload) for overloads, ops in ROWS.items() for op in ops for overload in overloads).difference(LAYOUTS)
"""Operations on floats, tensors and numbers, whose results have the type of the tensors, where these have one."""
FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
NUMBERS = (int, float)


def pointwise_fake(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FakeTensor | None:
    """The result of an operation whose tensors all have one size, one type, one device, and the strides of new tensors; None for all others."""
    if func not in POINTWISE or torch.is_inference_mode_enabled() or any(type(value) not in NUMBERS for value in kwargs.values()):
        return None
    size: Any = None
    for arg in args:
        if type(arg) is not FakeTensor:
            if type(arg) not in NUMBERS:
                return None
        elif arg.fake_mode is not mode or arg.constant is not None or arg.layout is not torch.strided or arg._has_symbolic_sizes_strides:
            return None
        elif size is None:
            size, stride, dtype, device = arg.size(), arg.stride(), arg.dtype, arg.fake_device
            if dtype not in FLOATS or device.type == "meta" or stride != new_strides(size):
                return None
        elif arg.dtype is not dtype or arg.size() != size or arg.stride() != stride or arg.fake_device != device:
            return None
    if size is None:
        return None
    with of_torch.DisableTorchDispatch():
        return new_fake(mode, size, stride, dtype, device)


def new_strides(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor."""
    found, step = [], 1
    for extent in reversed(size):
        found.append(step)
        step *= max(extent, 1)
    return tuple(reversed(found))
