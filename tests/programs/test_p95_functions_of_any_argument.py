"""Custom autograd functions with arguments that are no tensors, with backwards that read them, and in forms of old."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.checking import check

EAGER = {"backend": "eager"}


class Cfg:
    def __init__(s):
        s.k = 3.0


class ListF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xs, k):
        ctx.save_for_backward(*xs)
        ctx.k = k
        return xs[0] * xs[1] * k

    @staticmethod
    def backward(ctx, g):
        return None, None


class ObjF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cfg, d, n):
        ctx.cfg = cfg
        ctx.save_for_backward(x)
        return x * x * cfg.k + d["b"]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * ctx.cfg.k, None, None, None


class ModF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, m):
        ctx.save_for_backward(x)
        return m(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 + x, None


class SetupF(torch.autograd.Function):
    @staticmethod
    def forward(x, o):
        return x * o.k, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, o = inputs
        ctx.o = o
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g, h):
        return g * ctx.o.k + h, None


class GradF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, o):
        ctx.save_for_backward(x, w)
        ctx.needs = ctx.needs_input_grad
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g @ w.t() if ctx.needs_input_grad[0] else None), (x.t() @ g if ctx.needs_input_grad[1] else None), None


class Ident(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * 2, None


class NoGradOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        y = x * 2
        z = x > 0
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    def backward(ctx, g, h):
        return g * 2, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


class Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


C = Cfg()
M = nn.Linear(4, 4)
xs = torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)


def lst(x):
    return ListF.apply([x, x + 1], 2.0) + x


def obj(x):
    return ObjF.apply(x, C, {"b": 1.0}, None).sin()


def mod(x):
    return ModF.apply(x * 1, M)


def setup(x):
    return SetupF.apply(x, C)


def grad(x):
    return GradF.apply(x.reshape(1, 4), (x * 2).reshape(4, 1), C) * 2


def ident(x):
    return Ident.apply(x * 3, C) * x


def nograd(x):
    return NoGradOut.apply(x, C)


def dirty(x):
    return Dirty.apply(x * 1, C)


def old(x):
    return Old.apply(x) + 1


def old2(x):
    f = Old()
    return f.apply(x) + 1


def twice(x):
    return obj(obj(x))


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)


ARGUMENTS = {}
CASES = [*((fn, 1, 0) for fn in (lst, obj, mod, setup, grad, ident, nograd, old, old2, twice)), (dirty, 2, 2)]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)
