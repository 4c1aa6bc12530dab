"""Inputs that share memory, where the frame writes one of them: in the graph they are views of one input, which is all of the memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dynacompile.ir.expressions import Quantity
from dynacompile.ir.guard_facts import ShapeFacts
from dynacompile.ir.source import Applied, Source


class SharesMemory(Exception):
    """The frame writes an input that shares memory with others: it is to be captured with these as views of one."""

    def __init__(self, sources: frozenset[Source]):
        self.sources = sources


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's memory, as a tensor of one dimension whose writes count as writes of that one."""
    return tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def root_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def can_be_views(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd follows none of the tensors, and all are views of one, so that a write of one is counted for each."""
    first, *others = tensors
    for tensor in (first, *others):
        if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.is_inference() or tensor.dtype != first.dtype:
            return False
        if root_of(tensor) is not root_of(first) or tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return False
    return not first.untyped_storage().nbytes() % first.itemsize


def whole_source(source: Source) -> Source:
    return Applied(source, whole, "'s memory")


def relation(first: Source, other: Source) -> tuple[Source, Source, ShapeFacts]:
    """The roots of two tensors, which are one, and that their memory is one."""
    roots: list[Any] = [Applied(source, root_of, "._base") for source in (other, first)]
    storages = [Applied(source, torch.Tensor.untyped_storage, ".untyped_storage()") for source in (first, other)]
    places = tuple(Quantity(Applied(storage, torch.UntypedStorage.data_ptr, ".data_ptr()"), "value") for storage in storages)
    return (*roots, ShapeFacts(places, ("eq", ("quantity", 0), ("quantity", 1))))  # type: ignore[return-value]
