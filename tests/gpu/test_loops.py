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
