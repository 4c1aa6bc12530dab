"""Which products the library stores as float32, and with which activations. The fakes need no GPU."""

from __future__ import annotations

import pytest
import torch

from dynacompile.autograd.passes import simplify
from dynacompile.autograd.passes.products import apply_activations, widen_products
from tests.autograd.test_padding import Graph

aten = torch.ops.aten


def product(g: Graph, **kwargs):
    return g.call(aten.mm.default, g.input(64, 16, **kwargs), g.input(16, 32, **kwargs))


def wide(g: Graph, node):
    made = g.graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32, "layout": torch.strided, "device": node.meta["val"].device})
    with g.mode:
        made.meta["val"] = aten._to_copy.default(node.meta["val"], dtype=torch.float32)
    return made


def after(run, g: Graph, *outputs) -> list[str]:
    g.graph.output((tuple(outputs),))
    run(g.graph)
    g.graph.lint()
    return [str(n.target).removeprefix("aten.") for n in g.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_of_a_product_is_the_librarys(dtype):
    g = Graph()
    assert after(widen_products, g, wide(g, product(g, dtype=dtype))) == ["mm.dtype"]
    (made,) = [n for n in g.graph.nodes if n.op == "call_function"]
    assert made.meta["val"].dtype == torch.float32 and made.args[2] == torch.float32


def test_a_cast_of_a_transposed_product():
    """As of the gradient of a weight, whose layer multiplies with its transpose."""
    g = Graph()
    out = wide(g, g.call(aten.t.default, product(g)))
    size, stride = out.meta["val"].size(), out.meta["val"].stride()
    assert after(widen_products, g, out) == ["mm.dtype", "t.default"]
    made = next(n for n in g.graph.nodes if n.target is aten.t.default)
    assert (made.meta["val"].size(), made.meta["val"].stride(), made.meta["val"].dtype) == (size, stride, torch.float32)


def test_casts_that_stay():
    g = Graph()
    y = product(g)
    assert after(widen_products, g, wide(g, y), y) == ["mm.default", "_to_copy.default"], "the results of 16 bits are an output"
    for kwargs in ({"device": "cpu"}, {"dtype": torch.float32}):
        g = Graph()
        assert after(widen_products, g, wide(g, product(g, **kwargs)))[0] == "mm.default"
    g = Graph()
    odd = g.call(aten.mm.default, g.input(64, 16), g.input(16, 33))
    assert after(widen_products, g, wide(g, odd)) == ["mm.default", "_to_copy.default"], "the fast kernels take padded matrices"


def test_a_cast_that_a_kernel_makes_as_it_loads():
    g = Graph()
    assert after(widen_products, g, g.call(aten.add.Tensor, wide(g, product(g)), 1.0)) == ["mm.default", "_to_copy.default", "add.Tensor"]


def layer(g: Graph, **kwargs):
    return g.call(aten.addmm.default, g.input(32, **kwargs), g.input(64, 16, **kwargs), g.input(16, 32, **kwargs))


def gelu(g: Graph, node, **kwargs):
    made = g.graph.call_function(aten.gelu.default, (node,), kwargs)
    made.meta["val"] = node.meta["val"]
    return made


def test_activations_are_the_librarys():
    for gives, use_gelu in ((lambda g: g.call(aten.relu.default, layer(g)), False), (lambda g: gelu(g, layer(g), approximate="tanh"), True)):
        g = Graph()
        out = gives(g)
        assert after(apply_activations, g, out) == ["_addmm_activation.default"]
        (made,) = [n for n in g.graph.nodes if n.op == "call_function"]
        assert made.kwargs == {"use_gelu": use_gelu}
    g = Graph()
    out = g.call(aten.relu.default, g.call(aten.view.default, layer(g), [2, 32, 32]))
    assert after(apply_activations, g, out) == ["_addmm_activation.default", "view.default"]


def test_activations_that_stay():
    g = Graph()
    assert after(apply_activations, g, gelu(g, layer(g))) == ["addmm.default", "gelu.default"], "the library has gelu by tanh alone"
    g = Graph()
    y = layer(g)
    assert after(apply_activations, g, g.call(aten.relu.default, y), y)[0] == "addmm.default", "what comes before the activation is an output"
    g = Graph()
    y = g.call(aten.mul.Tensor, g.call(aten.relu.default, layer(g)), 2.0)
    assert after(apply_activations, g, y)[0] == "addmm.default", "the kernel that reads it computes it"
    for kwargs in ({"device": "cpu"}, {"dtype": torch.float32}):
        g = Graph()
        assert after(apply_activations, g, g.call(aten.relu.default, layer(g, **kwargs)))[0] == "addmm.default"
    g = Graph()
    out = gelu(g, layer(g, dtype=torch.float16), approximate="tanh")
    assert after(apply_activations, g, out)[0] == "addmm.default", "the library's tanh is not as exact as float16"


def test_precise_keeps_eagers_roundings():
    for precise, wanted in ((False, ["mm.dtype"]), (True, ["mm.default", "_to_copy.default"])):
        g = Graph()
        assert after(lambda graph, precise=precise: simplify(graph, precise), g, wide(g, product(g))) == wanted
