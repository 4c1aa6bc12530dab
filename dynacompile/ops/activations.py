"""Decompositions of activation functions and their gradients, where lowering has no formula for the whole of them."""

from __future__ import annotations

import torch

from dynacompile.ops.rules import Table, add, aten, cast, exp, mul, one_minus, row, sub, where, wide

ACTIVATIONS: Table = {}


def log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """min(x, 0) - log(1 + exp(-|x|))."""
    return sub(aten.clamp_max.default(x, 0.0), aten.log1p.default(exp(aten.neg.default(aten.abs.default(x)))))


@row(ACTIVATIONS, aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x):
    return cast(log_sigmoid(wide(x)), x.dtype), aten.full.default([0], 0, dtype=x.dtype, device=x.device)


@row(ACTIVATIONS, aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad, x, buffer):
    return cast(mul(wide(grad), aten.sigmoid.default(aten.neg.default(wide(x)))), grad.dtype)


@row(ACTIVATIONS, aten.mish_backward.default)
def mish_backward(grad, x):
    v = wide(x)
    t = aten.tanh.default(aten.softplus.default(v))
    return cast(mul(wide(grad), add(t, mul(mul(v, aten.sigmoid.default(v)), one_minus(mul(t, t))))), grad.dtype)


@row(ACTIVATIONS, aten._prelu_kernel.default)
def prelu(x, weight):
    return where(aten.gt.Scalar(x, 0), x, mul(weight, x))


@row(ACTIVATIONS, aten._prelu_kernel_backward.default)
def prelu_backward(grad, x, weight):
    positive = aten.gt.Scalar(x, 0)
    return where(positive, grad, mul(weight, grad)), where(positive, 0.0, mul(x, grad))


def outside(x: torch.Tensor, lambd: float) -> torch.Tensor:
    """Where a shrinking function has a slope: nowhere at NaN."""
    return aten.gt.Scalar(aten.abs.default(x), lambd)


@row(ACTIVATIONS, aten.hardshrink.default)
def hardshrink(x, lambd=0.5):
    return where(aten.le.Scalar(aten.abs.default(x), lambd), 0.0, x)


@row(ACTIVATIONS, aten.hardshrink_backward.default)
def hardshrink_backward(grad, x, lambd):
    return where(outside(x, lambd), grad, 0.0)


@row(ACTIVATIONS, aten.softshrink.default)
def softshrink(x, lambd=0.5):
    shrunk = where(aten.gt.Scalar(x, 0), sub(x, lambd), add(x, lambd))
    return where(aten.gt.Scalar(aten.abs.default(x), lambd), shrunk, where(aten.isnan.default(x), x, 0.0))


@row(ACTIVATIONS, aten.softshrink_backward.default)
def softshrink_backward(grad, x, lambd):
    return where(outside(x, lambd), grad, 0.0)


def halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    n = x.shape[dim] // 2
    return aten.slice.Tensor(x, dim, 0, n), aten.slice.Tensor(x, dim, n, 2 * n)


@row(ACTIVATIONS, aten.glu.default)
def glu(x, dim=-1):
    a, b = halves(wide(x), dim)
    return cast(mul(a, aten.sigmoid.default(b)), x.dtype)


@row(ACTIVATIONS, aten.glu_backward.default)
def glu_backward(grad, x, dim):
    a, b = halves(wide(x), dim)
    g, s = wide(grad), aten.sigmoid.default(b)
    return cast(aten.cat.default([mul(g, s), mul(mul(g, a), mul(s, one_minus(s)))], dim), grad.dtype)
