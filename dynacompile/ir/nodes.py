"""Nodes of fx graphs that capture makes by the thousand: without fx's checks of names and arguments, which take longer than the node itself.

The names are the ones that `Graph.create_node` would choose. Where torch keeps its graphs in another way than the releases that we know, nodes are made by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch.fx

from dynacompile.private import of_torch

Node = torch.fx.Node
ILLEGAL = re.compile("[^0-9a-zA-Z_]+")
PARTS = ("_graph_namespace", "_find_nodes_lookup_table", "_insert", "_len", "_root")
NAMES = ("_used_names", "_base_count", "_obj_to_name")


def is_known(graph: torch.fx.Graph) -> bool:
    """Whether graphs consist of what we know."""
    return all(hasattr(graph, part) for part in PARTS) and all(hasattr(graph._graph_namespace, name) for name in NAMES)


KNOWN = is_known(torch.fx.Graph())


def base_of(name: str) -> str:
    """A name without the number that told it from others."""
    base = name.rstrip("0123456789")
    return base[:-1] if base != name and base[-1:] == "_" and len(base) > 1 else name


def new_node(graph: torch.fx.Graph, op: str, target: Any, args: tuple, kwargs: dict[str, Any], base: str) -> Node:
    """A node at the end of a graph of no module. base: of its name, legal in Python, behind which comes a number where there is one of that name already."""
    if not KNOWN:
        return graph.create_node(op, target, args, kwargs, base)
    node = linked(graph, op, target, args, kwargs, base)
    graph._insert(node)
    return node


def new_node_after(other: Node, op: str, target: Any, args: tuple, kwargs: dict[str, Any], base: str) -> Node:
    """The same behind another node."""
    if not KNOWN:
        with other.graph.inserting_after(other):
            return other.graph.create_node(op, target, args, kwargs, base)
    node = linked(other.graph, op, target, args, kwargs, base)
    other.append(node)
    return node


def new_placeholder(graph: torch.fx.Graph, text: str, after: Node | None) -> Node:
    """A placeholder behind another one; at the beginning of the graph where that is None. text: what it stands for."""
    name = ILLEGAL.sub("_", text) or "_unnamed"
    name = f"_{name}" if name[0].isdigit() else name
    if not KNOWN or name in RESERVED:
        with graph.inserting_before(None) if after is None else graph.inserting_after(after):  # None: at the beginning
            node = graph.create_node("placeholder", name, (), {}, name=name)
        node.target = node.name
        return node
    node = linked(graph, "placeholder", None, (), {}, name)
    (graph._root if after is None else after).append(node)
    return node


RESERVED = frozenset(of_torch.illegal_names)


def linked(graph: torch.fx.Graph, op: str, target: Any, args: tuple, kwargs: dict[str, Any], base: str) -> Node:
    """A node that the tables of its graph know, and that has no place yet. A placeholder's target is its name."""
    names = graph._graph_namespace
    used, name = names._used_names, base
    if name in used:
        base = base_of(base)
        number = names._base_count.get(base, 0)
        while name in used:
            number += 1
            name = f"{base}_{number}"
        names._base_count[base] = number
    used.add(name)
    node = Node(graph, name, op, name if target is None else target, args, kwargs)
    names._obj_to_name[node] = name
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def copy_node(graph: torch.fx.Graph, node: Node, renamed: Callable[[Node], Any]) -> Node:
    """A node like another one, of the same graph or not, over other operands."""
    map_arg = torch.fx.node.map_arg
    kwargs: Any = map_arg(node.kwargs, renamed) if node.kwargs else {}
    made = new_node(graph, node.op, node.target, map_arg(node.args, renamed), kwargs, node.name)  # type: ignore[arg-type]
    made.meta.update(node.meta)
    return made
