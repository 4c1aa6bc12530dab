"""Norms of batches without a momentum: their statistics are averages over all batches, by a count that the module keeps in a tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynacompile.events import Compiled
from tests.scenarios import attempt, check_same


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3, momentum=None), nn.ReLU(True), nn.BatchNorm2d(3, momentum=None, affine=False))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_training_and_evaluation(backend, dynamic):
    def story(wrap):
        module = net()
        run = wrap(module)
        for i, training in enumerate((True, True, False, True)):
            module.train(training)
            x = torch.linspace(-2, 3, 2 * 3 * 4 * (4 + i)).sin().view(2, 3, 4, -1).requires_grad_()
            result = run(x)
            result.cos().sum().backward()
            yield result, x.grad, dict(module.named_buffers()), [p.grad for p in module.parameters()]

    check_same(story, backend=backend, dynamic=dynamic, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_a_momentum_that_a_schedule_sets(backend):
    def story(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), nn.BatchNorm1d(3, affine=False))
        run = wrap(module)
        for i in range(6):
            for norm in module[::2]:
                norm.momentum = 0.5 * 0.8**i
            x = torch.linspace(-2, 3, 3 * 5 * 4).sin().view(5, 3, 4).requires_grad_()
            result = run(x)
            result.cos().sum().backward()
            yield result, x.grad, dict(module.named_buffers()), [p.grad for p in module.parameters()]

    events = check_same(story, backend=backend, fullgraph=True, atol=1e-4, rtol=1e-4)
    assert sum(isinstance(event, Compiled) for event in events) == 2


def test_one_value_of_a_channel_is_refused():
    def story(wrap):
        module = net()
        yield attempt(wrap(module), torch.ones(1, 3, 1, 1)), dict(module.named_buffers())

    check_same(story, least=None)
