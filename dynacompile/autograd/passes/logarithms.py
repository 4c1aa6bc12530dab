"""Exponentials of differences from a logarithm that was rounded to 16 bits, as the backward of `logsumexp` has them: exp(x - logsumexp(x)).

In eager `x` was rounded before the sum, and so was the sum, so that the largest x leaves the exponent near 0. In a kernel that has computed x itself, x is
not rounded, and beside a rounded logarithm of hundreds the exponent is off by whole numbers. Here the logarithm isn't rounded either.
"""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.autograd.facts import is_view

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
            wide = views[0].args[0]
            for view in views[1:]:
                wide = called(graph, view.target, (wide, *view.args[1:]), dict(view.kwargs))
            left = called(graph, aten._to_copy.default, (x,), {"dtype": torch.float32})
            exponential = called(graph, aten.exp.default, (called(graph, aten.sub.Tensor, (left, wide), {}),), {})
            made = called(graph, aten._to_copy.default, (exponential,), {"dtype": node.meta["val"].dtype})
        made.meta = {**node.meta, "val": made.meta["val"]}
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        if not difference.users:
            graph.erase_node(difference)
    return graph


def views_of_a_rounding(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The cast from float32 to half precision and the views of it that end in `node`; None where it is something else."""
    views = [node]
    while is_view(views[-1]) and len(views[-1].all_input_nodes) == 1:
        views.append(views[-1].all_input_nodes[0])
    rounding = views[-1]
    if rounding.target is not aten._to_copy.default or rounding.args[0].meta["val"].dtype != torch.float32:  # type: ignore[union-attr]
        return None
    return views[::-1]


def called(graph: torch.fx.Graph, target: torch.fx.node.Target, args: tuple, kwargs: dict) -> torch.fx.Node:
    made = graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    given = torch.fx.map_arg(args, lambda a: a.meta["val"])
    tensor = next(a for a in given if isinstance(a, torch.Tensor))
    with tensor.fake_mode:  # type: ignore[attr-defined]
        made.meta["val"] = target(*given, **kwargs)  # type: ignore[operator]
    return made
