"""What is compared with what was picked of it is computed once: kept for the backward, and read from memory by the kernels of one graph."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.codegen.triton import is_exact
from dynacompile.ir.schedule import Kernel
from dynacompile.schedule import schedule
from tests.lower.tracing import ENV
from tests.schedule.test_columns import CUDA, on


def greatest_of_groups(t: torch.Tensor) -> torch.Tensor:
    """For each element, the greatest of the group of its row that it belongs to."""
    groups = torch.arange(t.shape[1]).remainder(3).expand(t.shape)
    return t.new_zeros(8, 3).scatter_reduce(1, groups, t, "amax", include_self=False).gather(1, groups)


ONCE = {
    "threshold": lambda t: torch.where(t >= t.topk(5).values[:, -1:], t, 0),
    "maximum": lambda t: t == t.amax(1, keepdim=True),
    "difference": lambda t: (t - t.max(1, keepdim=True).values) == 0,
    "absolute": lambda t: t.abs() < t.abs().sort(1).values[:, 3:4],
    "greatest of groups": lambda t: t == greatest_of_groups(t),
    "gathered": lambda t: t > t.gather(1, torch.zeros(8, 1, dtype=torch.int64)),
}
OTHERS = {
    "softmax": lambda t: t.softmax(1),
    "mean": lambda t: t > t.mean(1, keepdim=True),
    "two rows": lambda t: t[:4] > t[4:],
    "itself": lambda t: t != t,
    "number": lambda t: t > 0.5,
}


def compile_for_gpus(fn, x: torch.Tensor) -> tuple[list[str], list[Kernel]]:
    """What is computed once, and the kernels."""
    programs = []
    options = {"reference": True}
    compiled = dynacompile.explain(fn, observer=lambda stage, result: programs.append(result) if stage == "lower" else None, options=options)
    compiled(x)
    names = [name for p in programs for name, b in p.buffers.items() if b.once]
    return names, [k for p in programs for k in schedule(on(CUDA, p), ENV).kernels.values()]


@pytest.mark.parametrize("name", [*ONCE, *OTHERS])
def test_what_is_computed_once(name):
    compared = ONCE.get(name) or OTHERS[name]
    names, kernels = compile_for_gpus(lambda x: compared(x.sin() * 3 + x), torch.randn(8, 2000))
    assert names == (["add_tensor"] if name in ONCE else [])
    assert sum(op.name == "sin" for k in kernels for op in k.nest.body) == 1 or name not in ONCE


def test_inputs_are_in_memory_anyway():
    assert compile_for_gpus(lambda x: x == x.amax(1, keepdim=True), torch.randn(8, 2000))[0] == []


def test_kernels_whose_numbers_others_must_find_join_no_products_with_sums():
    def exact(fn, dtype=torch.float32):
        return [is_exact(k) for k in compile_for_gpus(fn, torch.randn(8, 200, dtype=dtype))[1]]

    assert exact(lambda x: (x * 3 + 1).amax(1)) == [True]
    assert exact(lambda x: (x * 3 + 1).sum(1)) == exact(lambda x: x * 3 + 1) == [False]
    assert exact(lambda x: x * 3 + 1, torch.bfloat16) == [False]
    assert exact(lambda x: (x * 3 + 1).floor(), torch.bfloat16) == [True]


def test_a_long_chain_of_maxima():
    """As many as a recursive walk could not follow."""

    def running(x):
        greatest = x[:, 0] * 2
        for i in range(1, 600):
            greatest = torch.maximum(greatest, x[:, i] * 2)
        return greatest

    x = torch.randn(3, 600, requires_grad=True)
    compiled = dynacompile.compile(running, isolate_recompiles=True, backend="aot_eager")
    got, wanted = (torch.autograd.grad(fn(x).sum(), x)[0] for fn in (compiled, running))
    assert torch.equal(got, wanted)


GREATEST = {
    "scatter_reduce": lambda t: t.new_zeros(8, 3).scatter_reduce(1, torch.arange(20).remainder(3).expand(8, 20), t, "amax", include_self=False),
    "index_reduce": lambda t: t.new_zeros(3, 20).index_reduce(0, torch.arange(8).remainder(3), t, "amin"),
    "segment_reduce": lambda t: torch.segment_reduce(t, "max", lengths=torch.tensor([3, 5])),
    "norm": lambda t: torch.linalg.vector_norm(t, float("inf"), 1),
    "dist": lambda t: torch.dist(t, t.flip(0), float("inf")),
    "cdist": lambda t: torch.cdist(t, t.flip(0), float("inf")),
}


@pytest.mark.parametrize("name", GREATEST)
def test_a_backward_does_not_compute_again_what_it_compares_with_the_greatest(name):
    graphs = []

    def observe(stage, result):
        if stage == "differentiate":
            graphs.append(result.backward.graph)

    x = torch.randn(8, 20, requires_grad=True)
    dynacompile.explain(lambda x: GREATEST[name](x.sin() * 3 + x), observer=observe, options={"reference": True})(x)
    assert len(graphs) == 1
    assert not [n for n in graphs[0].nodes if n.target is torch.ops.aten.sin.default]
    compiled = dynacompile.compile(lambda x: GREATEST[name](x.sin() * 3 + x), isolate_recompiles=True, options={"reference": True})
    wanted = torch.autograd.grad(GREATEST[name](x.sin() * 3 + x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), wanted)
