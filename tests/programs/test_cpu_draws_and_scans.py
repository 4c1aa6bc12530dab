"""Coins that are drawn as uniform numbers, and scans: eager's values, generator state, errors and gradients, in few calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled
from dynacompile.ops.randomness import coins_are_comparisons

COINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "probabilities": lambda x: torch.bernoulli(x.sigmoid()),
    "transposed probabilities": lambda x: torch.bernoulli(x.sigmoid().t()),
    "bfloat16": lambda x: torch.bernoulli(x.sigmoid().bfloat16()),
    "float64": lambda x: torch.bernoulli(x.sigmoid().double()),
    "one probability": lambda x: torch.bernoulli(x, 0.2),
    "never and always": lambda x: torch.bernoulli(x, 0.0) + torch.bernoulli(x, 1.0),
    "dropout": lambda x: F.dropout(x.relu(), 0.3),
    "dropout of a transposed tensor": lambda x: F.dropout(x.t(), 0.3),
    "dropout of channels": lambda x: F.dropout2d(x[None, :, :, None], 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.25, True),
    "two draws": lambda x: F.dropout(x, 0.5) + torch.rand_like(x),
}


@pytest.mark.parametrize("name", COINS)
def test_coins_are_eagers_and_so_is_the_generator(name):
    x = torch.randn(17, 23)
    results = []
    for run in (COINS[name], dynacompile.compile(COINS[name], isolate_recompiles=True)):
        torch.manual_seed(5)
        results.append((run(x), torch.get_rng_state()))
    (eager, state), (ours, our_state) = results
    assert torch.equal(state, our_state)
    torch.testing.assert_close(ours, eager)
    assert torch.equal(ours == 0, eager == 0) and ours.stride() == eager.stride()


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability_raises_eagers_error(value):
    p = torch.tensor([0.5, value, 0.2])
    compiled = dynacompile.compile(lambda p: torch.bernoulli(p) * 2, isolate_recompiles=True)
    with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1 to be true, but got false."):
        torch.bernoulli(p)
    with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1 to be true, but got false."):
        compiled(p)


def test_dropout_trains_as_in_eager():
    x = torch.randn(40, 30, requires_grad=True)
    gradients = []
    for run in (lambda x: F.dropout(x.sin(), 0.4), dynacompile.compile(lambda x: F.dropout(x.sin(), 0.4))):
        torch.manual_seed(2)
        gradients.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.skipif(not coins_are_comparisons(), reason="this build of torch draws coins in another way")
def test_coins_are_one_draw_and_a_kernel():
    told = dynacompile.explain(lambda x: F.dropout(x.relu(), 0.3) * 2.0)(torch.randn(64, 64))
    assert told.kernels == 1


@pytest.mark.parametrize("zeros", [0, 1, 4])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_cumprod(zeros, dim, dtype):
    x = torch.rand(6, 7, dtype=dtype) + 0.5
    x.view(-1)[torch.randperm(42, generator=torch.Generator().manual_seed(0))[:zeros]] = 0
    x.requires_grad_()

    result = torch.float64 if torch.torch_version.TorchVersion(torch.__version__) >= (2, 12) else dtype  # eager's gradient fails in torch 2.11

    def f(x):
        return (x * 2).cumprod(dim).sin() + torch.cumprod(x, dim, dtype=result)

    compiled = dynacompile.compile(f, isolate_recompiles=True)
    eager, ours = (torch.autograd.grad(run(x).sum(), x)[0] for run in (f, compiled))
    torch.testing.assert_close(ours, eager)
    again = []
    for run in (f, compiled):
        (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        again.append(torch.autograd.grad(grad.square().sum(), x)[0])
    torch.testing.assert_close(*again)


SCANS: dict[str, Callable[[torch.Tensor], object]] = {
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum of another dtype": lambda x: x.cumsum(0, dtype=torch.float64),
    "cumsum of whole numbers": lambda x: x.nan_to_num(0, 0, 0).int().cumsum(0),
    "cumsum of bools": lambda x: (x > 0).cumsum(-1),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(-1),
    "cummin": lambda x: torch.cummin(x, 0),
    "cummax of bools": lambda x: (x > 0).cummax(0),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "in place": lambda x: (y := x * 2, y.cumsum_(0), y.cumprod_(-1))[0],
    "from the end": lambda x: x.flip(-1).cumsum(-1).flip(-1),
}
SHAPES = {"rows": (5, 33), "columns": (300, 7), "one element": (4, 1), "none": (0, 3), "three dimensions": (2, 3, 19), "no dimension": ()}


@pytest.mark.parametrize("name", SCANS)
def test_scans_give_eagers_results_and_call_nothing(name):
    def all_of(*xs: torch.Tensor) -> list[object]:
        return [SCANS[name](x) for x in xs]

    xs = []
    for dtype, shape in [*((torch.float32, s) for s in SHAPES), (torch.float64, "rows"), (torch.bfloat16, "columns")]:
        x = (torch.randn(SHAPES[shape], generator=torch.Generator().manual_seed(0)) * 2).round().div(2).to(dtype)
        if x.numel() > 40:
            x.view(-1)[7], x.view(-1)[20], x.view(-1)[31] = float("inf"), float("nan"), -0.0
        if x.dim() or name[:4] != "from":
            xs.append(x)
    told = dynacompile.explain(all_of)(*xs)
    assert told.kernels >= 1 and told.fact("schedule", "externs") == 0
    for x, wanted, got in zip(xs, all_of(*xs), dynacompile.compile(all_of, isolate_recompiles=True)(*xs), strict=True):
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if x.dtype is torch.bfloat16 else {}
        torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
        assert type(got) is type(wanted)


def test_sizes_that_change_take_one_entry():
    compiles: list[Compiled] = []
    end = dynacompile.subscribe(lambda event: compiles.append(event) if isinstance(event, Compiled) else None)
    compiled = dynacompile.compile(lambda x: (x * 2).cumsum(-1) + x.cummax(0).values, dynamic=True, isolate_recompiles=True)
    for shape in ((5, 40), (3, 7), (200, 3), (2, 6000)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), (x * 2).cumsum(-1) + x.cummax(0).values, rtol=1e-5, atol=1e-4)
    end()
    assert len(compiles) == 1


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, -1])
def test_gradients_of_running_extrema(name, dim):
    x = (torch.randn(9, 40) * 2).round().requires_grad_()

    def f(x):
        values, places = getattr((x * 2), name)(dim)
        return values.sin() * (places % 3 + 1)

    compiled = dynacompile.compile(f, isolate_recompiles=True)
    eager, ours = (torch.autograd.grad(run(x).square().sum(), x)[0] for run in (f, compiled))
    torch.testing.assert_close(ours, eager)
    again = []
    for run in (f, compiled):
        (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        again.append(torch.autograd.grad(grad.square().sum(), x)[0])
    torch.testing.assert_close(*again)


@pytest.mark.parametrize("kind", ["cumsum", "logcumsumexp", "cumprod"])
def test_gradients_of_scans_in_half_precision(kind):
    x = (torch.randn(6, 50) * 0.3).bfloat16().requires_grad_()

    def f(x):
        return getattr(x.sin() + 1, kind)(-1)

    compiled = dynacompile.compile(f, isolate_recompiles=True)
    tangent = torch.randn(6, 50).bfloat16()
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(f(exact), exact, tangent.double())
    (ours,) = torch.autograd.grad(compiled(x), x, tangent)
    (eager,) = torch.autograd.grad(f(x), x, tangent)
    assert (ours.double() - wanted).abs().max() <= 2 * (eager.double() - wanted).abs().max() + 1e-2 * wanted.abs().max()


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_a_backward_refuses_what_was_written_behind_a_running_extremum(name):
    def within(x):
        y = x * 2
        values = getattr(torch, name)(y, 0)[0]
        y.add_(1)
        return values

    for function in (within, dynacompile.compile(within)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(torch.ones(3, requires_grad=True)).sum().backward()
    x = torch.ones(3, requires_grad=True) * 2
    values = dynacompile.compile(lambda x: getattr(torch, name)(x, 0)[0])(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()


def test_dropout_that_leaves_all_as_it_is_gives_a_tensor_of_its_own():
    def written(x):
        kept, mask = torch.native_dropout(x, 0.5, False)
        kept.add_(1)
        return x * 2, kept, mask

    x = torch.ones(4)
    kept = dynacompile.compile(lambda x: torch.native_dropout(x, 0.5, False)[0], fullgraph=True)(x)
    assert kept.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    torch.testing.assert_close(dynacompile.compile(written, fullgraph=True)(x), written(x))
    assert torch.equal(x, torch.ones(4))
