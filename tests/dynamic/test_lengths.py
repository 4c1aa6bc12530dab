"""Functions of torch that take lengths as numbers: one entry for all lengths."""

import math

import pytest
import torch
from torch.nn import functional as F

from tests.dynamic.varying import check_varying

SIZES = ((3, 8), (4, 12), (2, 17), (6, 9))
WEIGHT = torch.randn(4, 8, 3)
LENGTHS = {
    "hann": lambda x: torch.hann_window(x.shape[1])[:, None] * x,
    "hann, once": lambda x: torch.hann_window(x.shape[1], False)[:, None] * x,
    "hann of float64": lambda x: torch.hann_window(x.shape[1] + 1, dtype=torch.float64),
    "hamming": lambda x: torch.hamming_window(x.shape[1], True, 0.5, 0.4)[:, None] * x,
    "bartlett": lambda x: torch.bartlett_window(x.shape[1])[:, None] * x,
    "bartlett, once": lambda x: torch.bartlett_window(x.shape[1], periodic=False)[:, None] * x,
    "blackman": lambda x: torch.blackman_window(x.shape[1])[:, None] * x,
    "linspace by name": lambda x: torch.linspace(-1, 1, steps=x.shape[1])[:, None] * x,
    "logspace": lambda x: torch.logspace(0, 1, x.shape[1])[:, None] * x,
    "logspace of another base": lambda x: torch.logspace(0, 1, steps=x.shape[1], base=2.0),
    "arange of a float": lambda x: torch.arange(0.0, x.shape[1])[:, None] * x,
    "arange by halves": lambda x: torch.arange(0, x.shape[1], 0.5),
    "arange down": lambda x: torch.arange(x.shape[1], 0.25, -0.75),
    "arange from a float": lambda x: torch.arange(1.5, x.shape[1], dtype=torch.float64),
    "fftfreq": lambda x: torch.fft.fftfreq(x.shape[1], 0.5)[:, None] * x,
    "rfftfreq": lambda x: torch.fft.rfftfreq(x.shape[1]),
    "one_hot": lambda x: F.one_hot(torch.arange(4), x.shape[1]).float() @ x,
    "affine_grid": lambda x: F.affine_grid(x[:, :2, :3], (x.shape[0], 3, x.shape[1], x.shape[1]), align_corners=False),
    "gradient": lambda x: torch.gradient(x, dim=1)[0],
    "gradient by halves": lambda x: torch.gradient(x, spacing=0.5, dim=(1, 2)),
    "gradient along a dimension of one size": lambda x: torch.gradient(x[:, :4], dim=1)[0],
    "avg_pool2d without a batch": lambda x: F.avg_pool2d(x, (x.shape[1], 1)),
    "max_pool2d without a batch": lambda x: x - F.max_pool2d(x, (x.shape[1], 1)),
    "max_pool1d without a batch": lambda x: F.max_pool1d(x[0].mT, x.shape[1]),
    "max_pool2d without a batch, channels last": lambda x: F.max_pool2d(x.permute(2, 0, 1), (1, x.shape[1])),
    "avg_pool1d": lambda x: F.avg_pool1d(x.mT, x.shape[1]),
    "max_pool1d": lambda x: F.max_pool1d(F.conv1d(x.mT, WEIGHT).relu(), x.shape[1] - 2).squeeze(2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[:, None], x.shape[1:]),
    "avg_pool2d of rows": lambda x: F.avg_pool2d(x[:, None], (x.shape[1], 1)),
    "avg_pool2d, channels last": lambda x: F.avg_pool2d(x.unflatten(2, (2, 4)).permute(0, 3, 1, 2), (x.shape[1], 2)),
    "max_pool2d": lambda x: F.max_pool2d(x[:, None], x.shape[1:]),
    "max_pool2d of rows": lambda x: F.max_pool2d(x[:, None], (x.shape[1], 1)),
    "max_pool2d, channels last": lambda x: F.max_pool2d(x.unflatten(2, (2, 4)).permute(0, 3, 1, 2), (x.shape[1], 2)),
    "max_pool3d": lambda x: F.max_pool3d(x.unflatten(2, (4, 2))[:, None], (x.shape[1], 4, 2)),
    "Tensor": lambda x: torch.Tensor(x.shape[0], x.shape[1]).fill_(2.0) @ x,
    "Tensor of a size": lambda x: torch.Tensor(x.shape).fill_(2.0) * x,
}


@pytest.mark.parametrize("name", LENGTHS)
def test_functions_of_a_length_are_one_entry(name):
    calls = [(torch.randn(*size, 8, requires_grad=True),) for size in SIZES]
    check_varying(LENGTHS[name], calls, 1, backend="default", dynamic=True, options={"reference": True})


@pytest.mark.parametrize("name", [name for name in LENGTHS if "pool" in name])
def test_pools_without_gradients(name):
    calls = [(torch.randn(*size, 8),) for size in SIZES]
    check_varying(LENGTHS[name], calls, 1, backend="default", dynamic=True, options={"reference": True})


POWERS = {
    "by bits": lambda x: F.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x))),
    "by logarithms": lambda x: F.pad(x, (0, 2 ** math.ceil(math.log2(len(x))) - len(x))),
}


@pytest.mark.parametrize("name", POWERS)
def test_paddings_to_a_power_of_two_have_an_entry_for_each_power(name):
    calls = [(torch.randn(size),) for size in (9, 11, 16, 13, 17, 30, 32)]
    check_varying(POWERS[name], calls, 2, backend="default", dynamic=True, options={"reference": True})


def test_sizes_of_old_constructors():
    check_varying(lambda x: torch.Tensor(x.shape).fill_(1.0) + torch.FloatTensor(x.size()).zero_(), [(torch.randn(3, 4),)], 1)


def test_sizes_that_are_given_have_numbers_that_vary():
    sizes = [torch.Size(size) for size in ((2, 3, 4), (4, 5, 4), (6, 7, 4), (3, 8, 4))]
    calls = [(torch.randn(size.numel()), size) for size in sizes]
    check_varying(lambda x, size: (x.view(size) * size[0], size[:2], len(size), size.numel()), calls, 2)
    check_varying(lambda x, size: (x.view(size) * 2, size), [*calls, (torch.randn(6), torch.Size((2, 3)))], 3)
    check_varying(lambda x, size: x + (x.shape == size), [(torch.randn(size), size) for size in sizes], 2)
