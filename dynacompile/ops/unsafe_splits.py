"""`torch.unsafe_split`, `unsafe_chunk` and `unsafe_split_with_sizes`: parts that share the memory of a tensor, though autograd doesn't know them as its views.

Their schemas say nothing of shared memory, so that functionalization takes the parts for new tensors, and no write to the whole would reach them. Here each
part is a view of a view: the split, as functionalization knows it, seen by `aten._unsafe_view`. Functionalization knows that as a view as well, and autograd
as an operation that gives a new tensor: a write to a part changes no other tensor's history and counts for no other tensor's version, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten


def untracked(split: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """The operation that gives the parts that a split gives, as tensors that are no views to autograd."""

    def parts(*args: object, **kwargs: object) -> list[torch.Tensor]:
        named = {"self" if name == "input" else name: value for name, value in kwargs.items()}
        return [aten._unsafe_view.default(part, part.shape) for part in split(*args, **named)]

    return parts


UNSAFE_METHODS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "unsafe_chunk": untracked(aten.chunk.default),
    "unsafe_split": untracked(aten.split.Tensor),
    "unsafe_split_with_sizes": untracked(aten.split_with_sizes.default),
}
"""What stands for a tensor's method of this name."""
UNSAFE_FUNCTIONS: dict[object, Callable[..., list[torch.Tensor]]] = {
    form: split
    for name, split in UNSAFE_METHODS.items()
    for packet in [getattr(aten, name)]
    for form in (getattr(torch, name), getattr(torch.Tensor, name), packet, getattr(packet, packet.overloads()[0]))
}
"""What stands for functions that do the same."""
