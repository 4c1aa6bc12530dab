"""Views that are expanded, of tensors without elements: no two elements share memory, so that they are written and returned as any others."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.checking import check


def written(x):
    y = torch.empty(0, 3).unsqueeze(0).expand(4, -1, -1)
    y.add_(1)
    return x + y.sum()


def returned(x):
    return x.unsqueeze(0).expand(3, -1, -1)[..., :2], x * 2


def made_again(x):
    v = (x + 1).unsqueeze(0).expand(3, -1, -1)
    v.reshape(3, 0, 5).neg_()
    return v


@pytest.mark.parametrize("fn", [written, returned, made_again])
@pytest.mark.parametrize("grad", [False, True])
def test_expanded_views_of_nothing(fn, grad):
    check(fn, torch.empty(0, 5, requires_grad=grad), backward=False)


@pytest.mark.parametrize("parts", [lambda x: x.split(2, 1), lambda x: x.split(1, -2), lambda x: x.transpose(0, 1).split(3), lambda x: x.chunk(2, 1)])
def test_parts_along_a_dimension_without_elements(parts):
    """Torch 2.11 has a rule for fakes that fails there."""
    x = torch.rand(4, 0, 3)
    got, expected = dynacompile.compile(parts, fullgraph=True, isolate_recompiles=True)(x), parts(x)
    assert [t.shape for t in got] == [t.shape for t in expected]
