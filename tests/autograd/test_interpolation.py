"""Interpolation as sums of taps, and its gradients: eager's numbers, in few launches, and what is left to ATen."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch, Schedule
from dynacompile.ops.interpolation import INTERPOLATION, of_gradient, of_input
from tests.lower.tracing import ENV, lower, schedule

aten = torch.ops.aten

MODES = {
    ("nearest", 1): "nearest",
    ("nearest", 2): "nearest",
    ("nearest", 3): "nearest",
    ("nearest-exact", 2): "nearest-exact",
    ("linear", 1): "linear",
    ("linear", 2): "bilinear",
    ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}
SIZES = {
    "twice": ((5, 6, 7), (10, 12, 14), None),
    "mixed": ((5, 6, 7), (3, 11, 7), None),
    "half": ((8, 8, 8), None, 0.5),
    "factor": ((7, 5, 9), None, 1.7),
    "equal": ((4, 4, 4), (4, 4, 4), None),
    "single": ((1, 3, 2), (6, 1, 5), None),
    "smaller": ((6, 7, 5), None, 0.3),
    "eightfold": ((3, 4, 2), None, 8.0),
}


def results(kind: str, dims: int, size: str, aligned: bool, dtype: torch.dtype, form: torch.memory_format = torch.contiguous_format) -> list[tuple]:
    """(ours, eager's) of the forward and of the gradient."""
    sizes, out, scale = SIZES[size]
    torch.manual_seed(0)
    x = torch.randn(2, 3, *sizes[:dims], dtype=torch.float64).to(dtype).to(memory_format=form).requires_grad_()
    corners = kind in ("linear", "cubic")
    options = {"scale_factor": scale, "recompute_scale_factor": False} if scale else {"size": out[:dims]}
    wanted = F.interpolate(x, mode=MODES[kind, dims], **options, **({"align_corners": aligned} if corners else {}))
    tangent = torch.randn_like(wanted)
    (grad,) = torch.autograd.grad(wanted, x, tangent)
    more = (*((aligned,) if corners else ()), *([scale] * dims if scale else [None] * dims))
    made = of_input(kind, x.detach(), wanted.shape[2:], more, corners)
    back = of_gradient(kind, tangent, wanted.shape[2:], x.shape, more, corners)
    return [(made, wanted.detach()), (back, grad)]


@pytest.mark.parametrize("aligned", [False, True], ids=["centres", "corners"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "dims"), MODES)
def test_numbers_are_eagers(kind, dims, size, aligned):
    for got, wanted in results(kind, dims, size, aligned, torch.float64):
        if got is NotImplemented:
            assert size == "eightfold" and (kind == "cubic" or aligned), "only many results of one element are left to ATen"
            continue
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "dims"), MODES)
def test_narrow_numbers_are_rounded_once(kind, dims, dtype):
    near = 1e-5 if dtype == torch.float32 else 2e-2
    for got, wanted in results(kind, dims, "factor", False, dtype):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, rtol=near, atol=near)


@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_results_have_the_memory_format_of_their_input(kind):
    for got, _ in results(kind, 2, "twice", False, torch.float32, torch.channels_last):
        assert got.is_contiguous(memory_format=torch.channels_last)


def test_an_infinite_gradient_stays_with_the_elements_that_the_result_was_made_of():
    tangent = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    tangent[0, 0, 0, 7] = torch.inf
    got = of_gradient("linear", tangent, (8, 8), (1, 1, 4, 4), (False, None, None), True)
    assert not got.isnan().any() and got.isinf().sum() == 1


def plan(function, *size: int) -> Schedule:
    """What is launched on a GPU, without one."""
    mode = FakeTensorMode(static_shapes=True)
    with mode, torch.no_grad():
        graph = make_fx(function, decomposition_table=INTERPOLATION)(torch.empty(size, device="cuda:0"))
    assert not any(node.op == "get_attr" for node in graph.graph.nodes)
    for node in reversed(graph.graph.nodes):
        if not node.users and node.op not in ("output", "placeholder"):
            graph.graph.erase_node(node)
    with mode, torch.no_grad():
        return schedule(lower(graph, ENV), ENV)


GRAPHS = {
    "nearest": (lambda x: aten.upsample_nearest2d(x.sin(), [112, 112], 2.0, 2.0).cos(), (8, 32, 56, 56), 1),
    "nearest gradient": (lambda g: aten.upsample_nearest2d_backward(g.sin(), [112, 112], [8, 32, 56, 56], 2.0, 2.0).cos(), (8, 32, 112, 112), 3),
    "bilinear": (lambda x: aten.upsample_bilinear2d(x.sin(), [112, 112], False, 2.0, 2.0).cos(), (8, 32, 56, 56), 1),
    "bilinear gradient": (lambda g: aten.upsample_bilinear2d_backward(g, [112, 112], [8, 32, 56, 56], False, 2.0, 2.0).cos(), (8, 32, 112, 112), 3),
    "bicubic": (lambda x: aten.upsample_bicubic2d(x, [112, 112], False, 2.0, 2.0).cos(), (8, 32, 56, 56), 3),
    "bicubic gradient": (lambda g: aten.upsample_bicubic2d_backward(g, [112, 112], [8, 32, 56, 56], False, 2.0, 2.0).cos(), (8, 32, 112, 112), 4),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_places_and_factors_are_small_tables_and_the_rest_is_one_kernel(name):
    """Where few kernels would read the tables, there are none. A bicubic gradient takes one dimension after the other."""
    function, size, launches = GRAPHS[name]
    steps = [s for s in plan(function, *size).steps if isinstance(s, (Launch, Extern))]
    assert all(isinstance(s, Launch) for s in steps) and len(steps) == launches


def test_cpus_call_aten():
    for op, rule in INTERPOLATION.items():
        args = ([4], [1, 1, 2]) if "backward" in str(op) else ([4],)
        assert rule(torch.ones(1, 1, 4), *args) is NotImplemented, op
