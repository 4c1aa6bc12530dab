"""Modules that are not plain: parametrizations, norms of weights, pruning, containers of parameters, layers that learn their sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrizations, parametrize, prune, spectral_norm, weight_norm

import dynacompile
from dynacompile.events import FrameSkipped
from tests.checking import check

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def symmetric():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


MADE = {
    "parametrization": symmetric,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
    "older weight norm": lambda: weight_norm(nn.Linear(4, 4)),
    "older spectral norm": lambda: spectral_norm(nn.Linear(4, 4)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


class Calls(nn.Module):
    """A layer that can't be deep-copied is made by `check`'s own copy of its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) * 2 + self.layer.weight.sum()


@pytest.mark.parametrize("name", MADE)
def test_weights_that_are_computed(name):
    torch.manual_seed(0)
    ours = Calls(MADE[name]())
    torch.manual_seed(0)
    theirs = Calls(MADE[name]())
    call = dynacompile.compile(ours, fullgraph=True, isolate_recompiles=True, **EAGER)
    for _ in range(2):
        got, want = call(arg()), theirs(arg())
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        got.sum().backward()
        want.sum().backward()
    assert [p.grad is None for p in ours.parameters()] == [p.grad is None for p in theirs.parameters()]
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_weights_in_half_precision(dtype):
    ours = parametrizations.weight_norm(nn.Conv1d(3, 4, 2).to(dtype))
    theirs = copy.deepcopy(ours)
    call = dynacompile.compile(ours, fullgraph=True, isolate_recompiles=True, options={"reference": True})
    x = torch.linspace(-2, 3, 36, dtype=dtype).reshape(3, 3, 4)
    got, want = call(x), theirs(x)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], rtol=2e-2, atol=2e-2)


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"a": nn.Parameter(torch.ones(4)), "b": torch.zeros(4)})
        self.shifts = nn.ParameterList([torch.ones(4), torch.ones(4) * 2])
        self.layers = nn.ModuleDict({"f": nn.Linear(4, 4)})
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("none", None)

    def forward(self, x):
        x = x * self.weights["a"] + self.weights.b + sum(self.shifts) + len(self.weights) + ("a" in self.weights)
        for _, weight in self.weights.items():
            x = x + weight.sum()
        for layer in self.layers.values():
            x = layer(x)
        for i, layer in enumerate(self.rest):
            x = layer(x) + i
        x = self.head[:1](x) + self.rest[-1](x)
        return x if self.none is None else x * self.none, [name for name, _ in self.named_children()]


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.mean = self.mean + 1
        self.last = x * 2
        total = parameters_to_vector(self.parameters()).sum() * sum(p.numel() for p in self.parameters())
        return self.get_submodule("layer")(x) + self.get_buffer("mean") + total + len(list(self.modules())) + self.last


@pytest.mark.parametrize("module", [Containers(), Counts()], ids=["containers", "counts"])
def test_whole(module):
    check(module, arg(), options=EAGER)


def test_a_layer_that_learns_its_sizes():
    torch.manual_seed(0)
    lazy = nn.LazyLinear(3)
    theirs = copy.deepcopy(lazy)
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        call = dynacompile.compile(lazy, isolate_recompiles=True, **EAGER)
        torch.manual_seed(1)
        got = call(arg())
        torch.manual_seed(1)
        want = theirs(arg())
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        torch.testing.assert_close(call(arg()), theirs(arg()), rtol=0, atol=0)
    finally:
        end()
    skipped = [e.reason for e in events if isinstance(e, FrameSkipped)]
    assert any("UninitializedParameter" in reason for reason in skipped), skipped
