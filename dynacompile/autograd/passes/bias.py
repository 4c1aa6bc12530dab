"""Takes the bias out of matmuls whose results are read by nests anyway."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import escaping, is_view, kind

aten = torch.ops.aten
NESTS = frozenset({"pointwise", "reduction"})
WIDE = {"cuda": (torch.float32,), "cpu": (torch.float32, torch.float64)}


def split_biases(graph: torch.fx.Graph) -> torch.fx.Graph:
    """addmm(bias, a, b) -> mm(a, b) + bias where only nests read the result: they add the bias as they load. On GPUs cuBLAS picks faster kernels for a plain
    product than for one with a bias, and on CPUs ATen writes the bias into the results first, which the product then reads. A narrower product than
    float32 would be rounded once more."""
    kept = escaping(graph)
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and node not in kept and has_row_bias(node) and all(kind(u) in NESTS for u in readers(node)):
            bias, a, b = node.args
            with graph.inserting_before(node):
                product = graph.call_function(aten.mm.default, (a, b))
                total = graph.call_function(aten.add.Tensor, (product, bias))
            product.meta = dict(node.meta)
            total.meta = dict(node.meta)
            node.replace_all_uses_with(total)
            graph.erase_node(node)
    return graph


def has_row_bias(node: torch.fx.Node) -> bool:
    val, bias = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
    return not node.kwargs and bias.dim() == 1 and val.dtype in WIDE.get(val.device.type, ())


def readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that use the result, or a view of it."""
    found = []
    for user in node.users:
        found += readers(user) if is_view(user) else [user]
    return found
