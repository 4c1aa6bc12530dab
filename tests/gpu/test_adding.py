"""Sums at places that are tensor elements, on the GPU: by atomic operations, in kernels that compute what they add."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.ir.loops import Extern
from tests.gpu.test_loops import modules

pytestmark = pytest.mark.gpu


def rows_of(count: int, *size: int) -> torch.Tensor:
    return torch.randint(0, count, size, device="cuda")


FORMS = {
    "index_add": lambda x, v, i: x.index_add(0, i, v.sin()),
    "scatter_add": lambda x, v, i: x.scatter_add(0, i[:, None].expand_as(v), v.sin()),
    "index_put": lambda x, v, i: x.index_put((i,), v.sin(), accumulate=True),
    "elements": lambda x, v, i: x.view(-1).index_put((i % 7,), v[:, 0].sin(), accumulate=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_sums_at_places_are_kernels(form, dtype):
    x, v, i = torch.randn(500, 96, device="cuda", dtype=dtype), torch.randn(20000, 96, device="cuda", dtype=dtype), rows_of(500, 20000)
    built, got = modules(dynacompile.compile(FORMS[form], isolate_recompiles=True), x, v, i)
    assert not any(isinstance(s, Extern) for m in built for s in m.schedule.steps)
    torch.testing.assert_close(got.double(), FORMS[form](x.double(), v.double(), i), rtol=1e-4, atol=1e-4 * float(v.abs().max()))


def test_whole_numbers_are_exact():
    x, v, i = torch.zeros(300, dtype=torch.int64, device="cuda"), rows_of(2**40, 100000), rows_of(300, 100000)
    compiled = dynacompile.compile(lambda x, i, v: x.index_add(0, i, v), isolate_recompiles=True)
    assert torch.equal(compiled(x, i, v), x.index_add(0, i, v))


@pytest.mark.parametrize("padding", [None, 3])
def test_the_gradient_of_an_embedding(padding):
    weight = torch.randn(50257, 768, device="cuda", requires_grad=True)
    tokens = rows_of(50257, 16, 1024)
    tokens[:, ::9] = 3
    tangent = torch.randn(16, 1024, 768, device="cuda")
    compiled = dynacompile.compile(lambda t, w: F.embedding(t, w, padding_idx=padding), isolate_recompiles=True)
    built, (got,) = modules(lambda: torch.autograd.grad(compiled(tokens, weight), weight, tangent))
    assert not any(isinstance(s, Extern) for m in built for s in m.schedule.steps)
    wanted = torch.zeros(50257, 768, device="cuda", dtype=torch.float64).index_add(0, tokens.view(-1), tangent.double().view(-1, 768))
    if padding is not None:
        wanted[padding] = 0
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-3)


def test_varying_numbers_of_places():
    compiled = dynacompile.compile(lambda x, i, v: x.index_add(0, i, v * 2), isolate_recompiles=True, dynamic=True)
    for count in (3000, 5001, 1 << 16):
        x, i, v = torch.randn(200, 33, device="cuda"), rows_of(200, count), torch.randn(count, 33, device="cuda")
        torch.testing.assert_close(compiled(x, i, v).double(), x.double().index_add(0, i, v.double() * 2), rtol=1e-4, atol=1e-2)


def test_deterministic_sums_are_the_same_every_time():
    x, i, v = torch.zeros(8, device="cuda"), rows_of(8, 1 << 16), torch.randn(1 << 16, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        compiled = dynacompile.compile(lambda x, i, v: x.index_add(0, i, v), isolate_recompiles=True)
        results = [compiled(x, i, v) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(r, results[0]) for r in results)


@pytest.mark.parametrize("width", [64, 256])
def test_an_embedding_behind_a_norm_trains(width):
    """The gradient of the embedding adds to memory, that of the norm's weight sums over rows: no kernel does both."""
    torch.manual_seed(0)
    embedding, norm = torch.nn.Embedding(512, width, device="cuda"), torch.nn.RMSNorm(width, device="cuda")
    tokens = rows_of(512, 2, 64)
    grads = []
    for wrap in (lambda fn: fn, lambda fn: dynacompile.compile(fn, isolate_recompiles=True, fullgraph=True)):
        loss = wrap(lambda t: norm(embedding(t)).sin().square().sum())(tokens)
        grads.append(torch.autograd.grad(loss, (embedding.weight, norm.weight)))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
