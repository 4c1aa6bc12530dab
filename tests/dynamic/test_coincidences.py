"""Marked sizes that equal a number of the program in the call that is compiled: `x[:, :5]` of 5 columns. One entry serves them and all others."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled
from tests.scenarios import strides

BIAS = torch.randn(5)
SAME = {
    "product": lambda x: (x[:, :5] * 2).sum(-1),
    "sine": lambda x: x[:, :5].sin(),
    "broadcast": lambda x: x[:, :5] + BIAS,
    "two slices": lambda x: x[:, -5:] * x[:, :5],
    "softmax": lambda x: x[:, :5].softmax(-1),
    "copy": lambda x: x[:, :5].clone(),
    "cast": lambda x: x[:, :5].to(torch.float64),
    "zeros": lambda x: torch.zeros_like(x[:, :5]),
    "selection": lambda x: torch.where(x[:, :5] > 0, x[:, :5], BIAS),
    "mask": lambda x: x[:, :5].masked_fill(x[:, :5] > 0, 1.0),
    "sort": lambda x: x[:, :5].sort(1)[0],
    "norm": lambda x: x[:, :5].norm(dim=1),
    "roll": lambda x: x[:, :5].roll(1, 1),
    "flip": lambda x: x[:, :5].flip(1),
    "triangle": lambda x: x[:, :5].tril(),
    "expanded": lambda x: x[:, :5].expand(3, -1, -1).sin(),
    "transposed": lambda x: x[:, :5].t().exp(),
    "addition in place": lambda x: x.clone()[:, :5].add_(1),
    "strided": lambda x: x.as_strided((x.shape[0], 5), (x.shape[1], 1)) * 2,
    "layer norm": lambda x: F.layer_norm(x[:, :5], (5,)),
    "batch norm": lambda x: F.batch_norm(x[:, None, :5, None].expand(-1, 3, -1, 4), None, None, training=True),
}


def columns(*sizes):
    for size in sizes:
        x = torch.randn(4, size)
        dynacompile.mark_dynamic(x, 1, min=5)
        yield x


def entries(function, *sizes):
    made = []
    end = dynacompile.subscribe(made.append)
    compiled = dynacompile.compile(function, options={"reference": True}, isolate_recompiles=True)
    for x in columns(*sizes):
        result, expected = compiled(x), function(x)
        torch.testing.assert_close(result, expected)
        assert strides(result) == strides(expected)
        assert (result.data_ptr() == x.data_ptr()) == (expected.data_ptr() == x.data_ptr())
    end()
    return sum(isinstance(event, Compiled) for event in made)


@pytest.mark.parametrize("sizes", [(5, 9, 30), (9, 5, 30)], ids=["at first", "later"])
@pytest.mark.parametrize("name", SAME)
def test_whether_a_slice_is_the_whole_is_no_guard_where_the_result_is_the_same(name, sizes):
    assert entries(SAME[name], *sizes) == 1


DIFFERENT = {
    "a view or a copy": lambda x: x[:, :5].reshape(-1),
    "itself or a copy": lambda x: x[:, :5].contiguous(),
    "flattened": lambda x: x[:, :5].flatten(),
}


@pytest.mark.parametrize("sizes", [(5, 9, 30, 5), (9, 5, 30, 5)], ids=["at first", "later"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_size_at_which_the_program_does_something_else_has_an_entry_and_violates_no_mark(name, sizes):
    assert entries(DIFFERENT[name], *sizes) == 2


def test_dimensions_of_one_element_lie_as_in_eager():
    assert entries(lambda x: x[:, :5, None].mul(2), 5, 9, 30) <= 2
    assert entries(lambda x: x[None, :, :5].mul(2), 5, 9, 30) <= 2
