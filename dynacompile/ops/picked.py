"""Values that are compared with what was picked of them, such as the elements of a row with their maximum, one of which it must equal.

Two kernels that compute one element may differ in its last bit: a product and a sum joined to one instruction, a sum in another order, a quotient by the
inverse of a row's number. No element would equal the maximum then, and the gradient of the maximum, which is shared out among those that do, be 0 / 0. Such
values are therefore computed once: the backward does not make them again, and kernels read them from memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.private import of_torch

Node = torch.fx.Node

COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
PICKS = frozenset(
    f"aten::{name}"
    for name in (
        *("amax", "amin", "aminmax", "max", "min", "cummax", "cummin", "sort", "topk", "kthvalue", "median", "nanmedian", "mode"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d", "gather", "index", "index_select", "take"),
        *("scatter_reduce", "index_reduce"),
    )
)
"""Results are some of the elements."""
MOVES = frozenset(
    f"aten::{name}"
    for name in (
        *("clone", "_to_copy", "copy", "_unsafe_view", "cat", "stack", "flip", "roll", "repeat", "constant_pad_nd", "tril", "triu"),
        *("where", "maximum", "minimum", "fmax", "fmin", "masked_fill", "abs", "neg", "relu", "clamp", "clamp_min", "clamp_max", "threshold", "hardtanh"),
        *("scatter", "index_put", "index_fill", "slice_scatter", "select_scatter", "reflection_pad2d", "replication_pad2d", "unfold"),
    )
)
"""Results are elements as they were, or exact functions of one."""


def computed_once(nodes: Sequence[Node]) -> frozenset[Node]:
    """The nodes whose elements are compared, by a node of these, with what was picked of them. nodes: each behind what it reads. Inputs are none of them."""
    pairs = [pair for pair in map(compared, nodes) if pair]
    known = sources(nodes, [operand for pair in pairs for operand in pair]) if pairs else {}
    found: set[Node] = set()
    for pair in pairs:
        (one, picked), (other, picked_too) = (known[operand] for operand in pair)
        found |= one & other & (picked | picked_too)
    return frozenset(found)


def sources(nodes: Sequence[Node], operands: Sequence[Node]) -> dict[Node, tuple[frozenset[Node], frozenset[Node]]]:
    """For the operands, and the floats that they are elements of: what computed their elements; and of these, what they were picked of."""
    needed: set[Node] = set()
    pending = list(operands)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(before_it(node))
    known: dict[Node, tuple[frozenset[Node], frozenset[Node]]] = {node: (frozenset(), frozenset()) for node in needed if node.op != "call_function"}
    for node in nodes:
        if node not in needed or node in known:
            continue
        picks = named(node, PICKS)
        if picks or moves(node):
            before = [known[a] for a in before_it(node)]
            every = frozenset().union(*(computed for computed, _ in before))
            known[node] = every, every if picks else frozenset().union(*(picked for _, picked in before))
        else:
            known[node] = frozenset({node}), frozenset()
    return known


def before_it(node: Node) -> list[Node]:
    """The floats whose elements are the node's."""
    return [a for a in node.all_input_nodes if of_floats(a)] if named(node, PICKS) or moves(node) else []


def compared(node: Node) -> list[Node]:
    """The two values that a comparison of floats compares; that of a difference with a number compares what is subtracted. Else none."""
    if not named(node, COMPARISONS):
        return []
    operands = [a for a in node.args if isinstance(a, torch.fx.Node) and of_floats(a)]
    if len(operands) == 1 and operands[0].target is torch.ops.aten.sub.Tensor:
        operands = [a for a in operands[0].args[:2] if isinstance(a, torch.fx.Node) and of_floats(a)]
    return operands if len(operands) == 2 and operands[0] is not operands[1] else []


def named(node: Node, names: frozenset[str]) -> bool:
    return node.op == "call_function" and isinstance(node.target, of_torch.OpOverload) and node.target._schema.name in names


def moves(node: Node) -> bool:
    return node.op == "call_function" and (node.target is operator.getitem or named(node, MOVES) or getattr(node.target, "is_view", False))


def of_floats(node: Node) -> bool:
    """Of several results, some may be floats."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
