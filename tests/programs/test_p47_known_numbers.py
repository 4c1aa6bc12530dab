"""Tensors of one number that the frame made of a number, where Python or an operation reads that number."""

import pytest
import torch

from tests.checking import check

CAPTURE = {"backend": "eager"}


def arg():
    return torch.arange(12.0).reshape(3, 4).requires_grad_()


def subscripts(x):
    n = torch.tensor(min(x.shape[0], 2))
    k, one = n - 1, torch.tensor([1])
    return x[n] * 2, x[:n, k:], x[k : n + 1, n], x[None, n, ...], x[one], x[one:]


def writes_by_subscript(x):
    n, y = torch.tensor(1), x.clone()
    y[n] = 0
    y[:n] *= 3
    y[n + 1] = 5
    return y[n], y


def numbers_of_operations(x):
    n, s = torch.tensor(2), torch.tensor(0.5)
    return x.clamp(0, n * 2 - 1), torch.full((2,), n), x.sum(n - 1), torch.add(x, x, alpha=s), x.repeat(n, 1), torch.arange(n), x * s, torch.clamp(x, min=n)


def numbers_of_python(x):
    n, s = torch.tensor(2), torch.tensor(0.5)
    x = x + 1 if n > 1 else x - 1
    return x * 2, n.item(), int(n), float(s), bool(n), s.tolist(), list(range(int(n))), n


@pytest.mark.parametrize("fn", [subscripts, writes_by_subscript, numbers_of_operations, numbers_of_python])
def test_one_graph(fn):
    check(fn, arg(), options=CAPTURE)
    check(fn, arg())


def changed(x):
    n = torch.tensor(2)
    m = n.expand(1)
    n += 1
    x = x + 1 if m.item() == 3 else x - 1
    return x * m


def written_through_a_wide_view(x):
    n = torch.tensor(2)
    n.expand(4)[0:1].fill_(7)
    return x + n.item()


def written_through_data(x):
    n = torch.tensor(2)
    n.data.fill_(7)
    return x + n.item()


def copied_to(x):
    n = torch.tensor(2)
    n.copy_(x.detach().sum())
    return x + n.item()


def swapped(x):
    n = torch.tensor(2)
    torch.add(n, 3, out=n)
    return x + n.item()


@pytest.mark.parametrize("fn", [changed, written_through_a_wide_view, written_through_data, copied_to, swapped])
def test_written(fn):
    check(fn, arg(), options=CAPTURE, graphs=None, breaks=None)
