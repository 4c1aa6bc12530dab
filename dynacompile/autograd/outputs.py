"""How each user output is made: fresh, an input, a view of an input, a view of another output, or no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dynacompile.autograd.functionalize import FunctionalInput, storage
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import Constant, Fresh, InputItself, Output, View, ViewOfInput, ViewOfOutput


@dataclass
class Positions:
    """The forward graph's outputs, as functional tensors, each once."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor) -> int:
        position = self._known.setdefault(id(tensor), len(self.tensors))
        if position == len(self.tensors):
            self.tensors.append(tensor)
        return position

    @property
    def differentiable(self) -> list[int]:
        return [i for i, t in enumerate(self.tensors) if t.requires_grad]


def classify(outputs: Sequence[object], inputs: Sequence[FunctionalInput], positions: Positions) -> tuple[Output, ...]:
    """One row per user output; the tensors that the forward graph must give are added to `positions`."""
    owners: dict[int, int] = {}
    for i, entry in enumerate(inputs):
        if entry.is_tensor:
            owners.setdefault(storage(entry.value), i)
    itself = {id(entry.value): i for i, entry in reversed(list(enumerate(inputs))) if entry.is_tensor}
    families: dict[int, list[torch.Tensor]] = {}
    for output in outputs:
        if isinstance(output, torch.Tensor) and storage(output) not in owners:
            family = families.setdefault(storage(output), [])
            if all(output is not member for member in family):
                family.append(output)
    rows: list[Output] = []
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            rows.append(Constant(plain(output)))
        elif id(output) in itself:
            rows.append(InputItself(itself[id(output)]))
        elif storage(output) in owners:
            rows.append(view_of_input(output, owners[storage(output)], inputs))
        else:
            rows.append(view_or_fresh(output, families[storage(output)], positions))
    return tuple(rows)


def plain(value: object) -> object:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unsupported("dynamic-shape", "an output of the graph is a symbolic number; only static shapes are differentiated", "compile with dynamic=False")
    return value


def view_of_input(output: torch.Tensor, index: int, inputs: Sequence[FunctionalInput]) -> ViewOfInput:
    base = inputs[index].value
    assert isinstance(base, torch.Tensor)
    if output.requires_grad and overlaps(base):
        raise Unsupported("aliased-outputs", "an output is a view of an input whose own elements share memory, as in an expanded tensor", "clone the input")
    return ViewOfInput(index, geometry(output, base), output.requires_grad or not base.requires_grad)


def view_or_fresh(output: torch.Tensor, family: Sequence[torch.Tensor], positions: Positions) -> Fresh | ViewOfOutput:
    if output.requires_grad and output.is_leaf:
        raise Unsupported("leaf-inside", "a tensor made inside the graph is marked with requires_grad_()", "make it outside of the compiled function")
    if len(family) == 1 and not overlaps(output):
        return Fresh(positions.of(output), output.requires_grad)
    base = base_of(family)
    position = positions.of(base)
    if output is base:
        return Fresh(position, base.requires_grad)
    return ViewOfOutput(position, geometry(output, base), output.requires_grad)


def base_of(family: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor that all of a family of outputs, which share memory, can be made from as views."""
    first = next((t for t in family if t.requires_grad), family[0])
    base = first if first._base is None else first._base
    for member in family:
        if member.requires_grad and member is not base and member._base is not base:
            raise Unsupported("aliased-outputs", "outputs share memory in a way that is no view of one tensor", "clone one of the outputs")
    return base


def overlaps(tensor: torch.Tensor) -> bool:
    """Several elements share memory, as in an expanded tensor: it can't be written to, and a gradient can't have its strides."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def geometry(tensor: torch.Tensor, base: torch.Tensor) -> View:
    """`tensor` over the memory of `base`; the offset counts from base's first element."""
    if tensor.dtype != base.dtype or tensor.is_conj() != base.is_conj() or tensor.is_neg() != base.is_neg():
        raise Unsupported("aliased-outputs", f"an output is the memory of a {base.dtype} tensor seen as {tensor.dtype}", "clone the output")
    return View(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset() - base.storage_offset()))
