"""Grids for sampling with one place along a dimension: their gradient in ATen is computed of a tensor that it fills with a number."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.scenarios import check_same

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("places", [(1, 4), (5, 1), (1, 1), (2, 1, 3), (3, 4)], ids=str)
def test_results_and_gradients(places, dynamic, align_corners):
    def story(wrap):
        run = wrap(lambda theta, x: F.affine_grid(theta, x.shape, align_corners) * 2)
        d = len(places)
        theta = torch.linspace(-1, 1, 2 * d * (d + 1)).view(2, d, d + 1).requires_grad_()
        result = run(theta, torch.ones(2, 1, *places))
        yield result
        result.cos().sum().backward()
        yield theta.grad

    check_same(story, dynamic=dynamic, fullgraph=True)
