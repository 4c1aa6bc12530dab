"""Computes equal things once."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, is_random
from dynacompile.ir.shapes import expression_of
from dynacompile.ops.collectives import is_collective
from dynacompile.private import of_torch

EMPTIES = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})
VIEW = torch.ops.aten.view.default


def merge_equal(graph: torch.fx.Graph) -> torch.fx.Graph:
    """One node for all calls of an op with equal arguments. Two results that both leave the graph stay two tensors; random ops and collectives
    stay."""
    kept = escaping(graph)
    known: dict[tuple, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or is_random(node) or is_collective(node.target) or is_uninitialised(node):
            continue
        key = (node.target, frozen(node.args), frozen(node.kwargs))
        first = known.setdefault(key, node)
        if first is node or (first in kept and node in kept):
            continue
        if node in kept:
            kept.add(first)
        node.replace_all_uses_with(first)
        graph.erase_node(node)
    return graph


def is_uninitialised(node: torch.fx.Node) -> bool:
    return isinstance(node.target, of_torch.OpOverload) and node.target._schema.name.removeprefix("aten::") in EMPTIES


def frozen(value: object) -> object:
    """A hashable form of arguments, in which 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, frozen(v)) for k, v in sorted(value.items()))
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return "symbolic", expression_of(value)
    if isinstance(value, slice):
        return "slice", frozen(value.start), frozen(value.stop), frozen(value.step)
    return value


def merge_views(graph: torch.fx.Graph) -> torch.fx.Graph:
    """view(view(x)) of a contiguous x is one view of x."""
    for node in graph.nodes:
        while node.target is VIEW and node.args[0].target is VIEW and node.args[0].args[0].meta["val"].is_contiguous():
            node.update_arg(0, node.args[0].args[0])
    return graph
