"""What oneDNN does with the results of a product of 16-bit numbers as it stores them, on CPUs: it adds a bias, and computes two of the activations.

ATen writes the bias into the results first, which the product then reads. The results are the same bits, since both add it in float32 and round once.
Of the activations, those with exponentials take as long in the library as in a kernel, and its relu and clamp give 0 for NaN, where eager gives NaN.
"""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import geometry
from dynacompile.autograd.passes.products import chain_of, replace_chain
from dynacompile.ops.product_costs import Product, choose, library_multiplies
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

aten = torch.ops.aten
Scalars = tuple[float, ...]
LAYER = "mkldnn._linear_pointwise.default"
ACTIVATIONS: dict[object, str] = {aten.leaky_relu.default: "leaky_relu", aten.hardswish.default: "hardswish"}


def add_biases(graph: torch.fx.Graph) -> torch.fx.Graph:
    """addmm(bias, a, b) is the library's linear layer."""
    for node in list(graph.nodes):
        if is_layer(node):
            b: torch.fx.Node = node.args[2]  # type: ignore[assignment]
            made = layer(graph, node)
            if geometry(made) == geometry(node):
                node.replace_all_uses_with(made)
                graph.erase_node(node)
                if b.target is aten.t.default and not b.users:
                    graph.erase_node(b)
    return graph


def apply_cheap_activations(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A layer whose results, or a view of them, go into an activation alone comes with it."""
    for node in list(graph.nodes):
        name = ACTIVATIONS.get(node.target)
        chain = chain_of(node) if name is not None else [node]
        product = chain[0]
        if name is None or str(product.target) != LAYER or product.args[3] != "none":
            continue
        slope = (node.args[1] if len(node.args) > 1 else 0.01) if name == "leaky_relu" else None
        if slope is not None and (not isinstance(slope, (int, float)) or not slope):
            continue  # with a slope of 0 it is relu
        with graph.inserting_before(node):
            made = graph.call_function(product.target, (*product.args[:3], name, () if slope is None else (float(slope),), ""))  # type: ignore[arg-type]
        replace_chain(graph, node, chain, made, product.meta["val"].dtype)
    return graph


def is_layer(node: torch.fx.Node) -> bool:
    """A product of several rows with a bias for each column, of 16-bit numbers, on a CPU whose library has such; not so small that loops are faster."""
    if node.target is not aten.addmm.default or node.kwargs:
        return False
    val, (bias, a, b) = node.meta["val"], (n.meta["val"] for n in node.args)  # type: ignore[union-attr]
    if val.device.type != "cpu" or not library_multiplies(val.dtype) or any(t.dtype != val.dtype or t.device != val.device for t in (bias, a, b)):
        return False
    plain = all(type(n) is int and n > 0 for t in (bias, b) for n in t.shape) and type(a.shape[0]) is int and a.shape[0] > 1
    if not plain or tuple(bias.shape) != (b.shape[1],) or bias.stride() != (1,) or not a.is_contiguous() or not (b.is_contiguous() or b.t().is_contiguous()):
        return False
    return not choose(Product(0, a.shape[0], b.shape[1], b.shape[0], val.dtype, True, b.stride(0) == 1)).loops


def layer(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    bias, a, b = node.args
    val: FakeTensor = b.meta["val"]  # type: ignore[union-attr]
    with graph.inserting_before(node):
        weight = b.args[0] if b.target is aten.t.default else graph.call_function(aten.t.default, (b,))  # type: ignore[union-attr]
        made = graph.call_function(of_torch.linear_pointwise, (a, weight, bias, "none", (), ""))
    with val.fake_mode:
        if "val" not in weight.meta:  # type: ignore[union-attr]
            weight.meta = {**b.meta, "val": aten.t.default(val)}  # type: ignore[union-attr]
        made.meta = {**node.meta, "val": torch.empty((a.meta["val"].shape[0], val.shape[1]), dtype=val.dtype, device=val.device)}  # type: ignore[union-attr]
    return made
