"""Which products of 16-bit numbers are oneDNN's linear layer, and that results and gradients are eager's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd.passes import simplify
from dynacompile.autograd.passes.cpu_products import add_biases, apply_cheap_activations
from dynacompile.ops.product_costs import library_multiplies
from tests.autograd.test_padding import Graph

aten = torch.ops.aten
HALVES = [
    pytest.param(d, marks=pytest.mark.skipif(not library_multiplies(d), reason="oneDNN has no products of it here")) for d in (torch.bfloat16, torch.float16)
]


def layer(g: Graph, rows: int = 256, **kwargs):
    return g.call(aten.addmm.default, g.input(64, **kwargs), g.input(rows, 128, **kwargs), g.call(aten.t.default, g.input(64, 128, **kwargs)))


def after(g: Graph, *outputs, run=None) -> list[str]:
    g.graph.output((tuple(outputs),))
    for step in (run,) if run else (add_biases, apply_cheap_activations):
        step(g.graph)
    g.graph.lint()
    return [str(n.target).removeprefix("aten.") for n in g.graph.nodes if n.op == "call_function" and n.users]


def activations(g: Graph) -> list[str]:
    return [n.args[3] for n in g.graph.nodes if str(n.target) == "mkldnn._linear_pointwise.default"]


@pytest.mark.parametrize("dtype", HALVES)
def test_the_library_adds_the_bias(dtype):
    g = Graph()
    assert "mkldnn._linear_pointwise.default" in after(g, g.call(aten.relu.default, layer(g, dtype=dtype, device="cpu")))
    assert activations(g) == ["none"], "its relu gives 0 for NaN"


@pytest.mark.parametrize("dtype", HALVES)
def test_the_library_computes_activations_of_few_operations(dtype):
    for op, name in ((aten.hardswish.default, "hardswish"), (aten.leaky_relu.default, "leaky_relu")):
        g = Graph()
        assert after(g, g.call(op, layer(g, dtype=dtype, device="cpu")))[-1] == "mkldnn._linear_pointwise.default"
        assert activations(g) == [name]
        g = Graph()
        y = layer(g, dtype=dtype, device="cpu")
        after(g, y, g.call(op, y))
        assert activations(g) == ["none"], "what comes before the activation is an output"
        g = Graph()
        after(g, g.call(op, layer(g, dtype=dtype, device="cpu")), run=lambda graph: simplify(graph, precise=True))
        assert activations(g) == ["none"], "eager rounds before the activation"
    g = Graph()
    after(g, g.call(aten.leaky_relu.default, layer(g, dtype=dtype, device="cpu"), 0.0))
    assert activations(g) == ["none"], "with a slope of 0 it is relu"


def test_products_that_stay():
    """Of other dtypes and devices, of one row, and small ones, which are loops."""
    for kwargs in ({"device": "cuda:0"}, {"dtype": torch.float32, "device": "cpu"}, {"rows": 1, "device": "cpu"}, {"rows": 4, "device": "cpu"}):
        g = Graph()
        assert "addmm.default" in after(g, layer(g, **kwargs))


@pytest.mark.parametrize("dtype", HALVES)
def test_results_and_gradients_are_eagers(dtype):
    """The bias is added in float32 and the sum rounded once, as eager does: the same bits."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 130).to(dtype)
    x = torch.randn(4, 40, 96).to(dtype).requires_grad_()
    tangent = torch.randn(4, 40, 130).to(dtype)
    compiled = dynacompile.compile(lambda x: linear(x).relu())
    ours, eager = compiled(x), linear(x).relu()
    assert torch.equal(ours, eager)
    for a, b in zip(*(torch.autograd.grad(y, [x, *linear.parameters()], tangent) for y in (ours, eager)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation", [F.relu, F.hardswish, F.leaky_relu, F.relu6])
def test_nan_and_infinity_go_through_layers_as_in_eager(dtype, activation):
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 130).to(dtype)
    x = torch.randn(64, 96).to(dtype)
    x[1, 3], x[2, 5], x[3, 7] = float("nan"), float("inf"), float("-inf")
    compiled = dynacompile.compile(lambda x: activation(linear(x)))
    with torch.no_grad():
        ours, eager = compiled(x), activation(linear(x))
    assert torch.equal(ours.isnan(), eager.isnan()) and torch.equal(ours.isinf(), eager.isinf())
    torch.testing.assert_close(ours, eager, equal_nan=True)
