"""Compiled modules that eager code checkpoints: what runs again ends within the last operation that keeps tensors, with what Python did before that."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from dynacompile.events import GraphBroke
from tests.scenarios import check_same


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.before, self.between, self.after, self.log, self.last = 0, 0, 0, [], None


class Attributes(Counting):
    def forward(self, x):
        self.before += 1
        h = self.first(x).sin()
        self.between += 1
        h = self.second(h).exp()
        self.after += 1
        return h


class Containers(Counting):
    def forward(self, x):
        h = self.first(x)
        self.log.append(len(self.log))
        self.last = h.detach()
        return self.second(h.tanh()).exp()


class Buffers(Counting):
    def forward(self, x):
        h = self.norm(self.first(x))
        self.mean = 0.9 * self.mean + h.detach().mean(0)
        return self.second(h).tanh()


class Calls(Counting):
    def part(self, x):
        self.between += 1
        return self.first(x).tanh()

    def forward(self, x):
        for _ in range(2):
            x = self.part(x)
            self.log.append(self.between)
        return x * 2


class Inside(Counting):
    def part(self, x):
        self.between += 1
        x = self.second(x).tanh()
        self.after += 1
        return x

    def forward(self, x):
        self.before += 1
        return checkpoint(self.part, self.first(x), use_reentrant=False)


class Writes(Counting):
    """Writes behind the last operation that keeps tensors, before one, and between two that do not."""

    def forward(self, x):
        self.mean.mul_(0.5)
        h = self.second(self.norm(self.first(x))).tanh()
        self.mean.add_(h.detach().mean(0))
        h = h + 1
        self.mean.mul_(2)
        return h


class WritesQuietly(Counting):
    def forward(self, x):
        h = self.second(self.first(x).sin())
        with torch.no_grad():
            self.mean.lerp_(h.mean(0), 0.1)
            self.before += 1
        return h


class WritesLast(Counting):
    def forward(self, x):
        h = self.first(x)
        torch._foreach_add_([self.mean, self.norm.running_mean], h.detach().mean(0).unbind(0)[0])
        self.mean.copy_(h.detach()[0])
        return h * 2


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(3)))

    def forward(self, x):
        return self.norms(x)


WRITES = (Writes, WritesQuietly, WritesLast)
MODULES = [(kind, True) for kind in (Attributes, Containers, Buffers, Calls, Inside, *WRITES)] + [(Inside, False)]


def story_of(kind, stops, around):
    def story(wrap):
        module = kind()
        call = wrap(module)
        for _ in range(3):
            x = torch.randn(3, 4, requires_grad=True)
            with set_checkpoint_early_stop(stops):
                out = checkpoint(call, x, use_reentrant=False) if around else call(x)
            yield out, x
            out.square().sum().backward()
            yield x.grad, [p.grad for p in module.parameters()], list(module.buffers())
            yield module.before, module.between, module.after, list(module.log), module.last

    return story


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize(("kind", "around"), MODULES)
def test_state_of_python(kind, around, stops, backend):
    check_same(story_of(kind, stops, around), backend=backend, least=None)


def test_what_is_checkpointed_breaks_where_state_changes():
    def story(wrap):
        module = Attributes()
        call = wrap(module)
        for checkpointed in (False, True, True, False):
            x = torch.randn(3, 4, requires_grad=True)
            (checkpoint(call, x, use_reentrant=False) if checkpointed else call(x)).sum().backward()
            yield module.before, x.grad

    broken = [e for e in check_same(story, backend="eager", least=None) if isinstance(e, GraphBroke)]
    assert {e.code for e in broken} == {"checkpointed"}


def test_without_gradients_nothing_breaks():
    def story(wrap):
        module = Attributes()
        call = wrap(module)
        with torch.no_grad():
            for _ in range(3):
                yield checkpoint(call, torch.ones(3, 4), use_reentrant=False), module.before

    assert not [e for e in check_same(story, backend="eager") if isinstance(e, GraphBroke)]


def test_statistics_of_norms_stay_in_the_graph():
    """Each norm keeps tensors after it has written its statistics. The gradients of norms over three samples make much of a last bit."""

    def story(wrap):
        module = Norms()
        call = wrap(module)
        for _ in range(3):
            x = torch.randn(3, 4, requires_grad=True)
            checkpoint(call, x, use_reentrant=False).square().sum().backward()
            yield x.grad, list(module.buffers())

    assert not [e for e in check_same(story, backend="aot_eager", rtol=1e-4, atol=1e-4) if isinstance(e, GraphBroke)]
