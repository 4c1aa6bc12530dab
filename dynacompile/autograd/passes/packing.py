"""Products with parameters, in graphs without a backward: the weight is packed once, under `freeze`."""

from __future__ import annotations

from collections.abc import Set

import torch
import torch.fx

from dynacompile.autograd.passes.cpu_products import LAYER
from dynacompile.ops.packed import PACKED_PRODUCT
from dynacompile.ops.product_costs import Product, choose, library_multiplies

aten = torch.ops.aten
ROWS = 256  # of float32, above which packing gains nothing
VECTOR = 1 << 20  # elements of a weight from which one row is limited by reading it


def pack_weights(graph: torch.fx.Graph, weights: Set[torch.fx.Node]) -> torch.fx.Graph:
    """weights: inputs that are parameters, and that the graph does not write."""
    for node in list(graph.nodes):
        found = operands(node)
        if found is None:
            continue
        x, weight, bias, turned = found
        if weight not in weights or not pays(node, x, weight, turned):
            continue
        with graph.inserting_before(node):
            made = graph.call_function(PACKED_PRODUCT, (x, weight, bias, turned))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    return graph


def operands(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node | None, bool] | None:
    """(x, weight, bias, whether the weight is (k, n)) of a product with an input."""
    if node.target is aten.mm.default:
        (x, b), bias, turned = node.args, None, True
    elif str(node.target) == LAYER and node.args[3] == "none":
        (x, b, bias), turned = node.args[:3], False
    elif node.target is aten.addmm.default and not node.kwargs and node.meta["val"].dtype == torch.float32:
        (bias, x, b), turned = node.args, True
        assert isinstance(bias, torch.fx.Node)
        if bias.meta["val"].shape != node.meta["val"].shape[1:]:
            return None
    else:
        return None
    assert isinstance(b, torch.fx.Node)
    if b.target is aten.t.default:
        b, turned = b.args[0], not turned
    return (x, b, bias, turned) if isinstance(b, torch.fx.Node) and b.op == "placeholder" else None  # type: ignore[return-value]


def pays(node: torch.fx.Node, x: torch.fx.Node, weight: torch.fx.Node, turned: bool) -> bool:
    """Whether the library has such a layout on this machine, and its product is faster."""
    left, right, val = x.meta["val"], weight.meta["val"], node.meta["val"]
    if val.device.type != "cpu" or any(t.dtype != val.dtype for t in (left, right)) or not left.is_contiguous() or not right.is_contiguous():
        return False
    if any(type(n) is not int or n == 0 for n in (*left.shape, *right.shape)):
        return False
    (m, k), n = left.shape, val.shape[1]
    if choose(Product(0, m, n, k, val.dtype, True, not turned)).loops:
        return False
    if val.dtype == torch.float32:
        return torch.backends.mkl.is_available() and m <= ROWS and (m > 2 or k * n < VECTOR)
    return library_multiplies(val.dtype)
