"""Which matmuls give their bias to the nests that read them. The fakes need no GPU."""

from __future__ import annotations

import pytest
import torch

from dynacompile.autograd.passes.bias import split_biases
from tests.autograd.test_padding import Graph

aten = torch.ops.aten


def product(g: Graph, **kwargs):
    return g.call(aten.addmm.default, g.input(32, **kwargs), g.input(64, 16, **kwargs), g.input(16, 32, **kwargs))


def ops_after(g: Graph, *outputs) -> list[str]:
    g.graph.output((tuple(outputs),))
    split_biases(g.graph)
    g.graph.lint()
    return [n.target.overloadpacket.__name__ for n in g.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("kwargs", [{"dtype": torch.float32}, {"dtype": torch.float32, "device": "cpu"}, {"dtype": torch.float64, "device": "cpu"}])
def test_pointwise_readers_take_the_bias(kwargs):
    g = Graph()
    y = product(g, **kwargs)
    v = g.call(aten.view.default, y, [4, 16, 32])
    out = g.call(aten.gelu.default, v)
    assert ops_after(g, out) == ["mm", "add", "view", "gelu"]


def test_what_stays_whole():
    for kwargs in ({"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"dtype": torch.bfloat16, "device": "cpu"}):
        g = Graph()
        assert ops_after(g, g.call(aten.relu.default, product(g, **kwargs))) == ["addmm", "relu"]
    g = Graph()
    y = product(g, dtype=torch.float32)
    assert ops_after(g, y, g.call(aten.relu.default, y)) == ["addmm", "relu"], "an output is written once, by the matmul"
    g = Graph()
    y = product(g, dtype=torch.float32)
    assert ops_after(g, g.call(aten.mm.default, y, g.input(32, 8, dtype=torch.float32))) == ["addmm", "mm"], "matmuls can't add it"
