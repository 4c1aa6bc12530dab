"""Pools of images whose height and width are symbols, where windows are numbers: kernels, as with numbers, with what goes before and after them."""

import math

import pytest
import torch
from torch.nn import functional as F

import dynacompile

SIZES = ((13, 11), (12, 14), (9, 9), (7, 16), (10, 5))
WINDOWS = {
    "2": {"kernel_size": 2},
    "3 by 2": {"kernel_size": 3, "stride": 2},
    "3 by 2, padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "3 by 1, padded": {"kernel_size": 3, "stride": 1, "padding": 1},
    "2x3 by 3x1, padded": {"kernel_size": (2, 3), "stride": (3, 1), "padding": (1, 0)},
    "2, up": {"kernel_size": 2, "ceil_mode": True},
    "3 by 2, up": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "3 by 2, padded, up": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "1 by 3, up": {"kernel_size": 1, "stride": 3, "ceil_mode": True},
}
MAXIMA = {
    **WINDOWS,
    "3 by 2, dilated": {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    "3, dilated, up": {"kernel_size": 3, "dilation": 2, "ceil_mode": True},
}
MEANS = {
    **WINDOWS,
    "3 by 2, without padding": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    "3 by 2, without padding, up": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True},
    "2, by a number": {"kernel_size": 2, "divisor_override": 3},
}
LAYOUTS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


def image(size: tuple[int, int], layout: torch.memory_format, special: bool) -> torch.Tensor:
    x = torch.randint(-4, 5, (2, 3, *size)).float()
    if special:
        x[0, 0, : size[0] // 2] = -math.inf
        x[1, 1, 2, 3] = x[0, 2, -1, -1] = x[0, 2, 0, 0] = math.nan
    return x.to(memory_format=layout).requires_grad_()


BUILT = ("3 by 2, padded, up", "2x3 by 3x1, padded")  # as C++; others by the reference interpreter


def same_at_all_sizes(fn, name: str, layout: torch.memory_format, special: bool = False) -> None:
    options = {} if name in BUILT else {"options": {"reference": True}}
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic={"x": {2: {}, 3: {}}}, **options)
    for size in SIZES:
        ours, eagers = (image(size, layout, special).detach().requires_grad_() for _ in range(2))
        with torch.no_grad():
            eagers.copy_(ours)
        got, want = compiled(ours), fn(eagers)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
            assert a.stride() == b.stride()
        tangent = torch.randn_like(want[0])
        (a,), (b,) = torch.autograd.grad(got[0], ours, tangent), torch.autograd.grad(want[0], eagers, tangent)
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride()
    most = 3 if name.endswith(", up") else 1  # whether the last window begins past the image, where sizes are rounded up, is a guard
    assert len(dynacompile.cache_entries(compiled)) <= most


@pytest.mark.parametrize("special", [False, True], ids=["finite", "NaN and -inf"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima_and_their_places(name, layout, special):
    same_at_all_sizes(lambda x: F.max_pool2d(x * 2, **MAXIMA[name], return_indices=True), name, LAYOUTS[layout], special)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MEANS)
def test_means(name, layout):
    same_at_all_sizes(lambda x: (F.avg_pool2d(x * 2, **MEANS[name]) + 1,), name, LAYOUTS[layout])


KERNELS = {
    "max_pool2d 2": lambda x: F.max_pool2d(x.relu(), 2) + 1,
    "max_pool2d 3 by 2": lambda x: F.max_pool2d(x.relu(), 3, 2, 1) + 1,
    "avg_pool2d 2": lambda x: F.avg_pool2d(x.relu(), 2) + 1,
    "avg_pool2d 3 by 2, channels last": lambda x: F.avg_pool2d(x.to(memory_format=torch.channels_last).relu(), 3, 2, 1) + 1,
}


@pytest.mark.parametrize("name", KERNELS)
def test_pools_are_as_many_kernels_and_calls_as_with_numbers(name):
    counts = []
    for dynamic in (False, {"x": {2: {}, 3: {}}}):
        explained = dynacompile.explain(KERNELS[name], dynamic=dynamic, backward=True, options={"reference": True})(
            torch.randn(2, 3, 14, 12, requires_grad=True)
        )
        counts.append((explained.kernels, explained.fact("schedule", "externs")))
    assert counts[0] == counts[1]
