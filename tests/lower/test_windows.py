"""Pools whose windows are alike: eager's maxima, places and gradients, without a call of ATen."""

import pytest
import torch
import torch.nn.functional as F

import dynacompile

LAYOUTS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size, results", [((2, 3, 8, 9), (4, 3)), ((2, 3, 8, 9), (1, 1)), ((2, 3, 8, 8), (8, 8))], ids=str)
def test_adaptive_maxima_of_equal_numbers_and_nans(size: tuple[int, ...], results: tuple[int, int], dtype: torch.dtype, layout: str) -> None:
    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.adaptive_max_pool2d(x.relu(), results, return_indices=True)

    torch.manual_seed(0)
    x = torch.randn(size, dtype=dtype).round()  # many are equal
    x[0, 0, 1, 1:3] = torch.nan
    x[1, 1] = torch.nan
    x = x.contiguous(memory_format=LAYOUTS[layout])
    dynacompile.reset()
    found = []
    for fn in (pooled, dynacompile.compile(pooled, options={"fallback": "none"})):
        leaf = x.clone().requires_grad_()
        values, places = fn(leaf)
        (values * torch.arange(1, values.numel() + 1).view_as(values)).sum().backward()
        found.append((values, places, leaf.grad))
    for expected, got in zip(*found, strict=True):
        assert expected is not None and got is not None
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == expected.stride()
