"""Convolutions with windows of one element, on GPUs, as products of matrices: each pixel is a row. A product takes in the kernel that reads its results
where that is faster (`schedule/products.py`); a convolution of the library does not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.facts import geometry, is_view, kind
from dynacompile.private.of_torch import FakeTensor

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
LEAST = 64  # smallest extent of a product that a kernel of ours does
EVEN = 8  # elements that extents are multiples of where the library's fast kernels take them
NESTS = frozenset({"pointwise", "reduction"})


def multiply_pixels(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A convolution whose results pointwise operations alone read gives the results of a product, in the same memory format. The bias is added before the
    results are rounded, where the library rounds twice."""
    for node in list(graph.nodes):
        if node.target is aten.convolution.default and is_of_pixels(node) and are_read_by_place(node):
            replace_convolution(graph, node)
    return graph


def is_of_pixels(node: torch.fx.Node) -> bool:
    """Windows of one element, over images whose channels lie side by side, of extents that products are fast with."""
    x, weight, _, stride, padding, _, transposed, _, groups = node.args
    val, images, taps = node.meta["val"], x.meta["val"], weight.meta["val"]  # type: ignore[union-attr]
    if val.device.type != "cuda" or torch.version.hip is not None or {val.dtype, images.dtype, taps.dtype} - {val.dtype} or val.dtype not in HALVES:
        return False
    numbers = [*val.shape, *val.stride(), *images.shape, *images.stride(), *taps.shape]
    if any(type(n) is not int for n in numbers) or transposed or groups != 1 or images.dim() < 3:
        return False
    if prod(taps.shape[2:]) != 1 or any(s != 1 for s in stride) or any(p != 0 for p in padding):  # type: ignore[union-attr]
        return False
    extents = (val.numel() // val.shape[1], *taps.shape[:2]) if val.shape[1] else (0,)
    return min(extents) >= LEAST and all(n % EVEN == 0 for n in taps.shape[:2]) and all(is_by_pixels(t) for t in (val, images))


def is_by_pixels(images: FakeTensor) -> bool:
    """Row-major, but for the channels, which are innermost."""
    expected = 1
    for d in (1, *range(images.dim() - 1, 1, -1), 0):
        if images.shape[d] != 1 and images.stride(d) != expected:
            return False
        expected *= images.shape[d]
    return True


def are_read_by_place(node: torch.fx.Node) -> bool:
    return bool(node.users) and all(not is_view(user) and kind(user) == "pointwise" for user in node.users)


def replace_convolution(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, weight, bias, *_ = node.args
    val: FakeTensor = node.meta["val"]
    count, channels, *space = val.shape
    spatial = list(range(2, val.dim()))
    added: list[torch.fx.Node] = []
    with graph.inserting_before(node), val.fake_mode:

        def made(target: Any, *args: Any) -> torch.fx.Node:
            result = graph.call_function(target, args)
            result.meta = {**node.meta, "val": target(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))}
            added.append(result)
            return result

        pixels = made(aten.view.default, made(aten.permute.default, x, [0, *spatial, 1]), [count * prod(space), x.meta["val"].shape[1]])  # type: ignore[union-attr]
        taps = weight
        for d in reversed(spatial):
            taps = made(aten.select.int, taps, d, 0)
        taps = made(aten.permute.default, taps, [1, 0])
        product = made(aten.mm.default, pixels, taps) if bias is None else made(aten.addmm.default, bias, pixels, taps)
        images = made(aten.permute.default, made(aten.view.default, product, [count, *space, channels]), back(val.dim()))
    if geometry(images) == geometry(node):
        node.replace_all_uses_with(images)
        graph.erase_node(node)
    else:
        for unused in reversed(added):
            graph.erase_node(unused)


def back(rank: int) -> Sequence[int]:
    """The permutation that takes the innermost dimension to the place of channels."""
    return [0, rank - 1, *range(1, rank - 1)]
