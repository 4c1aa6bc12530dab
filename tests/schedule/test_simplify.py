"""Cross entropy reads the logits once in each direction, and sums of one-hot rows need no loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from dynacompile.autograd import differentiate
from tests.autograd.recording import record
from tests.lower.tracing import ENV, compare, stages, trace


def rows(function: Callable, *args: torch.Tensor) -> bool:
    """Whether any kernel still reduces."""
    plan = compare(trace(function, args), args)
    return any(k.nest.is_reduction for k in plan.kernels.values())


def hot(at: torch.Tensor, size: int, start: int = 0) -> torch.Tensor:
    return at[:, None] == torch.arange(start, start + size)


@pytest.mark.parametrize("start", [0, 3, -2])
def test_one_hot_sum(start: int) -> None:
    at, x = torch.tensor([0, 2, 5, 70, -1]), torch.randn(5)
    assert not rows(lambda at, x: torch.where(hot(at, 60, start), x[:, None], 0.0).sum(1), at, x)
    assert not rows(lambda at, x: torch.where(hot(at, 60, start) & (x > 0)[:, None], x[:, None], 0.0).sum(1) * 2, at, x)


def test_other_sums_stay() -> None:
    at, x, y = torch.tensor([0, 2, 5]), torch.randn(3), torch.randn(3, 6)
    assert rows(lambda at, x, y: torch.where(hot(at, 6), y, 0.0).sum(1), at, x, y)
    assert rows(lambda at, x, y: torch.where(hot(at, 6), x[:, None], 1.0).sum(1), at, x, y)
    assert rows(lambda at, x, y: torch.where(hot(at, 6), x[:, None], 0.0).amax(1), at, x, y)


def test_cross_entropy_moves_its_logits_once() -> None:
    logits, targets = torch.randn(32, 999, requires_grad=True), torch.randint(0, 999, (32,))
    graph, fakes, _ = record(F.cross_entropy, [logits, targets])
    pair = differentiate(graph, fakes, ENV)
    size = logits.numel() * 4
    for graph, passes in ((pair.forward, 1), (pair.backward, 2)):
        facts = stages(graph)[1].facts()
        assert passes * size <= facts["bytes"] < passes * size + size // 8
