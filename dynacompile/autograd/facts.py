"""What the graph passes and the partitioner ask about a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from dynacompile.ir.shapes import expression_of, hint_of
from dynacompile.ops.checks import CHECKED, DIVIDING, FILLING, is_held
from dynacompile.ops.collectives import is_collective
from dynacompile.ops.table import TABLE
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any, torch.dtype]

FUSIBLE = frozenset({"pointwise", "create", "view", "cat", "pad", "slice_scatter", "select_scatter", "flip", "roll", "repeat", "triangle"})


def kind(node: torch.fx.Node) -> str:
    """How the node lowers: a kind of `ops.table`, "view", "extern", or the fx op where it is no call."""
    if node.op != "call_function":
        return node.op
    if not isinstance(node.target, of_torch.OpOverload):
        return "item"
    found = TABLE.get(str(node.target))
    if found is not None and found.kind != "extern":
        return found.kind
    return "view" if node.target.is_view else "extern"


def is_view(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, of_torch.OpOverload) and node.target.is_view


def is_random(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, of_torch.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def has_effect(node: torch.fx.Node) -> bool:
    """It draws random numbers, talks to other processes, or gives nothing and so was called for what it does: raises, if a check fails."""
    return (
        is_random(node)
        or is_collective(node.target)
        or (node.op == "call_function" and isinstance(node.target, of_torch.OpOverload) and not node.target._schema.returns)
    )


def looks_at_values(node: torch.fx.Node) -> bool:
    """It raises by them, as where an index lies outside."""
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return node.target in CHECKED
    if node.target in FILLING:
        return not is_held(value.dtype, node.args[2].meta["val"].dtype)  # type: ignore[union-attr]
    return node.target in CHECKED or (node.target in DIVIDING and not value.dtype.is_floating_point)


def geometry(node: torch.fx.Node) -> Geometry | None:
    """(sizes, strides, offset, dtype) of a node that is one tensor. Symbolic ones as expressions: comparing them adds no guard."""
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor):
        return None
    return tuple(map(expression_of, value.shape)), tuple(map(expression_of, value.stride())), expression_of(value.storage_offset()), value.dtype


def byte_size(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return hint_of(value.numel()) * value.dtype.itemsize if isinstance(value, FakeTensor) else 0


def real_users(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Users, looking through views."""
    found: list[torch.fx.Node] = []
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if is_view(user):
            pending.extend(user.users)
        else:
            found.append(user)
    return found


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
