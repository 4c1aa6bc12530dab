"""Which products the library stores as float32, and which it adds to one another. The fakes need no GPU."""

from __future__ import annotations

import pytest
import torch

from dynacompile.autograd.passes import simplify
from dynacompile.autograd.passes.products import add_products, widen_products
from tests.autograd.test_padding import Graph

aten = torch.ops.aten


def product(g: Graph, **kwargs):
    return g.call(aten.mm.default, g.input(64, 16, **kwargs), g.input(16, 32, **kwargs))


def wide(g: Graph, node):
    made = g.graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32})
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


def test_two_products_are_one_sum():
    g = Graph()
    assert after(add_products, g, g.call(aten.add.Tensor, product(g), product(g))) == ["mm.default", "addmm.default"]


def test_sums_that_stay():
    g = Graph()
    y = product(g)
    assert after(add_products, g, g.call(aten.add.Tensor, y, product(g)), y) == ["mm.default", "mm.default", "add.Tensor"], "one of them is an output"
    g = Graph()
    assert after(add_products, g, g.call(aten.add.Tensor, product(g), g.input(64, 32))) == ["mm.default", "add.Tensor"], "the other is the caller's"


def test_precise_keeps_eagers_roundings():
    for precise, wanted in ((False, ["mm.dtype"]), (True, ["mm.default", "_to_copy.default"])):
        g = Graph()
        assert after(lambda graph, precise=precise: simplify(graph, precise), g, wide(g, product(g))) == wanted
