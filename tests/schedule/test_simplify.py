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


def test_one_hot_sums_of_rounded_elements() -> None:
    at, x = torch.tensor([0, 2, 5, 70, -1]), torch.randn(5)

    def rounded(at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (-torch.where(hot(at, 60), x[:, None], 0.0).to(torch.bfloat16).float()).sum(1)

    assert not rows(rounded, at, x)
    assert rows(lambda at, x: torch.where(hot(at, 60), x[:, None], 0.0).cos().sum(1), at, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_cross_entropy_has_no_sums(dtype: torch.dtype) -> None:
    logits, targets = torch.randn(32, 999, dtype=dtype, requires_grad=True), torch.randint(0, 999, (32,))
    graph, fakes, _ = record(F.cross_entropy, [logits, targets])
    plan = stages(differentiate(graph, fakes, ENV).backward)[1]
    assert not any(k.nest.is_reduction for k in plan.kernels.values())


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


def choices(function: Callable, *args: torch.Tensor) -> int:
    """How many choices between values the one kernel makes."""
    (kernel,) = compare(trace(function, args), args).kernels.values()
    return sum(op.name == "where" for op in kernel.nest.body)


def test_parts_of_a_concatenation_are_chosen_once() -> None:
    x, y = torch.randn(5, 9), torch.randn(5, 4)
    assert choices(lambda x, y: torch.cat([x, y * 2, x + 1], 1), x, y) == 2
    assert choices(lambda x, y: torch.cat([x + 1, y * 2, x.exp(), y], 1), x, y) == 3


def test_choices_that_a_choice_settles() -> None:
    x, i = torch.randn(50), torch.arange(50)
    one = torch.zeros(50, dtype=torch.bool).index_fill(0, i[::3], True)
    assert choices(lambda x, c: torch.where(c, torch.where(c, x, x + 1), torch.where(c, x + 2, x + 3)), x, one) == 1
    assert choices(lambda x, c, i: torch.where(c & (i < 20), torch.where(i < 20, torch.where(c, x, 0.0), 1.0), torch.where(c, x, 2.0)), x, one, i) == 2
    assert choices(lambda x, i: torch.where(i < 20, torch.where(20 <= i, x, x + 1) * 2, torch.where(i >= 20, x.sin(), x)), x, i) == 1
    assert choices(lambda x, c: (torch.where(c, x, 0.0), torch.where(c, torch.where(c, x, 0.0), 1.0)), x, one) == 2


def test_choices_that_nothing_settles() -> None:
    x, y, i = torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([2.0, 1.0, 1.0]), torch.arange(3)
    assert choices(lambda x, y: torch.where(x < y, 1.0, torch.where(y <= x, x, 3.0)), x, y) == 2  # a NaN is neither
    assert choices(lambda x, i: torch.where(i < 1, torch.where(i < 2, x, 0.0).sum(), torch.where(1 <= i, x, 4.0)), x, i) == 2
    assert choices(lambda x, i: torch.where((i < 1) & (x < 2), x, torch.where(i < 1, x + 1, x + 2)), x, i) == 2
