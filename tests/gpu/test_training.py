"""Whole programs on the GPU, through generated Triton kernels."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import check
from tests.programs.test_p01_arithmetic import chain_of_eleven, reductions, shapes, softmaxes, transposes
from tests.programs.test_p03_modules import Block, ConvNet, Gpt, Mlp, Residuals, seeded
from tests.programs.test_p04_effects import dropout, inplace_view, noise
from tests.programs.test_p05_breaks import tensor_branch

pytestmark = pytest.mark.gpu


def on_gpu(*shape, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda().requires_grad_(grad)


@pytest.mark.parametrize("fn", [chain_of_eleven, softmaxes, shapes, transposes, reductions])
@pytest.mark.parametrize("shape", [(6, 8), (64, 100), (1000, 768)])
def test_functions(fn, shape):
    if fn is reductions:
        shape = (shape[0], 8)
    check(fn, on_gpu(*shape, grad=True), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("fn", [noise, inplace_view])
def test_effects(fn):
    check(fn, on_gpu(6, 8))


def test_dropout():
    check(dropout, on_gpu(64, 64, grad=True))


@pytest.mark.parametrize("make", [Mlp, Residuals])
def test_modules(make):
    check(seeded(make).cuda(), on_gpu(32, 8), rtol=2e-3, atol=2e-4)


def test_block():
    check(seeded(lambda: Block(64, 2)).cuda(), on_gpu(2, 64, 64, grad=True), rtol=2e-3, atol=5e-4)


def test_gpt():
    tokens = torch.randint(0, 32, (2, 12), generator=torch.Generator().manual_seed(0)).cuda()
    check(seeded(Gpt).cuda(), tokens, tokens.roll(-1, 1), rtol=2e-3, atol=5e-4)


@pytest.mark.parametrize("training", [True, False])
def test_conv_net(training):
    check(seeded(ConvNet).cuda().train(training), on_gpu(4, 3, 16, 16), rtol=5e-3, atol=1e-3)


def test_break_on_a_tensor():
    check(tensor_branch, on_gpu(6, 8, grad=True), graphs=2, breaks=1)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)

    def forward(self, x):
        with torch.autocast("cuda", torch.bfloat16):
            return self.fc2(F.gelu(self.norm(self.fc1(x)))).float()


def test_autocast_inside():
    check(seeded(Autocast).cuda(), on_gpu(128, 64), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    check(seeded(lambda: Block(64, 2)).cuda(), on_gpu(2, 64, 64, grad=True), rtol=2e-3, atol=5e-4, calls=6, options={"mode": mode})
