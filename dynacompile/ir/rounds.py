"""Rounds of loops that do again what an earlier one did: one node of the captured graph for each, until somebody asks for their operations.

A step over a thousand parameters is a thousand times the same twenty operations. Capture records them once for each kind of parameter, and a node for every
other round, whose target leads to the nodes of the first. What compiles like parts once (`autograd/alike.py`) takes such graphs as they are; all others get
them `unrolled`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from dynacompile.ir.looks import made
from dynacompile.ir.nodes import copy_node, new_node_after

Node = torch.fx.Node


class Again:
    """The target of nodes that do what `nodes` of the same graph do, to other inputs than those took. They may write some of their inputs.

    inputs: what `nodes` read, of which the arguments of a node with this target take the place, in their order. output: the one whose result such a node
    gives; None where it gives nothing."""

    def __init__(self, nodes: tuple[Node, ...], inputs: tuple[Node, ...], output: Node | None = None):
        self.nodes, self.inputs, self.output = nodes, inputs, output
        self.__name__ = self.__qualname__ = f"again_{nodes[0].name}"

    def __call__(self, *inputs: Any) -> Any:
        raise TypeError(f"{self.__name__} stands for {len(self.nodes)} nodes, and is no function")


def is_again(node: Node) -> bool:
    return type(node.target) is Again


def unroll(graph: torch.fx.GraphModule) -> None:
    """Puts operations in the place of the rounds that stand for them, and gives each node its fake. Does nothing the second time."""
    compact = False
    for node in graph.graph.nodes:
        if "later" in node.meta:
            later = node.meta.pop("later")
            node.meta.setdefault("val", made(later))
            node.meta.setdefault("example_value", node.meta["val"])
        compact |= is_again(node) or has_list(node)
    if not compact:
        return
    for node in list(graph.graph.nodes):
        if is_again(node):
            inline(node)
        elif node.target in LIST_OPS:
            take_apart(node)
    graph.recompile()


LIST_OPS = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith(("_foreach_", "_fused_")))


def has_list(node: Node) -> bool:
    """Whether an operation over lists takes the whole result of another one."""
    return node.target in LIST_OPS and any(is_list(arg) for arg in (*node.args, *node.kwargs.values()))


def is_list(arg: Any) -> bool:
    return isinstance(arg, Node) and isinstance(arg.meta.get("val"), (list, tuple))


def take_apart(node: Node) -> None:
    """Lists the members of whole results that it takes."""

    def members(arg: Any) -> Any:
        return [member_node(arg, i) for i in range(len(arg.meta["val"]))] if is_list(arg) else arg

    node.args, node.kwargs = tuple(map(members, node.args)), {k: members(v) for k, v in node.kwargs.items()}


def member_node(node: Node, index: int) -> Node:
    """The node that takes a member of a list: the one that there is, or a new one."""
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == index:
            return user
    made = new_node_after(node, "call_function", operator.getitem, (node, index), {}, "getitem")
    made.meta.update(node.meta, val=node.meta["val"][index], example_value=node.meta["val"][index])
    return made


def inline(node: Node) -> None:
    again: Any = node.target
    graph = node.graph
    nodes = dict(zip(again.inputs, node.args))
    with graph.inserting_before(node):
        for one in again.nodes:
            nodes[one] = copy_node(graph, one, lambda operand: nodes.get(operand, operand))  # type: ignore[arg-type, return-value]
    if again.output is not None:
        made_here: Any = nodes[again.output]
        made_here.meta["val"] = made_here.meta["example_value"] = node.meta["val"]
        node.replace_all_uses_with(made_here)
    graph.erase_node(node)
