"""Straight-line tensor code."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.checking import check


def add_mul(x, y):
    return x * 2 + y


def chain_of_eleven(x):
    x = x.sin() + 1.0
    x = x * x
    x = x.cos() - 0.5
    x = torch.relu(x)
    x = x.exp()
    x = x.tanh()
    x = torch.sigmoid(x)
    return x * 3 + 1


def scalars(x):
    return (x + 3) / 7 - 2**3 * x % 5


def comparisons(x, y):
    return torch.where(x > y, x, y), (x == y).sum(), (x <= 0).any()


def integer_math(i):
    return i // 3, i % 3, -i, abs(i), i << 1, i & 3


def mixed_dtypes(x, i):
    return x + i, x * True, i / 2


def reductions(x):
    return x.sum(), x.mean(-1), x.amax(0), x.var(-1), x.std(), x.argmax(-1), x.prod(1)


def softmaxes(x):
    return F.softmax(x, -1), F.log_softmax(x, 0)


def shapes(x):
    n, m = x.shape
    return x.reshape(m, n).t() + n, x.view(-1)[: n * 2], x.unsqueeze(0).expand(3, n, m) * m


def indexing(x, i):
    return x[0], x[:, 1:3], x[i], x[..., None], x[-1, -1]


def concatenation(x, y):
    return torch.cat([x, y], 0), torch.stack([x, y], 1), torch.cat([x, y * 2], -1).sum(0)


def factories(x):
    a = torch.arange(x.shape[0], dtype=x.dtype).unsqueeze(1)
    return x + a + torch.ones_like(x) + torch.zeros(x.shape[1]) + torch.full((1,), 2.5)


def math_constants(x):
    return x * math.sqrt(2.0) + math.pi


def matmuls(x, y):
    return x @ y.t(), torch.einsum("ij,kj->ik", x, y), torch.bmm(x.unsqueeze(0), y.t().unsqueeze(0))


def masked(x):
    mask = torch.ones(x.shape[0], x.shape[1], dtype=torch.bool).tril()
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


def transposes(x):
    return x.t().contiguous(), x.transpose(0, 1) + 1, x.permute(1, 0).reshape(-1)


def clamps(x):
    return x.clamp(-0.5, 0.5), x.clamp(min=0), torch.minimum(x, x.flip(0)), torch.maximum(x, x * 2)


def floats(x):
    return x.float(), x.double() * 2, x.to(torch.bfloat16), x.half()


def make(*shape, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [chain_of_eleven, scalars, softmaxes, shapes, factories, math_constants, clamps, transposes, floats])
def test_one_tensor(fn, grad):
    check(fn, make(6, 8, grad=grad))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [add_mul, comparisons, concatenation, matmuls])
def test_two_tensors(fn, grad):
    check(fn, make(6, 8, grad=grad), make(6, 8, grad=grad).detach().add(0.25).requires_grad_(grad))


def test_integers():
    check(integer_math, torch.arange(-5, 12))


def test_mixed_dtypes():
    check(mixed_dtypes, make(12, grad=True), torch.arange(12))


@pytest.mark.parametrize("grad", [False, True])
def test_reductions(grad):
    check(reductions, make(6, 8, grad=grad))


def test_indexing():
    check(indexing, make(6, 8, grad=True), torch.tensor([3, 0, 3]))


def test_masked():
    check(masked, make(8, 8, grad=True))


def test_eleven_pointwise_ops_are_one_kernel():
    check(chain_of_eleven, make(64, 64), kernels=1)
