"""Bools that are read from tensors, and the ints that Python makes of them; the least and the greatest of numbers that are read."""

from __future__ import annotations

import pytest
import torch

from tests.checking import check


def told_apart(t, x):
    c = t.item()
    return c is True, c is not True, c is None, c is False, c is c, c is not c, bool(t) is True, bool(t) is not False, x + 1


def added(t, x):
    n = bool(t) + 1
    return n, bool(t) * 3 - 2, -bool(t), +bool(t), abs(bool(t)), bool(t) + True, bool(t) * bool(t), x * n, n < 2, n == 2, n / 2, n + 0.5


def joined(t, x):
    f = bool((x > 0).any())
    return t.item() & True, f | t.item(), f ^ False, f & f, (f is True) + 0, not f, f is t.item(), x + 1


def counted(t, x):
    n = 0
    for i in range(4):
        n += bool((x > i - 2).all())
        n += int((x < i).any().item())
    return n, sum([bool(v > 0) for v in x]), x + 1


def extremes(t, x):
    numbers = [v.item() for v in x]
    best = min(0.25, x.sum().item())
    return max((v.item() for v in x), default=0), min(numbers, default=None), max([], default=3), best, max(2.0, *numbers), x * best


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("program", [told_apart, added, joined, counted, extremes])
def test_in_one_graph(program, flag):
    check(program, torch.tensor(flag), torch.tensor([0.5, -1.0, 2.0]))


def test_ints_that_may_have_more_than_64_bits_are_python_s():
    check(lambda x: ((bool(x + torch.rand(()) > 0) + 2**62) * 2, x + 1), torch.ones(()), graphs=None, breaks=1)


# lists of numbers that are counted


def axes(t, x):
    dims = torch.arange(1, x.dim()).tolist()
    return x.sum(dims), dims, torch.arange(5, 0, -2).tolist(), torch.arange(3)[1:].tolist(), torch.arange(2.0).tolist()


def written(t, x):
    a, b, c, d = (torch.arange(3) for _ in range(4))
    a[0] = 5
    b.view(3).add_(1)
    c.detach().numpy()[0] = 7
    before = d.tolist()
    d.zero_()
    return a.tolist(), b.tolist(), c.tolist(), d.tolist(), before, x + 1


@pytest.mark.parametrize("program", [axes, written])
def test_counted_numbers(program):
    check(program, torch.tensor(True), torch.ones(2, 3, 4))
