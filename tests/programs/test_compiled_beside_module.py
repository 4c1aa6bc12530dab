"""What `compile` gives for a module, and the module itself, in one compiled function: they have one `__dict__`, and `self` is the module."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, GraphBroke


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.calls, self.aux = nn.Linear(4, 4), 0, None
        self.register_buffer("seen", torch.zeros(()))
        self.part.__dict__["owner"] = weakref.ref(self)

    def forward(self, h):
        self.calls += 1
        self.aux = h.sum()
        self.seen = self.seen + 1
        return self.part(h) * (1 if self.part.owner() is self else 2)


def followed(net, call):
    """A step that reads and writes the state by both names."""

    def step(x):
        y = call(x)
        between = net.calls, call.calls, net.aux, call.aux, net.seen.clone(), call.seen.clone()
        net.calls += 10
        call.late = net.calls
        del call.aux
        return y, between, net.late, hasattr(net, "aux"), call.__dict__ is net.__dict__, [p is q for p, q in zip(net.parameters(), call.parameters())]

    return step


@pytest.mark.parametrize("backend", [{"backend": "eager"}, {"options": {"reference": True}}])
def test_state_is_one(backend):
    x, found = torch.randn(2, 4), []
    plain = Net()
    net = Net()
    net.load_state_dict(plain.state_dict())
    end = dynacompile.subscribe(found.append)
    step, wanted = dynacompile.compile(followed(net, dynacompile.compile(net, **backend)), **backend), followed(plain, plain)
    for _ in range(3):
        have, want = step(x), wanted(x)
        torch.testing.assert_close(have, want)
        assert (net.calls, net.late, hasattr(net, "aux")) == (plain.calls, plain.late, False)
        assert torch.equal(net.seen, plain.seen)
    end()
    assert not [event for event in found if isinstance(event, GraphBroke)]
    assert sum(isinstance(event, Compiled) for event in found) <= 3  # by the first call, and a counter that varies


def test_what_is_given_may_be_one_or_two():
    def write(a, b, x):
        a.calls = 5
        return b.calls, x + 1

    compiled = dynacompile.compile(write, backend="eager")
    for one in (True, False, True):
        net = Net()
        twin = dynacompile.compile(net)
        other = net if one else Net()
        assert compiled(twin, other, torch.ones(1))[0] == (5 if one else 0)
    same_class = object.__new__(type(twin))
    object.__setattr__(same_class, "__dict__", dict(Net().__dict__))
    assert compiled(twin, net, torch.ones(1))[0] == 5
    assert compiled(same_class, net, torch.ones(1))[0] == 5
    net.calls = 1
    assert compiled(same_class, net, torch.ones(1))[0] == 1
