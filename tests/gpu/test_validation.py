"""Validation before an operation that stops a GPU when its values are wrong: `gather` at places that guards know, or asked before as Python."""

import pytest
import torch
from torch.distributions import Categorical

import dynacompile
from dynacompile.events import GraphBroke

pytestmark = pytest.mark.gpu


def of_given_actions(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return Categorical(logits=x).log_prob(actions).sum()


def of_sampled_actions(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    policy = Categorical(logits=x)
    return policy.log_prob(policy.sample()).sum()


@pytest.mark.parametrize("function", [of_given_actions, of_sampled_actions], ids=["given", "sampled"])
def test_log_prob_of_actions(function) -> None:
    dynacompile.reset()
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(function, backend="eager")
    x, actions = torch.randn(3, 4, device="cuda"), torch.tensor([0, 3, 2], device="cuda")
    found = []
    for call in (compiled, function):
        torch.manual_seed(0)
        found.append(call(x, actions))
    end()
    assert torch.equal(*found)
    assert not any(isinstance(e, GraphBroke) for e in events)
    for given in ((x * torch.nan, actions), (x, actions + 1)):
        if function is of_given_actions or given[0].isnan().any():  # samples are in the support
            with pytest.raises(ValueError, match="within the support|satisfy the constraint"):
                compiled(*given)
    if function is of_given_actions:
        assert torch.equal(compiled(x + 1, actions), function(x + 1, actions))
