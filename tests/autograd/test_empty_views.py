"""Views that are expanded, of tensors without elements: no two elements share memory, so that they are written and returned as any others."""

from __future__ import annotations

import pytest
import torch

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
