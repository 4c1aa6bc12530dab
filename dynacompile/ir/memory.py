"""How the elements of a tensor lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynacompile.ir.shapes import exceeds, expression_of, hint_of, is_undecidable


def overlaps(tensor: torch.Tensor) -> bool:
    """Several elements share memory, as in an expanded tensor: it can't be written to, and a gradient can't have its strides. No elements share none."""
    if any(expression_of(size) == 0 for size in tensor.shape):
        return False
    dims = sorted(zip(tensor.stride(), tensor.shape, strict=True), key=lambda pair: (hint_of(pair[0]), hint_of(pair[1])))
    # What does not meet with several elements along each dimension does not with fewer, so that no size has to be asked.
    return meet([d for d in dims if expression_of(d[1]) not in (0, 1)]) and meet([d for d in dims if exceeds(d[1], 1)])


def meet(dims: Sequence[tuple[int | torch.SymInt, int | torch.SymInt]]) -> bool:
    """Whether steps along a dimension come back to those along others. dims: stride and size, by rising strides."""
    reach: int | torch.SymInt = 0
    for stride, size in dims:
        if hint_of(stride) <= hint_of(reach) if is_undecidable(size, stride, reach) else stride <= reach:
            return True
        reach = reach + stride * (size - 1)
    return False


WINDOWS = frozenset({"unfold", torch.Tensor.unfold, torch.ops.aten.unfold.default})
"""Views that may leave out elements of what they are views of: functionalization writes zeros there."""


class Folded:
    """Views that lead through memory of which several elements are one, as those of an expanded tensor. Functionalization adds up what is written to
    such elements, where a write in place leaves the last value, so writes through these views are left to torch."""

    def __init__(self) -> None:
        self._known: set[int] = set()  # ids of tensors, which the owner keeps alive

    def note(self, target: Any, results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> None:
        """Tells of what an operation has made of its operands."""
        if not results or not operands:
            return
        places: dict[int, list[torch.Tensor]] = {}
        for operand in operands:
            places.setdefault(operand.untyped_storage()._cdata, []).append(operand)
        for result in results:
            sources = [t for t in places.get(result.untyped_storage()._cdata, ()) if t is not result]
            if sources and (target in WINDOWS or overlaps(result) or any(map(self.has, sources))):
                self._known.add(id(result))

    def __bool__(self) -> bool:
        return bool(self._known)

    def has(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._known or overlaps(tensor)
