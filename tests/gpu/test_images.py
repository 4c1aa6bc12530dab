"""Programs over images on a GPU that were wrong, or did not compile: `python -m tests.fuzz.images FIRST LAST --device cuda` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from tests.fuzz import convolutions
from tests.fuzz.images import check_program, generate

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [5208, 5274, 5409, 5434, 5449])
def test_results_and_gradients(seed):
    check_program(generate(seed), Counter(), "cuda")


def test_channels_of_one_group():
    """torch's kernel hands back memory of its operand, which was used again while the result was read."""

    def function(x):
        t = F.channel_shuffle(F.avg_pool2d(x, 3, 1, 1), 1)
        return t.square().mean((1, 2, 3)), t

    x = torch.randn(3, 8, 28, 28, device="cuda")
    for got, want in zip(dynacompile.compile(function, options={"fallback": "none"})(x), function(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("window", [(2, 1, 1), (3, 2, 1), (3, 2, 1, 2), (3, 1, 1), (5, 2, 2)], ids=str)
@pytest.mark.parametrize("size", [(5, 5), (6, 7), (14, 14)], ids=str)
def test_padded_maxima_of_half_precision(dtype, window, size):
    """ptxas made inf of the padding."""
    compiled = dynacompile.compile(lambda x: F.max_pool2d(F.leaky_relu(x, 0.1), *window), dynamic={"x": {0: {}}}, options={"fallback": "none"})
    for batch in (3, 5, 16):
        x = torch.randn(batch, 4, *size, device="cuda", dtype=dtype)
        assert torch.equal(compiled(x), F.max_pool2d(F.leaky_relu(x, 0.1), *window))


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


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_images_sampled_by_a_grid(padding, align_corners, dynamic):
    """Aligned corners with zeros outside are sampled by cuDNN."""
    x = torch.randn(2, 3, 9, 7, device="cuda").to(memory_format=torch.channels_last)
    maps = torch.randn(2, 2, 3, device="cuda")

    def sampled(x, maps):
        return F.grid_sample(x, F.affine_grid(maps, (2, 3, 5, 6), align_corners), "bilinear", padding, align_corners) * 2

    results = []
    for run in (sampled, dynacompile.compile(sampled, fullgraph=True, dynamic=dynamic, isolate_recompiles=True)):
        given = x.clone().requires_grad_(), maps.clone().requires_grad_()
        result = run(*given)
        results.append((result, *torch.autograd.grad(result.cos().sum(), given)))
    for got, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
        assert got.stride() == wanted.stride()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [96, 1013, 1083, 2013, 3073])
def test_modules_over_images(seed):
    """By grids, and resized, under autocast but for the last."""
    convolutions.check_program(convolutions.generate(seed), Counter(), "cuda")
