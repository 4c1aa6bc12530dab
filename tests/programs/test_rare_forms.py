"""Rare forms of what programs do: each runs as in eager, most of them in one graph."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch.func import grad, hessian, linearize, vjp, vmap

from tests.checking import check

LINEAR = nn.Linear(4, 4)
LINEAR.requires_grad_(False)
Shape = torch.Tensor.shape
Grad = torch.Tensor.requires_grad


class Plain(torch.Tensor):
    pass


class Asked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return torch._tensor._convert(function(*args, **(kwargs or {})), cls)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, by):
        ctx.save_for_backward(a)
        ctx.by = by
        return [a * q for q in (by,)][0]

    @staticmethod
    def backward(ctx, g):
        known = bool(ctx) and hasattr(ctx, "by") and hasattr(ctx, "saved_tensors") and not hasattr(ctx, "missing")
        return g * ctx.by * known, None


def seeded_numpy(t):
    np.random.seed(3)
    return t * float(np.random.rand()), np.random.randint(0, 5)


def own_attribute(t):
    object.__setattr__(t, "own", 3)
    return t.own, t + 1


def generators(t):
    one, other = random.Random(3), torch.Generator()
    other.manual_seed(3)
    return bool(one), hasattr(one, "missing"), hasattr(one, "seed"), bool(other), hasattr(other, "missing"), torch.rand(3, generator=other), t


def profiled(t):
    with torch.autograd.profiler.profile(enabled=False):
        return t * 2


def by_subclass(cls, t):
    made = t.as_subclass(cls)
    made = made * 2
    made[0] = 1
    made.own = 2
    return made.__class__, made.split(1), made.topk(2), [type(row) for row in made], torch._tensor._convert([made, 3], torch.Tensor), made.own


def filled_setting(t):
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = not before
    during = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = before
    return before, during, t + 1


def pulled(t):
    out, pull = vjp(lambda a: a.sin(), t)
    return out, pull(t, retain_graph=True), pull(torch.ones_like(t))


def linear(t):
    out, along = linearize(lambda a, b: (a * b, a.sum()), t, t * 2)
    return out, along(t, t)


def crossed_autocast(t):
    one, other = torch.autocast("cpu", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16)
    one.__enter__()
    other.__enter__()
    made = t @ t.t()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    return made


def scanned(t, **options):
    return scan(lambda c, r: ({"sum": c["sum"] + r[0]}, (c["sum"] * r[1], r[0].clone())), {"sum": torch.zeros(3)}, (t, t * 2), **options)


IN_ONE_GRAPH = [
    lambda t: (bool(t.detach().numpy().any()), hasattr(t.detach().numpy(), "missing"), t.detach().numpy().__class__ is np.ndarray, t),
    lambda t: (t.sum().item().real, hasattr(t.sum().item(), "imag"), hasattr(t.sum().item(), "missing"), t.sum().item() == "a", t * 2),
    lambda t: (torch.is_nonzero(t.sum()), t[0, 0].is_nonzero(), t * 2),
    lambda t: (bool(t.untyped_storage()), t.untyped_storage().device, t.untyped_storage().is_cuda, len(t.untyped_storage())),
    lambda t: (bool(t.data_ptr()), (t * 2).data_ptr() == t.data_ptr(), t.untyped_storage().data_ptr() == t.data_ptr(), isinstance(t.data_ptr(), int)),
    lambda t: (t.type(), t.new(2, 2).shape, t.type(torch.float64)),
    lambda t: (Shape.__get__(t), bool(Shape), hasattr(Shape, "__get__"), type(Shape).__name__, Grad.__name__, Shape.__get__ == Shape.__get__),
    lambda t: (nn.utils.stateless.functional_call(LINEAR, parameters_and_buffers={"weight": t.new_ones(4, 4)}, args=(t,)),),
    lambda t: hessian(lambda a: (a**3).sum())(t),
    lambda t: vmap(lambda d: d["a"] * d["b"], in_dims=({"a": 0, "b": None},))({"a": t, "b": t[0]}),
    lambda t: vmap(lambda a: a.sum())(t[:0]),
    lambda t: Scaled.apply(t, 2.0),
    lambda t: torch._foreach_add((t, t), torch.tensor(2.0)),
    lambda t: [F.scaled_dot_product_attention(t, t, t, attn_mask=torch.ones(3, 3).tril() == 1), t.as_strided((2, 3), (1, 1)), t[:0], t.view(-1)[2:]],
    functools.partial(by_subclass, Plain),
    functools.partial(by_subclass, Asked),
    lambda t: mapped(lambda r: (r[0].sin(), {"q": r[1] * 1}), (t, t + 1)),
    functools.partial(scanned, dim=1),
    functools.partial(scanned, dim=-1, reverse=True),
    lambda t: scan(lambda c, r: (c + r, c * r), torch.zeros(4), t.repeat(40, 1), reverse=True),
    lambda t: mapped(lambda r: r.sin() * 2, t.repeat(40, 1)),
    *(own_attribute, generators, profiled, seeded_numpy, filled_setting, pulled, linear, crossed_autocast),
]

SCANS = range(17, 20)

LEFT_TO_PYTHON = [
    lambda t: 2.0 in t,
    lambda t: "a" in t,
    lambda t: len(np.array(3.0)) + t,
    lambda t: vmap(lambda a: a.sum(), in_dims=5)(t),
    lambda t: grad(lambda a: a * 2)(t),
    lambda t: grad(lambda a: a.sum())(t.long()),
    lambda t: grad(lambda a, b: (a * b).sum(), argnums=(0, 0))(t, t),
    lambda t: grad(lambda a, b: (a * b).sum(), argnums=3)(t, t),
    lambda t: torch._foreach_add([], 1),
    lambda t: torch.zeros(4).expand(3, 4).add_(t),
    lambda t: object.__delattr__(LINEAR, "missing"),
    lambda t: object.__delattr__(LINEAR, "weight"),
    lambda t: (t.to(torch.complex64).sum().item().imag, t * 2),
    lambda t: (np.float32(3.0).missing, t),
]


def arg():
    return torch.linspace(-1, 2, 12).view(3, 4).sin().requires_grad_()


@pytest.mark.parametrize("place", range(len(IN_ONE_GRAPH)))
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_in_one_graph(place, wants_gradients):
    if wants_gradients and place in SCANS and torch.__version__ < "2.12":
        pytest.skip("gradients of torch 2.11's own scan are wrong")
    check(IN_ONE_GRAPH[place], arg() if wants_gradients else arg().detach(), graphs=None, breaks=None if wants_gradients else 0, options={"backend": "eager"})


@pytest.mark.parametrize("place", range(len(LEFT_TO_PYTHON)))
def test_left_to_python(place):
    check(LEFT_TO_PYTHON[place], arg().detach(), graphs=None, breaks=1, options={"backend": "eager"})
