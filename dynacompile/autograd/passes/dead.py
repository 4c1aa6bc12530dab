"""Removes ops whose results nothing uses."""

from __future__ import annotations

import torch.fx

from dynacompile.autograd.facts import has_effect


def remove_dead(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Ops that draw random numbers stay, so that later draws are eager's, and so do checks."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node):
            graph.erase_node(node)
    return graph
