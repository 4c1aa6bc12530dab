"""Folds tensors that hold one number everywhere into the ops that use them."""

from __future__ import annotations

import operator

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, geometry, is_view

aten = torch.ops.aten
Number = float | int | bool

FILLS = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2, aten.scalar_tensor.default: 0}
CONSTANT_FILLS = {
    aten.zeros.default: 0, aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.ones.default: 1, aten.ones_like.default: 1, aten.new_ones.default: 1,
}
ARITHMETIC = {aten.mul.Tensor: operator.mul, aten.add.Tensor: operator.add, aten.sub.Tensor: operator.sub, aten.div.Tensor: operator.truediv}
NEUTRAL = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.add.Tensor: 0, aten.sub.Tensor: 0}
COMMUTES = frozenset({aten.mul.Tensor, aten.add.Tensor})


def fold_constants(graph: torch.fx.Graph) -> torch.fx.Graph:
    """x * ones -> x; x + zeros -> x; x * full(c) -> x * c. Only floating point, and only where the result keeps dtype and strides."""
    kept = escaping(graph)
    uniform: dict[torch.fx.Node, Number] = {}
    for node in list(graph.nodes):
        value = uniform_value(node, uniform)
        if value is not None:
            uniform[node] = value
        elif node.target in ARITHMETIC and "alpha" not in node.kwargs and node not in kept:
            fold(graph, node, uniform)
    return graph


def uniform_value(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> Number | None:
    """The number that every element of the node has, where that is known."""
    shape = geometry(node)
    if shape is None or not shape[3].is_floating_point:
        return None
    if node.target in FILLS:
        number = node.args[FILLS[node.target]]
        return number if isinstance(number, (int, float)) else None
    if node.target in CONSTANT_FILLS:
        return CONSTANT_FILLS[node.target]
    if is_view(node) or node.target in (aten.clone.default, aten._to_copy.default):
        return uniform.get(node.all_input_nodes[0])
    return None


def fold(graph: torch.fx.Graph, node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> None:
    x, y = node.args
    if node.target in COMMUTES and x in uniform:
        x, y = y, x
    if not isinstance(x, torch.fx.Node) or geometry(x) is None or geometry(x)[:2] + geometry(x)[3:] != geometry(node)[:2] + geometry(node)[3:]:
        return
    number = uniform.get(y) if isinstance(y, torch.fx.Node) else y
    if not isinstance(number, (int, float)):
        return
    if number == NEUTRAL[node.target]:
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    elif isinstance(y, torch.fx.Node):
        node.args = (x, number)
