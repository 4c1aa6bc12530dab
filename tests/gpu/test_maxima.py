"""Gradients of maxima on the GPU: the backward finds the maximum of a row among the row's elements, which it may have computed again in a kernel of its own."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile

pytestmark = pytest.mark.gpu

ROWS = {
    "differences of products": lambda x: x * 0.1 - (x * x) * 0.7,
    "norm": lambda x: F.layer_norm(x.cumsum(1) * 0.1, (x.shape[-1],)),
    "scaled and added": lambda x: F.normalize(F.pad(x, (2, 1)), dim=0).mul(3).add(x.mean()),
    "sigmoid": lambda x: x.sigmoid() * 0.7 + x * 0.3,
    "softmax": lambda x: x.softmax(-1) * 3 + x.softmax(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kept", [True, False], ids=["results kept", "results dropped"])
@pytest.mark.parametrize("rows", ROWS)
def test_the_maximum_of_a_row_is_found_in_it(rows, kept, dynamic, dtype):
    def fn(x):
        t = ROWS[rows](x)
        return (t.amax(-1), t.amin(0), t) if kept else (t.amax(-1), t.amin(0))

    x = torch.randn(300, 700, device="cuda", dtype=dtype, requires_grad=True)
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=dynamic)
    got, wanted = (torch.autograd.grad([t.sum() for t in run(x)[:2]], x)[0] for run in (compiled, fn))
    assert got.isfinite().all()
    if dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_of_maxima_has_one_in_each_row():
    x = torch.randn(20000, 700, device="cuda")

    def fn(x):
        t = x.softmax(-1) * 0.3 + x.sigmoid() * 0.1
        return t == t.amax(-1, keepdim=True), t * 2

    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    assert compiled(x)[0].sum(-1).ge(1).all()
