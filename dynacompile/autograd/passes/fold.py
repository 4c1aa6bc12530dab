"""Folds tensors that hold one number everywhere into the ops that use them."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, geometry, is_view
from dynacompile.private import of_torch

aten = torch.ops.aten
Number = float | int | bool

FILLS: dict[object, int] = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2, aten.scalar_tensor.default: 0}
CONSTANT_FILLS: dict[object, Number] = {
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}
NEUTRAL: dict[object, Number] = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.add.Tensor: 0, aten.sub.Tensor: 0}
COMMUTES = frozenset({aten.mul.Tensor, aten.add.Tensor})


def fold_constants(graph: torch.fx.Graph) -> torch.fx.Graph:
    """x * ones -> x; x + zeros -> x; x * full(c) -> x * c. Only floating point, and only where the result keeps dtype and strides."""
    kept = escaping(graph)
    uniform: dict[torch.fx.Node, Number] = {}
    for node in list(graph.nodes):
        value = uniform_value(node, uniform)
        if value is not None:
            uniform[node] = value
        elif node.target in NEUTRAL and "alpha" not in node.kwargs and node not in kept:
            fold(graph, node, uniform)
    return graph


def uniform_value(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> Number | None:
    """The number that every element of the node has, where that is known."""
    shape = geometry(node)
    if shape is None or not shape[3].is_floating_point:
        return None
    if node.target in FILLS:
        number = node.args[FILLS[node.target]]
        return held(number, shape[3]) if isinstance(number, (int, float)) else None
    if node.target in CONSTANT_FILLS:
        return CONSTANT_FILLS[node.target]
    if is_view(node) or node.target in (aten.clone.default, aten._to_copy.default):
        number = uniform.get(node.all_input_nodes[0])
        return None if number is None else held(number, shape[3])
    return None


def held(number: Number, dtype: torch.dtype) -> Number:
    """The number as an element of a floating-point tensor is: rounded to its digits."""
    with of_torch.DisableTorchDispatch():
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()


def dense_geometry(node: torch.fx.Node) -> tuple | None:
    """(sizes, strides, dtype)."""
    found = geometry(node)
    return None if found is None else (found[0], found[1], found[3])


def fold(graph: torch.fx.Graph, node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> None:
    x, y = node.args
    if node.target in COMMUTES and x in uniform:
        x, y = y, x
    if not isinstance(x, torch.fx.Node) or dense_geometry(x) != dense_geometry(node):
        return
    number = uniform.get(y) if isinstance(y, torch.fx.Node) else y
    if not isinstance(number, (int, float)):
        return
    if number == NEUTRAL[node.target]:
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    elif isinstance(y, torch.fx.Node):
        node.args = (x, number)
