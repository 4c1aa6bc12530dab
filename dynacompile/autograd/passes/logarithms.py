"""Exponentials of differences from a logarithm that was rounded to 16 bits, as the backward of `logsumexp` has them: exp(x - logsumexp(x)).

In eager `x` was rounded before the sum, and so was the sum, so that the largest x leaves the exponent near 0. In a kernel that has computed x itself, x is
not rounded, and beside a rounded logarithm of hundreds the exponent is off by whole numbers. Here the logarithm isn't rounded either.
"""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import geometry, is_view
from dynacompile.private.of_torch import FakeTensor

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


def widen_exponents(graph: torch.fx.Graph) -> torch.fx.Graph:
    """exp(x - y) of half precision, where y, or what y is a view of, is rounded from float32: float32 up to the exponential."""
    for node in list(graph.nodes):
        if node.target is not aten.exp.default or node.meta["val"].dtype not in HALVES:
            continue
        (difference,) = node.all_input_nodes
        if difference.target is not aten.sub.Tensor or difference.kwargs or not all(isinstance(a, torch.fx.Node) for a in difference.args):
            continue
        x, y = difference.args
        views = views_of_a_rounding(y)  # type: ignore[arg-type]
        if views is None or x.meta["val"].dtype != node.meta["val"].dtype:  # type: ignore[union-attr]
            continue
        with graph.inserting_before(node):
            added = [called(graph, node, aten._to_copy.default, (x,), {"dtype": torch.float32})]
            wide = views[0].args[0]
            for view in views[1:]:
                wide = called(graph, node, view.target, (wide, *view.args[1:]), dict(view.kwargs))
                added.append(wide)
            added.append(called(graph, node, aten.sub.Tensor, (added[0], wide), {}))
            added.append(called(graph, node, aten.exp.default, (added[-1],), {}))
            added.append(called(graph, node, aten._to_copy.default, (added[-1],), {"dtype": node.meta["val"].dtype}))
        if geometry(added[-1]) == geometry(node):
            node.replace_all_uses_with(added[-1])
            graph.erase_node(node)
            added = [] if difference.users else [difference]
        for unused in reversed(added):
            graph.erase_node(unused)
    return graph


def views_of_a_rounding(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The cast from float32 to half precision and the views of it that end in `node`; None where it is something else."""
    views = [node]
    while is_view(views[-1]) and len(views[-1].all_input_nodes) == 1:
        views.append(views[-1].all_input_nodes[0])
    rounding = views[-1]
    if rounding.target is not aten._to_copy.default:
        return None
    before: FakeTensor = rounding.args[0].meta["val"]  # type: ignore[union-attr]
    return views[::-1] if before.dtype == torch.float32 and before.device == rounding.meta["val"].device else None


def called(graph: torch.fx.Graph, like: torch.fx.Node, target: torch.fx.node.Target, args: tuple, kwargs: dict) -> torch.fx.Node:
    """A call with its fake, of the user's line that `like` is of."""
    made = graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    given = torch.fx.map_arg(args, lambda a: a.meta["val"])
    tensor = next(a for a in given if isinstance(a, torch.Tensor))
    with tensor.fake_mode:  # type: ignore[attr-defined]
        made.meta = {**like.meta, "val": target(*given, **kwargs)}  # type: ignore[operator]
    return made
