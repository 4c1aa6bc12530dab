"""How each user output is made: fresh, an input, a view of an input, a view of another output, or no tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from dynacompile.autograd.functionalize import FunctionalInput, InferenceMemory, Memory, inner, storage
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import Constant, Fresh, InputItself, Lineage, Made, Output, View, ViewOfInput, ViewOfOutput
from dynacompile.ir.memory import overlaps
from dynacompile.ir.shapes import hint_of, is_never_negative, is_undecidable
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

CREATION = of_torch.CreationMeta  # type: ignore[attr-defined]
MADE = {
    CREATION.DEFAULT: Made.GRAD,
    CREATION.IN_CUSTOM_FUNCTION: Made.GRAD,
    CREATION.MULTI_OUTPUT_NODE: Made.PART,
    CREATION.NO_GRAD_MODE: Made.NO_GRAD,
    CREATION.INFERENCE_MODE: Made.NO_GRAD,
}
GUARDED = {CREATION.IN_CUSTOM_FUNCTION: Made.CUSTOM, CREATION.MULTI_OUTPUT_NODE: Made.PART}


@dataclass
class Positions:
    """The forward graph's outputs, as functional tensors, each once. seen: as capture saw them, whose strides they are to have (None: any)."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    seen: list[FakeTensor | None] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor, seen: FakeTensor | None = None) -> int:
        position = self._known.setdefault(id(tensor), len(self.tensors))
        if position == len(self.tensors):
            self.tensors.append(tensor)
            self.seen.append(seen)
        return position

    @property
    def differentiable(self) -> list[int]:
        return [i for i, t in enumerate(self.tensors) if t.requires_grad]


@dataclass(frozen=True)
class Result:
    """One tensor that the graph returns, and as capture saw it (None: not known): with the sizes, strides and offset of eager's."""

    tensor: torch.Tensor
    eager: FakeTensor | None


def classify(
    outputs: Sequence[object],
    seen: Sequence[object],
    inputs: Sequence[FunctionalInput],
    memories: Mapping[int, Memory],
    positions: Positions,
    stays_view: Sequence[bool],
) -> tuple[Output, ...]:
    """One row per user output; the tensors that the forward graph must give are added to `positions`. seen: the outputs as capture saw them.
    stays_view: whether an output that is a view is one to the caller's autograd, also where no other output shares its memory."""
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
    for output, eager, stays in zip(outputs, seen, stays_view, strict=True):
        if not isinstance(output, torch.Tensor):
            rows.append(Constant(plain(output)))
            continue
        result = Result(output, eager if isinstance(eager, FakeTensor) else None)
        if id(output) in itself:
            rows.append(InputItself(itself[id(output)]))
        elif storage(output) in owners:
            rows.append(view_of_input(result, owners[storage(output)], inputs))
        else:
            rows.append(view_or_fresh(result, families[storage(output)], memories.get(storage(output)), positions, stays))
    return tuple(views_of_views(outputs, rows))


def of_inference(rows: Sequence[Output], outputs: Sequence[object], inference: InferenceMemory, positions: Positions) -> Iterator[Output]:
    """The rows, with inference tensors as the caller may write them: those alone that were detached behind the mode count their writes."""
    for row, output in zip(rows, outputs, strict=True):
        if not isinstance(output, torch.Tensor) or not isinstance(row, (Fresh, ViewOfOutput)) or storage(output) not in inference.storages:
            yield row
        elif all(output is not t for t in inference.detached):
            unwritable = isinstance(row, ViewOfOutput) and row.lineage.made is Made.DETACHED
            yield replace(row, lineage=Lineage(Made.NO_GRAD)) if unwritable else row  # type: ignore[arg-type]
        elif isinstance(row, Fresh):
            seen = positions.seen[row.position]
            whole = inner(positions.tensors[row.position]) if seen is None else seen
            is_alone = sum(getattr(other, "position", None) == row.position for other in rows) == 1
            yield ViewOfOutput(row.position, geometry(whole, whole), Lineage(Made.DETACHED), alone=is_alone)
        else:
            yield row


