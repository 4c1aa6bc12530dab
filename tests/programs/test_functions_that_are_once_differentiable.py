"""`@once_differentiable` on the backward of a custom function: one graph, eager's gradients, and eager's error where somebody differentiates twice."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.distributions import Beta, Dirichlet

import dynacompile
from tests.checking import check

BACKENDS = [{"backend": "eager"}, {"backend": "aot_eager"}, {}]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x.cos()


class Configured(torch.autograd.Function):
    """Its argument is a dict, and so it is followed as Python."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        ctx.save_for_backward(x)
        return x * settings["factor"].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.settings["factor"].sum(), None


SETTINGS = {"factor": torch.full((2,), 1.5)}
FUNCTIONS = {"of tensors": lambda x: Scaled.apply(x + 1) * x, "of a dict": lambda x: Configured.apply(x + 1, SETTINGS) * x}


def arg():
    return torch.linspace(-1, 2, 6).requires_grad_()


@pytest.mark.parametrize("options", BACKENDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph(name, options):
    check(FUNCTIONS[name], arg(), graphs=1, breaks=0, options={**options, "fullgraph": True})


@pytest.mark.parametrize("options", BACKENDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_twice_is_an_error(name, options):
    def twice(call):
        x = arg()
        (slope,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        slope.sum().backward()

    for call in (FUNCTIONS[name], dynacompile.compile(FUNCTIONS[name], **options)):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            twice(call)


def test_another_backward_in_its_place(monkeypatch):
    def story(call):
        x = arg()
        call(x).sum().backward()
        return x.grad

    function = FUNCTIONS["of tensors"]
    compiled = dynacompile.compile(function)
    torch.testing.assert_close(story(compiled), story(function))
    monkeypatch.setattr(Scaled, "backward", staticmethod(once_differentiable(lambda ctx, grad: grad * 7)))
    torch.testing.assert_close(story(compiled), story(function))


@pytest.mark.parametrize(
    "distribution", [lambda x: Dirichlet(x.exp(), validate_args=False), lambda x: Beta(x.exp(), x.cos() + 2, validate_args=False)], ids=["Dirichlet", "Beta"]
)
def test_distributions(distribution):
    def sampled(x):
        made = distribution(x)
        return made.log_prob(made.rsample()).sum()

    check(sampled, arg(), graphs=1, breaks=0, options={"backend": "eager", "fullgraph": True})
