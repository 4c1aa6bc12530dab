"""What an entry relies on of the inputs that its graph writes: their memory is theirs alone, and autograd lets them be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.frames.interpreter import FrameContext
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.shared_memory import SharesMemory, can_be_views
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.own_methods import KEYS
from dynacompile.ir.captured import GraphInput, Guard, Site
from dynacompile.ir.guard_facts import Disjoint, memory_range
from dynacompile.ir.looks import Later, Look, sample_of
from dynacompile.ir.source import Attr, Constant, Made
from dynacompile.ops.wrappers import begun


def check_memory(cx: FrameContext, inputs: Sequence[GraphInput], written_inputs: Sequence[GraphInput]) -> None:
    """Refuses graphs that write an input which shares memory with another: functionalisation would separate the two. Where both can be views of one
    input, they become that. written_inputs: see `Inputs.written_inputs`."""
    if any(memory.fake.requires_grad for memory, _ in cx.recorder.memories.values()):
        raise unsupported("aliased-mutation", "what requires gradients is written into memory that inputs share")
    written = {i.name for i in written_inputs}
    if not written:
        return
    if any(i.is_pending for i in written_inputs):
        raise unsupported("mutation", "the result of a collective that may be under way is written")
    for item in written_inputs:
        if lags(cx.recorder.tensors[item.name].real):
            raise unsupported("aliased-mutation", f"{item.name}, a view, was written twice by one operation, of which its history has one")
    inputs = with_shown(cx, inputs)
    reals = {name: begun(value.real) for name, value in cx.recorder.tensors.items()}
    ranges = sorted((*memory_range(reals[i.name]), i.name) for i in inputs if i.name in reals)
    open_ranges: list[tuple[int, str]] = []
    for begin, end, name in ranges:
        open_ranges = [(other_end, other) for other_end, other in open_ranges if other_end > begin]
        for _, other in open_ranges:
            if name in written or other in written:
                share(cx, inputs, reals, name)
                raise unsupported("aliased-mutation", f"{other} and {name}")
        if end > begin:
            open_ranges.append((end, name))


def lags(real: Any) -> bool:
    """Whether the history of a view lags behind that of its base, as `torch._foreach_mul_([v, v], 2)` leaves it. Eager reads the view by its own history, and
    writes it by that of the base; a graph has one for both, in calls that get such a view after this one that of the base (`runtime/view_writes.cpp`)."""
    base = real._base if real.requires_grad else None
    if base is None:
        return False
    node = real.grad_fn
    while node is not None and node is not base.grad_fn and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is not base.grad_fn


def with_shown(cx: FrameContext, inputs: Sequence[GraphInput]) -> list[GraphInput]:
    """The inputs of the graph, and those that guards, texts or calls after the graph read."""
    recorder = cx.recorder
    names, shown = {i.name for i in inputs}, recorder.shown | recorder.held
    others = ((i, recorder.tensors.get(i.name)) for i in recorder.inputs if i.name not in names) if shown else ()
    return [*inputs, *(i for i, value in others if value is not None and value.has_fake and storage_of(value.fake) in shown)]


def share(cx: FrameContext, inputs: Sequence[GraphInput], reals: dict[str, torch.Tensor], name: str) -> None:
    """Has the frame captured again, with all inputs that share the memory of that one as views of it, where they can be."""
    place = reals[name].untyped_storage().data_ptr()
    sharing = {i.source: reals[i.name] for i in inputs if i.name in reals and reals[i.name].untyped_storage().data_ptr() == place}
    if not cx.manner.shares and cx.symbols is None and can_be_views(sharing.values()):
        raise SharesMemory(frozenset(sharing))


def alias_guards(cx: FrameContext, inputs: Sequence[GraphInput], written_inputs: Sequence[GraphInput], site: Site) -> list[Guard]:
    """NOT_ALIASED for inputs that could be one object in a later call where it would matter: alike, and not all plain module state. So for other objects
    of one class, of which one is changed, or several are told apart."""
    written = {i.name for i in written_inputs}
    groups: dict[tuple, list[GraphInput]] = {}
    by_look: dict[Look, list[GraphInput]] = {}  # of these groups, that of the inputs with a look
    tensors = cx.recorder.tensors
    for item in [i for i in cx.recorder.inputs if i.name in tensors]:  # also those that no operation reads: their identity may matter
        if isinstance(item.source, Made):
            continue
        given = item.given
        look = given.look if type(given) is Later and given.made is None else None
        group = None if look is None else by_look.get(look)
        if group is None:
            fake: Any = sample_of(given)
            extents = (tuple(fake.shape), tuple(fake.stride())) if cx.symbols is None else fake.dim()
            group = groups.setdefault((fake.dtype, fake.device, extents), [])
            if look is not None:
                by_look[look] = group
        group.append(item)
    out = []
    for group in groups.values():
        if not any(i.name in written for i in group):
            group = [i for i in group if type(i.source).__name__ != "Registered" or tensors[i.name].told_apart]
        if len(group) > 1:
            out.append(Guard("NOT_ALIASED", None, tuple(i.source for i in group), site))
    changed = tuple(i.source for i in inputs if i.name in written and not isinstance(i.source, Made))
    others = tuple(i.source for i in with_shown(cx, inputs) if i.name not in written and i.name in tensors and not isinstance(i.source, Made))
    if changed and len(changed) + len(others) > 1:
        out.append(Guard("DISJOINT", None, Disjoint(changed, others), site))
    kinds: dict[type, list[Value]] = {}
    for value in cx.known.values():
        if value.source is not None and (value.told_apart or hasattr(value, "replay") and type(value.source).__name__ != "Constant"):
            kinds.setdefault(value.pytype(), []).append(value)
    for cls, members in kinds.items():
        if any(m.told_apart for m in members):  # as keys, and by ==, they are what they are for as long as their class says nothing else
            for name in KEYS:
                cx.lookup(cls, name)
        if not any(m in cx.effects.touched for m in members):
            members = [m for m in members if m.told_apart and not isinstance(m, TensorValue)]
        if len(members) > 1 and not all(isinstance(m.source, Constant) for m in members):
            out.append(Guard("NOT_ALIASED", None, tuple(m.source for m in members), site))
    return out


def write_guards(cx: FrameContext, written_inputs: Sequence[GraphInput], site: Site) -> Iterator[Guard]:
    """Autograd lets no leaf that requires gradients be written, nor a view of one: another tensor that it computed is none of the two. Were it one, the
    graph would raise, before what the frame did first."""
    for item in written_inputs:
        real: Any = cx.recorder.tensors[item.name].real
        if real.requires_grad and not real.is_leaf:
            base = Attr(item.source, "_base")
            yield Guard("EQUALS", Attr(item.source, "is_leaf"), False, site)
            yield Guard("NONE", base, None, site) if real._base is None else Guard("EQUALS", Attr(base, "is_leaf"), real._base.is_leaf, site)