def views_of_views(outputs: Sequence[object], rows: Sequence[Output]) -> Iterator[Output]:
    """The rows, with what autograd comes by. Through a view whose own elements share memory it would come to others of them. Views of other memory, which it
    comes by where that was computed from them alone, are none of these."""
    places: defaultdict[int, dict[tuple[Any, int], int]] = defaultdict(dict)  # by memory
    for j, (output, row) in enumerate(zip(outputs, rows, strict=True)):
        if leads_back(output, row) and not overlaps(output):
            places[storage(output)][output.grad_fn, output.output_nr] = j
    for output, row in zip(outputs, rows, strict=True):
        through = found_behind(output.grad_fn, places[storage(output)]) if places and leads_back(output, row) else None
        yield row if through is None else replace(row, lineage=replace(row.lineage, through=through))  # type: ignore[union-attr, arg-type]


def leads_back(output: object, row: Output) -> TypeGuard[torch.Tensor]:
    """Whether an output is a view whose gradient goes on to what it is a view of."""
    if not isinstance(row, (ViewOfInput, ViewOfOutput)) or row.lineage.made not in (Made.GRAD, Made.PART) or row.lineage.detached:
        return False
    assert isinstance(output, torch.Tensor)
    return not row.lineage.leaf and not (isinstance(row, ViewOfOutput) and row.alone) and output.requires_grad and has_history(output)


def found_behind(node: Any, places: Mapping[tuple[Any, int], int]) -> int | None:
    """The first of some tensors that straight steps lead back to. places: by autograd's node, and which of its results."""
    while node is not None and places:
        steps = [step for step in node.next_functions if step[0] is not None]
        if len(steps) != 1:
            return None
        if steps[0] in places:
            return places[steps[0]]
        node = steps[0][0]
    return None


def plain(value: object) -> object:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unsupported("dynamic-shape", "an output of the graph is a symbolic number; only static shapes are differentiated", "compile with dynamic=False")
    return value


def view_of_input(result: Result, index: int, inputs: Sequence[FunctionalInput]) -> ViewOfInput:
    output, base = result.tensor, inputs[index].value
    assert isinstance(base, torch.Tensor)
    if output.requires_grad and overlaps(base):
        raise Unsupported("aliased-outputs", "an output is a view of an input whose own elements share memory, as in an expanded tensor", "clone the input")
    view = geometry(result.eager, inputs[index].fake) if result.eager is not None else geometry(inner(output), inner(base))
    return ViewOfInput(index, view, replace(lineage(output, base), leaf=is_new_leaf(output)))


def is_new_leaf(output: torch.Tensor) -> bool:
    """Whether the frame has told a view of an input to require gradients, which no other tensor that it is a view of does."""
    try:
        return output.requires_grad and output.is_leaf and (output._base is None or not output._base.requires_grad)
    except RuntimeError:  # a view that autograd tells nothing of
        return False


def view_or_fresh(result: Result, family: Sequence[torch.Tensor], memory: Memory | None, positions: Positions, stays_view: bool) -> Fresh | ViewOfOutput:
    output = result.tensor
    try:
        is_leaf = output.requires_grad and output.is_leaf
    except RuntimeError as error:  # whoever asks the caller's tensor is to hear it
        reason = "an output is a view that autograd tells nothing of, as its memory was written after it was made"
        raise Unsupported("aliased-outputs", reason, "return it before, or clone it") from error
    if is_leaf:
        raise Unsupported("leaf-inside", "a tensor made inside the graph is marked with requires_grad_()", "make it outside of the compiled function")
    if len(family) == 1 and not overlaps(output if result.eager is None else result.eager):
        position = positions.of(output, result.eager)
        made = known_as(output) if stays_view else guarded(output)
        if made is None:
            return Fresh(position, output.requires_grad)
        whole = inner(output) if result.eager is None else result.eager
        return ViewOfOutput(position, geometry(whole, whole), Lineage(made), alone=True)
    base, seen = base_of(family, memory)
    position = positions.of(base, seen)
    if output is base:
        return Fresh(position, base.requires_grad)
    view = geometry(result.eager, seen) if result.eager is not None and seen is not None else geometry(inner(output), inner(base))
    if not lies_within(view, base):
        raise Unsupported("aliased-outputs", "outputs are parts of memory of which no output is the whole", "clone one of the outputs")
    return ViewOfOutput(position, view, lineage(output, base))


