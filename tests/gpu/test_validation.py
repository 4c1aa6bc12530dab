"""Validation before an operation that stops a GPU when its values are wrong: `gather` at places that guards know, or asked before as Python."""

import pytest
import torch
from torch.distributions import Categorical

import dynacompile
from dynacompile.events import GraphBroke

pytestmark = pytest.mark.gpu


def of_given_actions(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return Categorical(logits=x).log_prob(actions).sum()


def of_computed_actions(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return Categorical(logits=x).log_prob(x.argmax(-1)).sum()


@pytest.mark.parametrize("function, breaks", [(of_given_actions, 0), (of_computed_actions, 1)], ids=["given", "computed"])
def test_log_prob_of_actions(function, breaks: int) -> None:
    dynacompile.reset()
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(function, backend="eager")
    x, actions = torch.randn(3, 4, device="cuda"), torch.tensor([0, 3, 2], device="cuda")
    assert torch.equal(compiled(x, actions), function(x, actions))
    end()
    assert sum(isinstance(e, GraphBroke) for e in events) == breaks
    for given in ((x * torch.nan, actions), (x, actions + 1)):
        if function is of_given_actions or given[0].isnan().any():
            with pytest.raises(ValueError, match="within the support|satisfy the constraint"):
                compiled(*given)
    assert torch.equal(compiled(x + 1, actions), function(x + 1, actions))
