"""What the library does with the results of a product as it stores them, on GPUs: it stores them as float32, or applies an activation to them.

Both leave out a rounding to 16 bits that eager makes, so that they are not for `precise`. Results that kernels alone read stay as they are: those kernels
cast and compute as they load.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.autograd.facts import geometry, is_view, kind
from dynacompile.private.of_torch import FakeTensor

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
EVEN = 8  # elements that extents are multiples of where the library's fast kernels take them: others are padded
NESTS = frozenset({"pointwise", "reduction"})
CAST = {"dtype", "layout", "device"}


def widen_products(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A product whose results, or a view of them, are cast to float32 and not used else gives float32. Gradients of weights under autocast are such."""
    for node in list(graph.nodes):
        if not is_cast(node) or are_nests(node):
            continue
        chain = chain_of(node)
        product = chain[0]
        if product.target is not aten.mm.default or not is_even(product.meta["val"], product.args):
            continue
        with graph.inserting_before(node):
            made = graph.call_function(aten.mm.dtype, (*product.args, torch.float32))
        replace_chain(graph, node, chain, made, torch.float32)
    return graph


def apply_activations(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A product with a bias whose results, or a view of them, go into relu, or into gelu by tanh, and are not used else, comes with the activation."""
    for node in list(graph.nodes):
        gelu = node.target is aten.gelu.default and node.kwargs == {"approximate": "tanh"}
        if not (gelu or node.target is aten.relu.default) or are_nests(node):
            continue
        chain = chain_of(node)
        product = chain[0]
        if product.target is not aten.addmm.default or product.kwargs or not is_even(product.meta["val"], product.args[1:]):
            continue
        if product.args[0].meta["val"].dim() != 1 or (gelu and product.meta["val"].dtype != torch.bfloat16):  # type: ignore[union-attr]
            continue
        with graph.inserting_before(node):
            made = graph.call_function(aten._addmm_activation.default, product.args, {"use_gelu": gelu})
        replace_chain(graph, node, chain, made, product.meta["val"].dtype)
    return graph


def is_cast(node: torch.fx.Node) -> bool:
    """To float32, and nothing else."""
    if node.target is not aten._to_copy.default or node.kwargs.get("dtype") != torch.float32 or not node.kwargs.keys() <= CAST:
        return False
    before: FakeTensor = node.all_input_nodes[0].meta["val"]
    return node.kwargs.get("layout") in (None, torch.strided) and node.kwargs.get("device") in (None, before.device)


def are_nests(node: torch.fx.Node) -> bool:
    """Whether kernels alone read the result, or views of it."""
    return all(are_nests(user) if is_view(user) else kind(user) in NESTS for user in node.users)


def chain_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What is above the node and used by it alone, through views, from the first that is no view on."""
    chain = [node.all_input_nodes[0]]
    while is_view(chain[-1]) and len(chain[-1].users) == 1 and len(chain[-1].all_input_nodes) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    return chain[::-1] if len(chain[-1].users) == 1 else [node]


def is_even(val: FakeTensor, operands: Sequence[object]) -> bool:
    """Of half precision, on a GPU, with extents that the library's fast kernels take."""
    first = operands[0].meta["val"]  # type: ignore[attr-defined]
    plain = val.device.type == "cuda" and torch.version.hip is None and val.dtype in HALVES
    return plain and all(type(n) is int and n > 0 and n % EVEN == 0 for n in (*val.shape, first.shape[1]))


def replace_chain(graph: torch.fx.Graph, node: torch.fx.Node, chain: Sequence[torch.fx.Node], made: torch.fx.Node, dtype: torch.dtype) -> None:
    """`made`, which gives in `dtype` what the chain's first node does, and the chain's views take the place of the node; where that has other strides,
    nothing does."""
    product, *views = chain
    before: FakeTensor = product.meta["val"]
    with before.fake_mode:
        val = torch.empty_strided(before.size(), before.stride(), dtype=dtype, device=before.device)
    made.meta = {**product.meta, "val": val}
    with graph.inserting_before(node):
        for view in views:
            with before.fake_mode:
                val = view.target(val, *view.args[1:], **view.kwargs)  # type: ignore[operator]
            made = graph.call_function(view.target, (made, *view.args[1:]), dict(view.kwargs))  # type: ignore[arg-type]
            made.meta = {**view.meta, "val": val}
    if geometry(made) != geometry(node):
        erase(graph, made, len(chain))
        return
    node.replace_all_uses_with(made)
    erase(graph, node, 1 + len(chain))


def erase(graph: torch.fx.Graph, node: torch.fx.Node, count: int) -> None:
    """Erases a node that nothing uses, and then what is above it, `count` nodes in all."""
    for left in range(count, 0, -1):
        above = node.all_input_nodes[0] if left > 1 else node
        graph.erase_node(node)
        node = above
