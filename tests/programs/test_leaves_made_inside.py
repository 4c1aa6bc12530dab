"""Leaves that a program makes and uses further: inputs of attacks, saliency maps and energies. Their gradients are autograd's, so a graph that differentiates
itself ends before one that leaves it, and what follows is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke
from tests.checking import check

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


class Weight(nn.Parameter):
    pass


def transposed(x, w):
    p = nn.Parameter(w.T)
    return x @ p, isinstance(p, nn.Parameter), type(p) is nn.Parameter, p.is_leaf, p.requires_grad


def detached(x, w):
    p = nn.Parameter(w, requires_grad=False)
    return p, x @ p.T, p.contiguous() is p


def written(x, w):
    nn.Parameter(w, False).mul_(2)
    return x @ w.T


def without_gradients(x, w):
    with torch.no_grad():
        p, q = nn.Parameter(w), nn.Parameter(w, False)
    return x @ p.T + x @ q.T


def differentiated(x, w):
    p = nn.Parameter(w.T)
    (slope,) = torch.autograd.grad((x @ p).sum(), p)
    return x - 0.1 * slope.sum()


def of_subclass(x, w):
    p = Weight(w * 2)
    return x @ p, isinstance(p, nn.Parameter), type(p) is Weight


def given_out(x, w):
    p = nn.Parameter(x * 2)
    p.tag = "mine"
    return p, (p * w[0]).sum(), [p]


def shown(x, w):
    return f"{nn.Parameter(x)}", x.sum()


def of_nothing(x, w):
    return nn.Parameter(), x.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [transposed, detached, written, without_gradients, differentiated, of_subclass, given_out, shown, of_nothing],
    ids=lambda f: f.__name__,
)
def test_parameters(program, backend):
    """Where autograd makes the graph, one that leaves it and requires gradients is made by Python."""
    breaks, numbers, facts = [], [], []
    end = dynacompile.subscribe(lambda event: breaks.append(event.reason) if isinstance(event, (GraphBroke, FrameSkipped)) else None)
    try:
        for call in (program, dynacompile.compile(program, isolate_recompiles=True, backend=backend)):
            torch.manual_seed(0)
            x, w = torch.randn(4, 4), nn.Parameter(torch.randn(4, 4))
            for _ in range(2):
                parts = torch.utils._pytree.tree_leaves(call(x, w))
                tensors = [t for t in parts if isinstance(t, torch.Tensor)]
                if any(t.requires_grad for t in tensors):
                    sum(t.sum() for t in tensors if t.requires_grad).backward()
                numbers.append([t.detach().clone() for t in (*tensors, x, w)] + [t.grad.clone() for t in (*tensors, w) if t.is_leaf and t.grad is not None])
                facts.append([p for p in parts if not isinstance(p, torch.Tensor)])
                facts[-1] += [(type(t), t.requires_grad, t.is_leaf, t.is_leaf and t.grad is None, getattr(t, "tag", None)) for t in tensors]
                facts[-1] += [[a is b for a in tensors] + [a.data_ptr() == b.data_ptr() for a in (x, w)] for b in tensors]
    finally:
        end()
    torch.testing.assert_close(numbers[:2], numbers[2:], rtol=1e-4, atol=1e-5)
    assert facts[:2] == facts[2:]
    leaves = program in (given_out, shown, of_nothing) and backend != "eager"
    assert ["requires_grad_(), of a tensor that leaves the graph" in reason for reason in breaks] == [True] * leaves


def layer(x):
    return nn.Linear(4, 2)(x)


def layers(x):
    made = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return made(x), made[0].weight.grad_fn, made[0].weight.is_leaf


def layer_without_gradients(x):
    with torch.no_grad():
        return nn.Conv1d(4, 2, 1, bias=False)(x[..., None])


def tensor_of_no_history(x):
    made = torch.full((4,), 2.0, requires_grad=True)
    return 1 if made.grad_fn else x * made.detach()


@pytest.mark.parametrize("program", [layer, layers, layer_without_gradients, tensor_of_no_history])
def test_modules_made_inside_are_in_the_graph(program):
    check(program, torch.linspace(-1, 2, 12).view(3, 4).sin(), options={"backend": "aot_eager"})
