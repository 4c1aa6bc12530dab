"""Rounds of loops that do again what an earlier one did: one node of the captured graph for each, until somebody asks for their operations.

A step over a thousand parameters is a thousand times the same twenty operations. Capture records them once for each kind of parameter, and a node for every
other round, whose target leads to the nodes of the first. What compiles like parts once (`autograd/alike.py`) takes such graphs as they are; all others get
them `unrolled`.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from dynacompile.ir.looks import made
from dynacompile.ir.nodes import copy_node

Node = torch.fx.Node


class Again:
    """The target of nodes that do what `nodes` of the same graph do, to other inputs than those took. They give nothing, but write some of their inputs.

    inputs: what `nodes` read, of which the arguments of a node with this target take the place, in their order."""

    def __init__(self, nodes: tuple[Node, ...], inputs: tuple[Node, ...]):
        self.nodes, self.inputs = nodes, inputs
        self.__name__ = self.__qualname__ = f"again_{nodes[0].name}"

    def __call__(self, *inputs: Any) -> None:
        raise TypeError(f"{self.__name__} stands for {len(self.nodes)} nodes, and is no function")


def is_again(node: Node) -> bool:
    return type(node.target) is Again


def unroll(graph: torch.fx.GraphModule) -> None:
    """Puts operations in the place of the rounds that stand for them, and gives each node its fake. Does nothing the second time."""
    rounds = False
    for node in graph.graph.nodes:
        if "later" in node.meta:
            later = node.meta.pop("later")
            node.meta.setdefault("val", made(later))
            node.meta.setdefault("example_value", node.meta["val"])
        rounds |= is_again(node)
    if not rounds:
        return
    for node in list(graph.graph.nodes):
        if is_again(node):
            inline(node)
    graph.recompile()


def inline(node: Node) -> None:
    again: Any = node.target
    graph = node.graph
    nodes = dict(zip(again.inputs, node.args))
    with graph.inserting_before(node):
        for one in again.nodes:
            nodes[one] = copy_node(graph, one, lambda operand: nodes.get(operand, operand))  # type: ignore[arg-type, return-value]
    graph.erase_node(node)
