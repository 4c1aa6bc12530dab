"""Gradients through logarithms of sums of exponentials, of half precision, beside float64's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.autograd.passes.logarithms import widen_exponents
from tests.autograd.test_padding import Graph

aten = torch.ops.aten
PROGRAMS = {
    "of what the kernel has computed": lambda x: F.logsigmoid(x).square().logsumexp(0),
    "kept dimension": lambda x: (x * 3.3).logsumexp(-1, keepdim=True),
    "all": lambda x: (x * 3.3).logsumexp((0, 1)),
    "by hand": lambda x: (x * 3.3 - (x * 3.3).logsumexp(1, keepdim=True)).exp(),
    "z-loss": lambda x: (x * 3.3).logsumexp(-1).square().mean(),
}


def result_and_gradient(function, x):
    x = x.detach().requires_grad_()
    out = function(x)
    seeds = torch.linspace(0.1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    return [out.detach().double(), torch.autograd.grad(out, x, seeds.to(out.dtype))[0].double()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_as_near_as_eagers(name, dtype):
    torch.manual_seed(0)
    x = (torch.randn(17, 24) * 8).to(dtype)
    compiled = dynacompile.compile(PROGRAMS[name], isolate_recompiles=True)
    wanted = result_and_gradient(PROGRAMS[name], x.double())
    for got, eager, best in zip(result_and_gradient(compiled, x), result_and_gradient(PROGRAMS[name], x), wanted, strict=True):
        off, limit = (got - best).abs().max(), (eager - best).abs().max()
        assert off <= 1.5 * limit + torch.finfo(dtype).eps * best.abs().max()


def test_an_exponent_is_wide_where_its_logarithm_was_rounded():
    g = Graph()
    x, y = g.input(8, 4), g.input(8, dtype=torch.float32)
    rounded = g.graph.call_function(aten._to_copy.default, (y,), {"dtype": torch.bfloat16})
    with g.mode:
        rounded.meta["val"] = y.meta["val"].to(torch.bfloat16)
    out = g.call(aten.exp.default, g.call(aten.sub.Tensor, x, g.call(aten.unsqueeze.default, rounded, 1)))
    other = g.call(aten.exp.default, g.call(aten.sub.Tensor, x, g.call(aten.unsqueeze.default, g.input(8), 1)))
    g.graph.output(((out, other, rounded),))
    widen_exponents(g.graph)
    g.graph.lint()
    (made, kept, same) = list(g.graph.nodes)[-1].args[0][0]
    exponential = made.args[0]
    assert made.target is aten._to_copy.default and exponential.target is aten.exp.default and exponential.meta["val"].dtype == torch.float32
    assert exponential.args[0].args[1].args[0] is y and (kept, same) == (other, rounded)


def test_a_logarithm_of_another_device_stays_rounded():
    g = Graph()
    x, y = g.input(8), g.input(8, dtype=torch.float32, device="cpu")
    moved = g.graph.call_function(aten._to_copy.default, (y,), {"dtype": torch.bfloat16, "device": x.meta["val"].device})
    with g.mode:
        moved.meta["val"] = torch.empty(8, dtype=torch.bfloat16, device="cuda:0")
    out = g.call(aten.exp.default, g.call(aten.sub.Tensor, x, moved))
    g.graph.output(((out,),))
    widen_exponents(g.graph)
    assert [n.target for n in g.graph.nodes if n.op == "call_function"] == [aten._to_copy.default, aten.sub.Tensor, aten.exp.default]
