"""Loops on the GPU that save passes over memory: eager's results, and the kernels that the claims say."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.ir.schedule import Launch, Module, Reuse
from dynacompile.session import SESSION

pytestmark = pytest.mark.gpu


def modules(call, *args) -> tuple[list[Module], object]:
    """What is built for a call, and its result."""
    found: list[Module] = []

    def observer(stage: str, result: object) -> None:
        if isinstance(result, Module):
            found.append(result)

    with SESSION.bus.observing(observer):
        result = call(*args)
    return found, result


@pytest.mark.parametrize("rows, columns, dtype", [(16384, 16384, torch.bfloat16), (4096, 12288, torch.float32), (2048, 8192, torch.float16)])
def test_sums_of_rows_and_of_columns_are_one_pass(rows, columns, dtype):
    x = torch.rand(rows, columns, device="cuda").to(dtype)
    built, (down, across) = modules(dynacompile.compile(lambda t: (t.sum(0), t.sum(1)), isolate_recompiles=True), x)
    (plan,) = (m.schedule for m in built)
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    assert sum(plan.inputs[0] in s.buffers for s in launches) == 1 and len(launches) == 2
    error = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(down.double(), x.double().sum(0), rtol=error, atol=error)
    torch.testing.assert_close(across.double(), x.double().sum(1), rtol=error, atol=error)


def test_the_gradient_of_cross_entropy_in_half_precision_is_one_pass():
    x = torch.randn(2048, 50304, device="cuda").to(torch.bfloat16).requires_grad_()
    target = torch.randint(0, 50304, (2048,), device="cuda")
    target[::7] = -100
    compiled = dynacompile.compile(F.cross_entropy, isolate_recompiles=True)
    built, grad = modules(lambda: torch.autograd.grad(compiled(x, target), x)[0])
    backward = built[-1].schedule
    assert not any(k.nest.is_reduction for k in backward.kernels.values())
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.cross_entropy(exact, target), exact)
    torch.testing.assert_close(grad.double(), wanted, rtol=2e-2, atol=1e-7)


@pytest.mark.parametrize("z", [0.0, 1e-3], ids=["loss", "z-loss"])
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_gradients_in_the_memory_of_their_logits(z, weighted):
    """Chunks whose gradient is written over the logits, of which each row's own is read first."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 50257, device="cuda")
    x = torch.randn(4096, 256, device="cuda", requires_grad=True)
    target = torch.randint(0, 50257, (4096,), device="cuda")
    weights = torch.rand(50257, device="cuda") + 0.5 if weighted else None

    def loss(rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = layer(rows).float()
        value = F.cross_entropy(logits, target, weight=weights, label_smoothing=0.1)
        return value + z * logits.logsumexp(-1).square().mean() if z else value

    compiled = dynacompile.compile(loss, isolate_recompiles=True, options={"logits_bytes": 1 << 26})
    inputs = (x, layer.weight, layer.bias)
    built, grads = modules(lambda: torch.autograd.grad(compiled(x), inputs))
    assert any(isinstance(s, Reuse) for m in built for s in m.schedule.steps)
    for got, wanted in zip(grads, torch.autograd.grad(loss(x), inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2 * float(wanted.abs().max()))


SCANS = {
    "cumsum": lambda x, d: x.sin().cumsum(d) * 2.0,
    "cumprod": lambda x, d: (x * 0.01 + 1.0).cumprod(d),
    "logcumsumexp": lambda x, d: x.sin().logcumsumexp(d),
    "cummax": lambda x, d: (x * 2).cummax(d).values,
    "cummin": lambda x, d: (x * 2).cummin(d).indices,
    "count": lambda x, d: (x > 0).cumsum(d),
    "from the end": lambda x, d: x.flip(d).cumsum(d).flip(d) - x,
}
SHAPES = [((4096, 1024), -1), ((1000, 777), -1), ((2048, 1024), 0), ((5, 100_000), 1), ((1 << 20,), 0), ((129, 5000), -1), ((64, 300, 17), 1), ((3, 1), 1)]


def near(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, eps: float) -> None:
    """As near to float64 as eager is; equal where numbers are whole."""
    assert ours.dtype == eager.dtype and ours.shape == eager.shape
    if not ours.is_floating_point():
        assert torch.equal(ours, eager)
        return
    assert torch.equal(ours.isnan(), eager.isnan())
    error, allowed = ((t.double() - exact).nan_to_num(0, 0, 0).abs().max().item() for t in (ours, eager))
    assert error <= 4 * allowed + 8 * eps * exact.nan_to_num(0, 0, 0).abs().max().item(), (error, allowed)


@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_scans_are_kernels_of_ours(name, shape, dim):
    """One, or three where few rows are long, and no call of ATen."""
    fn = SCANS[name]
    for dtype in (torch.float32, torch.bfloat16) if name != "cummin" else (torch.float32,):
        x = (torch.randn(shape, device="cuda") * 2).round().div(2).to(dtype)
        built, ours = modules(dynacompile.compile(lambda x: fn(x, dim), isolate_recompiles=True), x)
        (facts,) = (m.schedule.facts() for m in built)
        assert facts["externs"] == 0 and facts["launches"] <= 3, facts
        near(ours, fn(x, dim), fn(x.double(), dim), torch.finfo(dtype).eps)


def test_scans_of_nan_infinities_and_ties():
    x = torch.randn(300, 2000, device="cuda").round()
    x[::3, ::97], x[1::5, ::211], x[2::7, ::301] = float("nan"), float("inf"), -float("inf")
    for fn in (lambda x: x.cummax(1), lambda x: x.cummin(0), lambda x: (x.cumsum(1), x.logcumsumexp(0), x.cumprod(-1))):
        for ours, eager in zip(dynacompile.compile(fn, isolate_recompiles=True)(x), fn(x), strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "zeros"])
@pytest.mark.parametrize("shape, dim", [((1024, 1024), -1), ((512, 300), 0), ((100, 9000), 1)], ids=str)
def test_gradients_of_scans(name, shape, dim):
    def fn(x: torch.Tensor) -> torch.Tensor:
        if name == "zeros":
            return torch.where(x.abs() < 0.002, 0.0, 1 + x * 0.01).cumprod(dim)
        return {**SCANS, "cummax": lambda x, d: x.cummax(d).values * 3}[name](x, dim)

    x = torch.randn(shape, device="cuda", requires_grad=True)
    tangent = torch.randn(shape, device="cuda")
    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    built, (ours,) = modules(lambda: torch.autograd.grad(compiled(x), x, tangent))
    assert all(m.schedule.facts()["externs"] == 0 for m in built)
    exact = x.detach().double().requires_grad_()
    (eager,), (wanted,) = torch.autograd.grad(fn(x), x, tangent), torch.autograd.grad(fn(exact), exact, tangent.double())
    near(ours, eager, wanted, torch.finfo(torch.float32).eps * 16)


def test_scans_of_sizes_that_change():
    compiled = dynacompile.compile(lambda x: (x * 2).cumsum(-1) + x.cummax(0).values, dynamic=True, isolate_recompiles=True)
    for shape in ((500, 1000), (300, 777), (20, 3), (7, 20_000), (3000, 64)):
        x = torch.randn(shape, device="cuda")
        torch.testing.assert_close(compiled(x), (x * 2).cumsum(-1) + x.cummax(0).values, rtol=1e-4, atol=1e-2)


def test_nucleus_sampling_is_a_kernel_beside_its_sort():
    def kept(logits: torch.Tensor) -> torch.Tensor:
        ordered, places = logits.sort(-1, descending=True)
        p = ordered.softmax(-1)
        return torch.where(p.cumsum(-1) - p < 0.9, ordered, -float("inf")), places

    x = torch.randn(512, 4096, device="cuda")
    built, (ours, _) = modules(dynacompile.compile(kept, isolate_recompiles=True), x)
    (facts,) = (m.schedule.facts() for m in built)
    assert facts["externs"] == 1 and facts["launches"] == 1, facts
    exact = x.double().sort(-1, descending=True).values
    p = exact.softmax(-1)
    before = p.cumsum(-1) - p
    clear = (before - 0.9).abs() > 1e-5  # what rounding does not decide
    assert torch.equal(ours.isinf()[clear], (before >= 0.9)[clear])
    torch.testing.assert_close(ours[ours.isfinite()].double(), exact[ours.isfinite()])
