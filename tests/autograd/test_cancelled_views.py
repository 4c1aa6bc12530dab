"""Views that undo earlier views are left out; a reshape whose elements have to move undoes none, though torch's schema names it a view."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dynacompile.autograd.passes.cancel import cancel_noops
from tests.autograd.graphs import fakes_of
from tests.checking import check

aten = torch.ops.aten


def recorded(x, *steps):
    """A graph of operators, each of the result of the one before, with the fakes that they give."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    (node.meta["val"],) = fakes_of(x)
    for target, *args in steps:
        before = node
        node = graph.call_function(target, (before, *args))
        with before.meta["val"].fake_mode:
            node.meta["val"] = target(before.meta["val"], *args)
    graph.output((graph.call_function(aten.neg.default, (node,)),))
    graph.find_nodes(op="call_function", target=aten.neg.default)[0].meta["val"] = node.meta["val"]
    return graph


def operators(graph):
    return [node.target for node in graph.nodes if node.op == "call_function" and node.target is not aten.neg.default]


@pytest.mark.parametrize(
    "size, steps, left",
    [
        ((4, 6), [(aten.t.default,), (aten.t.default,)], []),
        ((4, 6), [(aten.view.default, [24]), (aten.reshape.default, [4, 6])], []),
        ((4, 6), [(aten.t.default,), (aten.reshape.default, [4, 6])], [aten.t.default, aten.reshape.default]),
        ((4, 6), [(aten.t.default,), (aten.reshape.default, [4, 6]), (aten.t.default,)], [aten.t.default, aten.reshape.default, aten.t.default]),
        ((24,), [(aten.view.default, [4, 6]), (aten.t.default,), (aten.reshape.default, [24])], [aten.view.default, aten.t.default, aten.reshape.default]),
        ((4, 6), [(aten.t.default,), (aten.reshape.default, [24]), (aten.view.default, [4, 6])], [aten.t.default, aten.reshape.default, aten.view.default]),
    ],
    ids=["transposed twice", "flat and back", "moved into the same sizes", "moved between", "flat, moved", "moved, then viewed"],
)
def test_what_is_left(size, steps, left):
    graph = recorded(torch.randn(size), *steps)
    cancel_noops(graph)
    graph.eliminate_dead_code()
    assert operators(graph) == left


def test_gradients_of_groups_of_what_is_transposed():
    """torch 2.15 hands the transposed gradient to the norm's backward as it is; earlier ones copy it."""

    def fn(x):
        return F.group_norm(F.pad(x, (1, 1, 2, 1)).transpose(2, 3), 4).transpose(2, 3).flatten(1).view(x.shape[0], 4, -1)

    check(fn, torch.randn(1, 8, 5, 6, requires_grad=True), options={"backend": "aot_eager"})
