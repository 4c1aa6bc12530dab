"""What the graph passes and the partitioner ask about a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from dynacompile.ir.shapes import exceeds, expression_of, hint_of, is_undecidable
from dynacompile.ops.table import TABLE

Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any, torch.dtype]

FUSIBLE = frozenset({"pointwise", "create", "view", "cat", "pad", "slice_scatter", "select_scatter", "flip", "roll", "repeat", "triangle"})


def kind(node: torch.fx.Node) -> str:
    """How the node lowers: a kind of `ops.table`, "view", "extern", or the fx op where it is no call."""
    if node.op != "call_function":
        return node.op
    if not isinstance(node.target, torch._ops.OpOverload):
        return "item"
    found = TABLE.get(str(node.target))
    if found is not None and found.kind != "extern":
        return found.kind
    return "view" if node.target.is_view else "extern"


def is_view(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def is_random(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def has_effect(node: torch.fx.Node) -> bool:
    """It draws random numbers, or gives nothing and so was called for what it does: raises, if a check fails."""
    return is_random(node) or (node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns)


def geometry(node: torch.fx.Node) -> Geometry | None:
    """(sizes, strides, offset, dtype) of a node that is one tensor. Symbolic ones as expressions: comparing them adds no guard."""
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor):
        return None
    return tuple(map(expression_of, value.shape)), tuple(map(expression_of, value.stride())), expression_of(value.storage_offset()), value.dtype


def byte_size(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return hint_of(value.numel()) * value.dtype.itemsize if isinstance(value, FakeTensor) else 0


def view_base(node: torch.fx.Node) -> torch.fx.Node:
    """The node that owns the memory of a view."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def output_node(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(iter(reversed(graph.nodes)))


def escaping(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose memory leaves the graph: outputs, and what they are views of."""
    found: set[torch.fx.Node] = set()
    for node in output_node(graph).all_input_nodes:
        found.update(view_chain(node))
    return found


def view_chain(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The node, what it is a view of, and so on up to the owner of the memory."""
    yield node
    while is_view(node):
        node = node.all_input_nodes[0]
        yield node


def overlaps(tensor: torch.Tensor) -> bool:
    """Several elements share memory, as in an expanded tensor: it can't be written to, and a gradient can't have its strides."""
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
