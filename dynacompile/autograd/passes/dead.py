"""Removes ops whose results nothing uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch.fx

from dynacompile.autograd.facts import has_effect, looks_at_values


def remove_dead(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Ops that draw random numbers stay, so that later draws are eager's, and so do checks, and what raises for some values where eager runs it."""
    is_forward = not any(n.op == "placeholder" for n in after_calls(graph))
    for node in reversed(list(graph.nodes)):
        is_forward = is_forward or node.op == "placeholder"
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node) and not (is_forward and looks_at_values(node)):
            graph.erase_node(node)
    return graph


def after_calls(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes behind the first call: placeholders there are tangents, and forward ends at them."""
    return itertools.dropwhile(lambda node: node.op != "call_function", graph.nodes)
