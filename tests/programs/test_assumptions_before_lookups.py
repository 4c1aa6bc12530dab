"""Validation, and then a lookup that raises by its values (`Categorical(logits).log_prob(actions)`, `assert ...` before `gather`): one graph. Where the lookup
raises, the call runs again as Python, which raises first what eager raises first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Categorical

import dynacompile
from dynacompile.events import Compiled, GraphBroke


class Counter:
    def __init__(self):
        self.steps = 0


COUNTER = Counter()


def policy_loss(x, actions):
    policy = Categorical(logits=x)
    return (policy.log_prob(actions).exp() * 0.3).sum() - 0.01 * policy.entropy().mean()


def computed_actions(x, actions):
    return Categorical(logits=x).log_prob(actions * 2 - actions).sum()


def sampled(x, actions):
    policy = Categorical(logits=x)
    return policy.log_prob(policy.sample()).sum()


def bernoulli(x, actions):
    policy = Bernoulli(logits=x)
    return policy.log_prob(policy.sample()).sum()


def asserted(x, actions):
    if not torch.isfinite(x).all():
        raise AssertionError("no numbers")
    if (actions < 0).any():
        raise ValueError("negative")
    return x.gather(1, actions[:, None]).sum() + F.cross_entropy(x, actions)


def counted(x, actions):
    COUNTER.steps += 1
    if not torch.isfinite(x).all():
        raise AssertionError("no numbers")
    return x.gather(1, actions[:, None]).sum()


def before_a_break(x, actions):
    if not torch.isfinite(x).all():
        raise AssertionError("no numbers")
    picked = x.gather(1, actions[:, None]).sum()
    dynacompile.graph_break()
    return picked + 1


PROGRAMS = [policy_loss, computed_actions, sampled, bernoulli, asserted, counted, before_a_break]


def outcome(function, x, actions):
    torch.manual_seed(0)
    COUNTER.steps, leaf = 0, x.clone().requires_grad_()
    try:
        result = function(leaf, actions)
        result.backward()
        seen = [result.detach(), leaf.grad]
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        seen = [type(error), str(error)]
    return [*seen, torch.get_rng_state(), COUNTER.steps]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_one_graph_and_eagers_errors(function):
    dynacompile.reset()
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(function, backend="eager")
    x = torch.linspace(-1, 1, 12).view(3, 4)
    bad, fine, far, negative = x.clone(), torch.tensor([0, 1, 2]), torch.tensor([0, 9, 2]), torch.tensor([0, -1, 2])
    bad[1, 2] = torch.nan
    outcome(compiled, x, fine)
    end()
    breaks = int(function is before_a_break)
    assert sum(isinstance(e, Compiled) for e in events) == 1 + breaks
    assert sum(isinstance(e, GraphBroke) for e in events) == breaks
    for given in ((x, fine), (bad, fine), (x, far), (bad, far), (x, negative), (bad, negative), (x + 1, fine)):
        for found, wanted in zip(outcome(compiled, *given), outcome(function, *given), strict=True):
            assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found == wanted
