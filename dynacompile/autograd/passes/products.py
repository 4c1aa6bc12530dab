"""What the library can do with the results of a product as it stores them, on GPUs: store them as float32, or add them to what is there.

Both leave out a rounding to 16 bits that eager makes, so that they are not for `precise`.
"""

from __future__ import annotations

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from dynacompile.autograd.facts import geometry, is_view

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
EVEN = 8  # elements that extents are multiples of where the library's fast kernels take them: others are padded


def widen_products(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A product whose results, or a view of them, are cast to float32 and not used else gives float32. Gradients of weights under autocast are such."""
    for node in list(graph.nodes):
        chain = cast_chain(node)
        if chain is None:
            continue
        product, *views = chain
        before: FakeTensor = product.meta["val"]
        with before.fake_mode:
            val = torch.empty_strided(before.size(), before.stride(), dtype=torch.float32, device=before.device)
        with graph.inserting_before(node):
            made = graph.call_function(aten.mm.dtype, (*product.args, torch.float32))
            made.meta = {**product.meta, "val": val}
            for view in views:
                rest = view.args[1:]
                with before.fake_mode:
                    val = view.target(val, *rest, **view.kwargs)  # type: ignore[operator]
                made = graph.call_function(view.target, (made, *rest), dict(view.kwargs))  # type: ignore[arg-type]
                made.meta = {**view.meta, "val": val}
        if geometry(made) != geometry(node):
            remove(graph, made, len(views) + 1)
            continue
        node.replace_all_uses_with(made)
        remove(graph, node, 1)
        for one in reversed(chain):
            remove(graph, one, 1)
    return graph


def cast_chain(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The product and the views of it that a cast to float32 alone uses, outer to inner."""
    if node.target is not aten._to_copy.default or node.kwargs != {"dtype": torch.float32}:
        return None
    chain = [node.all_input_nodes[0]]
    while is_view(chain[-1]) and len(chain[-1].users) == 1 and len(chain[-1].all_input_nodes) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    product = chain[-1]
    return chain[::-1] if product.target is aten.mm.default and len(product.users) == 1 and is_even(product) else None


def is_even(product: torch.fx.Node) -> bool:
    """Of half precision, on a GPU, with extents that the library's fast kernels take."""
    val, first = product.meta["val"], product.args[0].meta["val"]  # type: ignore[union-attr]
    extents = (*val.shape, first.shape[1])
    plain = val.device.type == "cuda" and torch.version.hip is None and val.dtype in HALVES
    return plain and all(type(n) is int and n > 0 and n % EVEN == 0 for n in extents)


def add_products(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A product that is added to another one, neither of which is used else, is summed onto that one's results in their place."""
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        first, second = node.args
        if not all(isinstance(a, torch.fx.Node) and a.target is aten.mm.default and len(a.users) == 1 and is_even(a) for a in (first, second)):
            continue
        if first is second or geometry(first) != geometry(second) or geometry(first) != geometry(node):  # type: ignore[arg-type]
            continue
        with graph.inserting_before(node):
            made = graph.call_function(aten.addmm.default, (first, *second.args))  # type: ignore[union-attr]
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        remove(graph, node, 1)
        remove(graph, second, 1)  # type: ignore[arg-type]
    return graph


def remove(graph: torch.fx.Graph, node: torch.fx.Node, count: int) -> None:
    """Erases a node that nothing uses, and `count - 1` nodes above it, each the first input of the one before."""
    for _ in range(count):
        above = node.all_input_nodes[0]
        graph.erase_node(node)
        node = above
