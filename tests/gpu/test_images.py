"""Programs over images on a GPU that were wrong, or did not compile: `python -m tests.fuzz.images FIRST LAST --device cuda` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import dynacompile
from tests.fuzz.images import check_program, generate

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [5208, 5274, 5409, 5434, 5449])
def test_results_and_gradients(seed):
    check_program(generate(seed), Counter(), "cuda")


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_of_a_number_of_each_row(name, rows):
    x = torch.randn(rows, 5000, device="cuda") * 100
    compiled = dynacompile.compile(lambda x: getattr(x.amax(1), name)(), isolate_recompiles=True)
    torch.testing.assert_close(compiled(x), getattr(x.amax(1).double(), name)().float(), atol=1e-6, rtol=1e-5)


def test_equal_products_deviate_by_nothing():
    x, y = torch.randn(2, 3000, 1, device="cuda").expand(2, 3000, 41).contiguous()
    compiled = dynacompile.compile(lambda x, y: (x * y).std(1), isolate_recompiles=True)
    assert not compiled(x, y).any()