def guarded(output: torch.Tensor) -> Made | None:
    """Of a view that autograd lets nobody write to, how it was made."""
    if not output.requires_grad or output._base is None:
        return None
    return GUARDED.get(of_torch.get_creation_meta(output))  # type: ignore[attr-defined]


def known_as(output: torch.Tensor) -> Made | None:
    """How autograd knows an output whose memory is its own as a view. None where it is no view."""
    if output._base is None or output.is_inference():
        return None
    return guarded(output) or MADE[of_torch.get_creation_meta(output)]  # type: ignore[attr-defined]


def lineage(output: torch.Tensor, base: torch.Tensor) -> Lineage:
    """How autograd knows `output`, which shares the memory of `base`."""
    if output.requires_grad and (output._base is not base or not base.requires_grad) and not is_new_leaf(output):
        reason = "an output shares memory with another tensor, and requires gradients that do not come by it"
        raise Unsupported("aliased-outputs", reason, "clone the output")
    if output._base is None:
        return Lineage(Made.DETACHED, counted=shares_version(output, base))
    created = of_torch.get_creation_meta(output)  # type: ignore[attr-defined]
    if created == CREATION.IN_CUSTOM_FUNCTION and output.requires_grad:
        raise Unsupported("aliased-outputs", "an output is a view that a custom autograd function returned", "clone it in the function")
    made = MADE[created]
    if made is Made.NO_GRAD and has_history(output):
        reason = "an output is a view, under grad mode, of a view that was made under no_grad and gets the gradients"
        raise Unsupported("leaf-inside", reason, "make both under the same grad mode")
    if output._base is base:
        return Lineage(made)
    return Lineage(made, True, shares_version(output, base))


def shares_version(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to one counts as one to the other, as it does not through `.data`."""
    with of_torch.unsafe_preserve_version_counter(a):
        before = b._version
        torch.autograd.graph.increment_version(a)
        return b._version != before


def has_history(view: torch.Tensor) -> bool:
    """Whether gradients flow through a view of a view that was made under no_grad. Once either is written, autograd refuses to tell, as it refuses to
    differentiate: then there is nothing to flow."""
    try:
        return view.grad_fn is not None
    except RuntimeError:
        return False


def base_of(family: Sequence[torch.Tensor], memory: Memory | None) -> tuple[torch.Tensor, FakeTensor | None]:
    """The tensor that all of a family of outputs, which share memory, can be made from as views; and as capture saw it."""
    first = next((t for t in family if t.requires_grad), family[0])
    is_whole = memory is not None and memory.eager is not None and memory.tensor._base is None  # not a part of what one operation gives
    base, seen = (memory.tensor, memory.eager) if is_whole else (root(first), None)  # type: ignore[union-attr]
    for member in family:
        if member.requires_grad and root(member) is not root(base):
            raise Unsupported("aliased-outputs", "outputs share memory in a way that is no view of one tensor", "clone one of the outputs")
    return base, seen


def lies_within(view: View, base: torch.Tensor) -> bool:
    """Whether the memory of the base is known to have all elements of the view."""
    last = sum((size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True))
    end = sum((size - 1) * stride for size, stride in zip(base.shape, base.stride(), strict=True))
    if is_undecidable(*view.size, *base.shape):  # without elements, it lies anywhere
        sizes = [*view.size, *base.shape]
        return is_never_negative(view.offset, sizes) and is_never_negative(end - view.offset - last, sizes)  # type: ignore[arg-type]
    if 0 in view.size:
        return True
    return hint_of(view.offset) >= 0 and hint_of(view.offset + last) <= hint_of(end)


def root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def geometry(tensor: torch.Tensor, base: torch.Tensor) -> View:
    """`tensor` over the memory of `base`; the offset counts from base's first element."""
    if tensor.dtype != base.dtype or tensor.is_conj() != base.is_conj() or tensor.is_neg() != base.is_neg():
        raise Unsupported("aliased-outputs", f"an output is the memory of a {base.dtype} tensor seen as {tensor.dtype}", "clone the output")
    return View(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset() - base.storage_offset())  # type: ignore[arg-type]
