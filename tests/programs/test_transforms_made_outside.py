"""`per_sample = vmap(grad(loss))` at the top of a module or in `__init__`: what torch.func returns is transformed anew where compiled code calls it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, vmap

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager", "fullgraph": True}


def loss(a):
    return (a.sin() * a).sum()


def weighed(a, b, weight=1.0):
    return (a * b.sin() * weight).sum()


def elements(a):
    return a.sin() * a


def with_more(a):
    return loss(a), {"kept": a * 2}


MADE = {
    "vmap": vmap(elements),
    "vmap along columns": vmap(elements, in_dims=1, out_dims=(1,)),
    "vmap in chunks": vmap(elements, chunk_size=2),
    "grad": grad(loss),
    "grad, has_aux": grad(with_more, has_aux=True),
    "grad_and_value": grad_and_value(loss),
    "jacrev": jacrev(elements),
    "jacfwd": jacfwd(elements),
    "hessian": hessian(loss),
    "each sample's grad": vmap(grad(loss)),
    "each sample's jacobian": vmap(jacrev(elements)),
    "grad of a grad": grad(lambda a: grad(loss)(a).sum()),
}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


@pytest.mark.parametrize("name", MADE)
def test_one_graph(name):
    made = MADE[name]
    check(lambda x: made(x + 1), arg(), graphs=1, breaks=0, options=EAGER)


class Memory(nn.Module):
    """A network whose weights are tensors of the sample, as test-time training has it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def surprise(params, inputs, weight, target):
            each = (functional_call(self.inner, params, inputs) - target).square().mean(-1)
            return (each * weight).sum(), each

        self.per_sample = vmap(grad(surprise, has_aux=True), in_dims=(0, 0, 0, 0))

    def forward(self, x):
        params = {name: p.expand(len(x), *p.shape) for name, p in self.inner.named_parameters()}
        grads, each = self.per_sample(params, x, x[..., 0].sigmoid(), x * 2)
        return sum(g.mean() for g in grads.values()) + each.sum()


def test_kept_by_a_module():
    torch.manual_seed(0)
    module, x = Memory(), torch.randn(3, 5, 4)
    expected = module(x)
    expected.backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    found = dynacompile.compile(module, **EAGER)(x)
    found.backward()
    assert torch.equal(found, expected)
    assert all(torch.equal(p.grad, w) for p, w in zip(module.parameters(), wanted, strict=True))


def test_another_transform_in_its_place():
    held = {"made": grad(weighed)}
    compiled = dynacompile.compile(lambda x: held["made"](x, x * 2), **EAGER)
    x = torch.linspace(-1, 2, 6)
    for made in (grad(weighed), grad(weighed, argnums=1), grad(weighed, argnums=(0, 1)), grad(lambda a, b: (a + b).prod()), grad_and_value(weighed), weighed):
        held["made"] = made
        torch.testing.assert_close(compiled(x), made(x, x * 2), rtol=0, atol=0)


def test_transforms_that_are_made_anew_are_one_entry():
    dynacompile.reset()
    compiles = []
    end = dynacompile.subscribe(lambda e: compiles.append(e) if isinstance(e, dynacompile.events.Compiled) else None)
    compiled = dynacompile.compile(lambda made, x: made(x), **EAGER)
    x = torch.linspace(-1, 2, 6)
    for _ in range(4):
        made = grad(loss)
        torch.testing.assert_close(compiled(made, x), made(x), rtol=0, atol=0)
    end()
    assert len(compiles) == 1
