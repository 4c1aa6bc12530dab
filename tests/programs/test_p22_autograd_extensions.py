"""autograd.Function, checkpointing, functional calls, inference mode."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dynacompile
from tests.checking import check

SLOPE = 0.5


def halve(x):
    return x * 0.5


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return halve(grad * 6 * x * x * ctx.factor), None


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return torch.where(x > 0, x, x * SLOPE)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, grad * 10) if ctx.needs_input_grad[0] else None


class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        print("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def cubed(x):
    return Cubed.apply(x.sin(), 2.0).cos()


def clamped(x):
    return Clamped.apply(Clamped.apply(x) - 1) * x


@pytest.mark.parametrize("fn", [cubed, clamped])
def test_custom_gradients(fn):
    check(fn, arg())
    check(fn, arg().detach())


def test_functions_with_effects_run_as_python(capsys):
    check(lambda x: Loud.apply(x + 1) * 3, arg(), graphs=None, breaks=None, calls=1)
    assert capsys.readouterr().out == "forward\n" * 2


def test_what_forward_reads_is_guarded(monkeypatch):
    compiled = dynacompile.compile(clamped, fullgraph=True)
    x = arg()
    torch.testing.assert_close(compiled(x), clamped(x))
    monkeypatch.setitem(globals(), "SLOPE", 0.25)
    torch.testing.assert_close(compiled(x), clamped(x))
    monkeypatch.setattr(Clamped, "forward", staticmethod(lambda ctx, x: x * 7))
    assert torch.equal(compiled(x.detach()), clamped(x.detach()))


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def body(self, x, scale):
        return torch.nn.functional.gelu(self.lin(x)) * scale

    def forward(self, x):
        x = checkpoint(self.body, x, 2.0, use_reentrant=False)
        return checkpoint(self.body, x, scale=3.0, use_reentrant=False)


def test_checkpoint_is_inlined():
    check(Checkpointed(), arg())


def in_inference_mode(x):
    y = x + 1
    with torch.inference_mode():
        z = y * 2
    return z.shape, y * 3


def test_inference_mode_block():
    check(in_inference_mode, arg(), graphs=None, breaks=None)
