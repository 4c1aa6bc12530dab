"""Numbers that Python's and NumPy's generators draw reach kernels of a GPU with the launch, and replays of CUDA graphs by a copy: each call has its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import dynacompile


def mixed(net, x, y):
    share, scale = np.random.beta(0.4, 0.4), random.uniform(0.5, 2.0)
    out = net((share * x + (1 - share) * x.flip(0)) * scale)
    return share * torch.nn.functional.mse_loss(out, y) + (1 - share) * torch.nn.functional.mse_loss(out, y.flip(0))


def cropped(net, x, y):
    first = random.randint(0, 2)
    return (net(x[first : first + 6]) * random.choice([0.5, 1.0]) - y[first : first + 6]).square().mean()


@pytest.mark.parametrize("step", [mixed, cropped])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_each_step_has_its_own_numbers(step, mode):
    found = []
    for wrap in (lambda fn: fn, lambda fn: dynacompile.compile(fn, mode=mode, fullgraph=True)):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        net = torch.nn.Linear(16, 3, device="cuda")
        x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 3, device="cuda")
        run = wrap(step)
        for _ in range(6):
            loss = run(net, x, y)
            loss.backward()
            found.append(loss.detach().clone())
        found += [p.grad.clone() for p in net.parameters()]
    half = len(found) // 2
    torch.testing.assert_close(found[half:], found[:half])
