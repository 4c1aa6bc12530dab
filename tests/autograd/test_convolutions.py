"""Convolutions with windows of one element as products of matrices. The fakes need no GPU."""

from __future__ import annotations

import pytest
import torch

from dynacompile.autograd.passes import simplify
from dynacompile.autograd.passes.convolutions import multiply_pixels
from tests.autograd.test_padding import Graph

aten = torch.ops.aten
BF16 = torch.bfloat16


def images(g: Graph, *size: int, dtype: torch.dtype = BF16, device: str = "cuda"):
    """With channels side by side. size: images, channels, rows, columns."""
    count, channels, *space = size
    return g.call(aten.permute.default, g.input(count, *space, channels, dtype=dtype, device=device), [0, len(space) + 1, *range(1, len(space) + 1)])


def convolution(g: Graph, x, weight, bias=None, stride=1, padding=0, groups=1):
    rank = x.meta["val"].dim() - 2
    node = g.graph.call_function(aten.convolution.default, (x, weight, bias, [stride] * rank, [padding] * rank, [1] * rank, False, [0] * rank, groups))
    given, taps = x.meta["val"], weight.meta["val"]
    space = [(n + 2 * padding - k) // stride + 1 for n, k in zip(given.shape[2:], taps.shape[2:], strict=True)]
    with g.mode:
        val = torch.empty(given.shape[0], taps.shape[0], *space, dtype=given.dtype, device=given.device)
        node.meta["val"] = val if given.is_contiguous() else val.to(memory_format=torch.channels_last)
    return node


def names(g: Graph, *outputs, run=multiply_pixels) -> list[str]:
    before = [(o.meta["val"].size(), o.meta["val"].stride()) for o in outputs]
    g.graph.output((tuple(outputs),))
    run(g.graph)
    g.graph.lint()
    ((given,),) = next(n for n in g.graph.nodes if n.op == "output").args[0]
    assert [(given.meta["val"].size(), given.meta["val"].stride())] == before
    return [str(n.target).removeprefix("aten.") for n in g.graph.nodes if n.op == "call_function"]


VIEWS = ["permute.default", "permute.default", "view.default", "select.int", "select.int", "permute.default"]


@pytest.mark.parametrize(("bias", "product"), [(False, "mm.default"), (True, "addmm.default")])
def test_pixels_are_rows_of_a_matrix(bias, product):
    g = Graph()
    y = convolution(g, images(g, 2, 64, 8, 8), g.input(128, 64, 1, 1, dtype=BF16), g.input(128, dtype=BF16) if bias else None)
    assert names(g, g.call(aten.relu.default, y)) == [*VIEWS, product, "view.default", "permute.default", "relu.default"]


def test_convolutions_that_stay():
    def stays(make) -> bool:
        g = Graph()
        y = make(g)
        return "convolution.default" in names(g, g.call(aten.relu.default, y))

    weight = (128, 64, 1, 1)
    assert stays(lambda g: convolution(g, images(g, 2, 64, 8, 8), g.input(*weight, dtype=BF16), stride=2))
    assert stays(lambda g: convolution(g, images(g, 2, 64, 8, 8), g.input(*weight, dtype=BF16), padding=1))
    assert stays(lambda g: convolution(g, images(g, 2, 128, 8, 8), g.input(*weight, dtype=BF16), groups=2))
    assert stays(lambda g: convolution(g, images(g, 2, 64, 8, 8), g.input(128, 64, 3, 3, dtype=BF16)))
    assert stays(lambda g: convolution(g, images(g, 2, 64, 8, 8, device="cpu"), g.input(*weight, dtype=BF16, device="cpu")))
    assert stays(lambda g: convolution(g, images(g, 2, 64, 8, 8, dtype=torch.float32), g.input(*weight, dtype=torch.float32))), "torch has a setting for these"
    assert stays(lambda g: convolution(g, g.input(2, 64, 8, 8, dtype=BF16), g.input(*weight, dtype=BF16))), "channels do not lie side by side"
    assert stays(lambda g: convolution(g, images(g, 2, 32, 8, 8), g.input(128, 32, 1, 1, dtype=BF16))), "few channels"
    g = Graph()
    y = convolution(g, images(g, 2, 64, 8, 8), g.input(*weight, dtype=BF16))
    assert "convolution.default" in names(g, y), "nothing that a product could take in reads it"


def test_precise_keeps_eagers_roundings():
    for precise in (False, True):
        g = Graph()
        y = convolution(g, images(g, 2, 64, 8, 8), g.input(128, 64, 1, 1, dtype=BF16), g.input(128, dtype=BF16))
        found = names(g, g.call(aten.relu.default, y), run=lambda graph, precise=precise: simplify(graph, precise))
        assert ("convolution.default" in found) == precise


@pytest.mark.parametrize("bias", [False, True])
def test_values(bias):
    """The graph on the CPU, with the pass's conditions met by its fakes, gives what the convolution does."""
    g = Graph()
    y = convolution(g, images(g, 2, 64, 5, 7), g.input(72, 64, 1, 1, dtype=BF16), g.input(72, dtype=BF16) if bias else None)
    names(g, g.call(aten.relu.default, y))
    graph = torch.fx.GraphModule(torch.nn.Module(), g.graph)
    x, w, b = torch.randn(2, 5, 7, 64).to(BF16), torch.randn(72, 64, 1, 1).to(BF16), torch.randn(72).to(BF16)
    got = graph(x, w, *([b] if bias else []))[0][0]
    wanted = torch.relu(torch.conv2d(x.permute(0, 3, 1, 2).double(), w.double(), b.double() if bias else None))
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=1e-1)
