"""Waits for collectives that the program does not wait for: what they read and write is memory of ours, which others use once the program has ended."""

from __future__ import annotations

import operator

import torch
import torch.fx

from dynacompile.autograd.facts import is_view
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.private import of_torch


def wait_for_all(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Adds a wait behind each collective that has none. Those that write into their operands are left to their user, as operands are."""
    for node in list(graph.nodes):
        if not is_collective(node.target) or is_wait(node.target) or node.target._schema.is_mutable or is_waited_for(node):
            continue
        for made in parts(node):
            with graph.inserting_after(made):
                waited = graph.call_function(of_torch.wait_tensor, (made,))
            waited.meta = dict(made.meta)
            made.replace_all_uses_with(waited)
            waited.args = (made,)
    return graph


def is_waited_for(node: torch.fx.Node) -> bool:
    return any(is_wait(user.target) or ((user.target is operator.getitem or is_view(user)) and is_waited_for(user)) for user in node.users)


def parts(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that a collective gives: itself, or those of its list."""
    return [node] if isinstance(node.meta.get("val"), torch.Tensor) else [user for user in node.users if user.target is operator.getitem]
