"""Fake tensors: metadata without memory, made without the machinery for symbolic shapes."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensor, FakeTensorMode


class Computed(torch.autograd.Function):
    """Gives its second argument, an own tensor of any strides, a history that ends at the first."""

    @staticmethod
    def forward(ctx, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def fake_mode() -> FakeTensorMode:
    """A mode for static shapes. The first one in a process loads a second's worth of torch's own modules."""
    return FakeTensorMode(allow_non_fake_inputs=False, static_shapes=True)


def fake_of(mode: FakeTensorMode, real: torch.Tensor) -> FakeTensor:
    """A fake with the size, strides, dtype, device and requires_grad of a strided tensor; its storage offset is 0, its storage its own.

    A tensor that autograd computed gives a fake that is no leaf, so that in-place operations are refused where eager refuses them.
    """
    with torch._C._DisableTorchDispatch():
        elements = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device="meta")
        fake = FakeTensor(mode, elements, real.device)
        if real.requires_grad and not real.is_leaf:
            with torch.enable_grad():
                return Computed.apply(torch.empty((), requires_grad=True), fake)
        fake.requires_grad_(real.requires_grad)
    return fake
