"""Sequences whose batches and lengths are symbols: one entry, or one for each number of parts, serves all lengths."""

import pytest
import torch
from torch.nn import functional as F

from tests.dynamic.varying import check_varying

SIZES = ((3, 8), (4, 12), (2, 17), (6, 9))


def sequences(*sizes):
    return [(torch.randn(*size, 8, requires_grad=True),) for size in sizes or SIZES]


def check(function, entries=1, *sizes):
    check_varying(function, sequences(*sizes), entries, backend="default", dynamic=True, options={"reference": True})


@pytest.mark.parametrize("function", [lambda x: x.split(4, 1), lambda x: x.chunk(3, 1), lambda x: x.unsafe_chunk(3, 1)], ids=["split", "chunk", "unsafe_chunk"])
def test_parts_have_an_entry_for_each_number_of_parts(function):
    check(lambda x: torch.cat([t.sin() for t in function(x)][::-1], 1), 1, (3, 11), (4, 10), (2, 12), (5, 11))


def test_parts_that_a_length_does_not_fill():
    check(lambda x: [t * 2 for t in x.chunk(3, 1)], 2, (3, 8), (2, 4), (2, 13))


SCALARS = {
    "clamp": lambda x: x.clamp(max=x.shape[1] / 9),
    "threshold": lambda x: F.threshold(x, 1 / x.shape[1], -1.0),
    "alpha": lambda x: x.add(x.mean(), alpha=x.shape[1]),
    "leaky_relu": lambda x: F.leaky_relu(x, 1 / x.shape[1]),
    "softplus": lambda x: F.softplus(x, beta=1 / x.shape[1]),
    "elu": lambda x: F.elu(x, alpha=1 / x.shape[1]),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1 / x.shape[1]),
    "addcmul": lambda x: x.addcmul(x, x.flip(1), value=1 / x.shape[1]),
}


@pytest.mark.parametrize("name", SCALARS)
def test_numbers_of_operators_that_follow_from_a_length_are_symbols(name):
    check(SCALARS[name])


def test_a_convolution_of_one_element():
    check(lambda x: F.conv1d(x.mT, x.detach()[0, :1].unsqueeze(-1), padding=0).mT)
