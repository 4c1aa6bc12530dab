"""Leaves that a program makes and uses further: inputs of attacks, saliency maps and energies. Their gradients are autograd's, so a graph that differentiates
itself ends before one that leaves it, and what follows is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import FrameSkipped

BACKENDS = ["eager", "aot_eager", "default"]
LABELS = torch.tensor([0, 1, 2])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def fast_sign(model, x):
    x = x.clone().detach().requires_grad_(True)
    F.cross_entropy(model(x), LABELS).backward()
    return (x + 0.1 * x.grad.sign()).detach()


def projected(model, x):
    shift = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_()
    for _ in range(3):
        F.cross_entropy(model(x + shift), LABELS).backward()
        shift.data = (shift + 0.1 * shift.grad.sign()).clamp(-0.2, 0.2)
        shift.grad.zero_()
    return (x + shift).detach()


def saliency(model, x):
    x = x.clone().requires_grad_()
    model(x).max(1)[0].sum().backward()
    return x.grad.abs(), x.detach()


def langevin(model, x):
    z = x.clone().requires_grad_()
    for _ in range(2):
        (slope,) = torch.autograd.grad(model(z).sum(), z)
        z = (z - 0.1 * slope + 0.01 * torch.randn_like(z)).detach().requires_grad_()
    return z


def made(model, x):
    return torch.ones_like(x).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [fast_sign, projected, saliency, langevin, made], ids=lambda f: f.__name__)
def test_as_in_eager(program, backend):
    events, found = [], []
    end = dynacompile.subscribe(events.append)
    try:
        for call in (program, dynacompile.compile(program, isolate_recompiles=True, backend=backend)):
            model, seen = network(), []
            for n in range(3):
                torch.manual_seed(n)
                result = call(model, torch.randn(3, 4))
                parts = result if isinstance(result, tuple) else (result,)
                seen += [(part.detach().clone(), part.requires_grad, part.is_leaf, part.grad) for part in parts]
                seen += [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
            if program in (langevin, made):
                (result * 2).sum().backward()
                seen.append(result.grad)
            found.append(seen)
    finally:
        end()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not [e.reason for e in events if isinstance(e, FrameSkipped)]


def test_a_leaf_that_stays_inside_is_one_graph():
    def energy(model, x):
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(z).sum(), z)
        return x - 0.1 * slope

    compiled, model = dynacompile.compile(energy, isolate_recompiles=True, fullgraph=True), network()
    torch.testing.assert_close(compiled(model, x := torch.randn(3, 4)), energy(model, x))
