"""Reads of one of several tensors that were stacked read that tensor: what is stacked only to be taken apart again need not be one tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, geometry, is_view

aten = torch.ops.aten


def read_parts(graph: torch.fx.Graph) -> torch.fx.Graph:
    """`select(stack([x, ...]), i)` becomes the i-th x, also where the stack is written as a concatenation. One that leaves the graph is kept, for it must not
    share memory with x."""
    kept = escaping(graph)
    for node in list(graph.nodes):
        if node.target is aten.select.int and node not in kept:
            part = stacked(node)
            if part is not None:
                node.replace_all_uses_with(part)
                graph.erase_node(node)
    return graph


def stacked(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that a selection of a stack of tensors gives, where it has the same geometry."""
    args: Any = (*node.args, 0, 0)
    whole, dim, place = args[:3]
    if whole.target not in (aten.cat.default, aten.stack.default) or not (isinstance(dim, int) and isinstance(place, int) and place >= 0):
        return None
    tensors, along = (*whole.args, 0)[:2]
    rank = whole.meta["val"].dim()
    is_cat = whole.target is aten.cat.default
    if dim % rank != along % rank or is_cat and any(t.target is not aten.unsqueeze.default or t.args[1] % rank != dim % rank for t in tensors):
        return None
    part: torch.fx.Node = tensors[place].args[0] if is_cat else tensors[place]
    wanted, found = geometry(node), geometry(part)
    if wanted is None or found is None or (wanted[0], wanted[1], wanted[3]) != (found[0], found[1], found[3]):
        return None
    moved = wanted[2] != found[2] and any(is_view(user) for user in node.users)  # views know where they start in memory
    return None if moved or node.meta["val"].device != part.meta["val"].device else part
