"""Removes ops that give what they were given."""

from __future__ import annotations

import itertools

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, geometry, is_view, view_chain
from dynacompile.private import of_torch

COPIES = frozenset({torch.ops.aten.clone.default, of_torch.aten_to_copy})


def cancel_noops(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Copies with the same dtype, device and strides; views that undo earlier views (t of t). A copy that leaves the graph is kept, for it
    must not share memory."""
    kept = escaping(graph)
    for node in list(graph.nodes):
        if is_view(node):
            same = same_view(node)
            if same is not None:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
        elif node.target in COPIES and node not in kept and is_same_copy(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
    return graph


def same_view(node: torch.fx.Node) -> torch.fx.Node | None:
    """The nearest node above a view with the same geometry over the same memory."""
    wanted = geometry(node)
    if wanted is None:
        return None
    for below, above in itertools.pairwise(view_chain(node)):
        if may_copy(below):
            return None
        if geometry(above) == wanted:
            return above
    return None


def may_copy(node: torch.fx.Node) -> bool:
    """Whether it is a reshape whose elements have to move, so that it has memory of its own."""
    if node.target is not torch.ops.aten.reshape.default:
        return False
    made, before = (n.meta["val"].untyped_storage()._cdata for n in (node, node.all_input_nodes[0]))
    return made != before


def is_same_copy(node: torch.fx.Node) -> bool:
    before, after = geometry(node.all_input_nodes[0]), geometry(node)
    if before is None or after is None or node.meta["val"].device != node.all_input_nodes[0].meta["val"].device:
        return False
    moved = before[2] != after[2] and any(is_view(user) for user in node.users)  # views of the copy know where they start in its memory
    return not moved and (before[0], before[1], before[3]) == (after[0], after[1], after[3])
