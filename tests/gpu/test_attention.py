"""Attention whose mask is known while compiling runs the kernel that torch chooses without a mask; other masks run the kernel that eager runs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import dynacompile
from dynacompile.events import MaskRead

pytestmark = pytest.mark.gpu
LOWEST = torch.finfo(torch.float32).min


def of_ones(n, dtype):
    kept = torch.ones(2, n, device="cuda")
    return ((1.0 - kept[:, None, None, :].expand(2, 1, n, n)) * LOWEST).to(dtype)


def boolean(n, dtype):
    return torch.ones(2, 1, 1, n, dtype=torch.bool, device="cuda").expand(2, 1, n, n)


def one_column(n, dtype):
    """Its last stride is 0, which no fused kernel takes."""
    return torch.zeros(1, device="cuda", dtype=dtype).expand(2, 1, n, n)


def triangle(n, dtype):
    return torch.ones(n, n, dtype=torch.bool, device="cuda").tril()


def counted(n, dtype):
    rows, columns = torch.arange(n, device="cuda")[:, None], torch.arange(n, device="cuda")
    return torch.where(columns > rows, torch.finfo(dtype).min, 0.0).to(dtype)


def banded(n, dtype):
    distance = torch.arange(n, device="cuda")[:, None] - torch.arange(n, device="cuda")
    return (distance >= 0) & (distance < 64)


def inputs(n, dtype):
    generator = torch.Generator("cuda").manual_seed(n)
    return [torch.randn(2, 4, n, 64, device="cuda", generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def step(fn, args):
    out = fn(*args)
    grads = torch.autograd.grad(out.float().square().sum(), args)
    return out, *grads


def kernels(fn, args):
    """The names of the kernels of attention that a step runs, and of products in batches."""
    step(fn, args)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as run:
        step(fn, args)
        torch.cuda.synchronize()
    return {name for e in run.events() if any(part in (name := e.name) for part in ("flash", "sdpa", "fmha", "gemm", "nvjet", "cutlass"))}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("mask", "want"), [(of_ones, "all"), (boolean, "all"), (one_column, "all"), (triangle, "causal"), (counted, "causal"), (banded, "kept")]
)
def test_kernels_and_values(mask, want, dtype):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2], dtype))

    def known(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2], dtype) if want == "kept" else None, is_causal=want == "causal")

    args = inputs(256, dtype)
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    got = step(compiled, args)
    end()
    assert [e.found for e in events if isinstance(e, MaskRead)] == [want]
    near = 2e-2 if dtype != torch.float32 else 2e-3
    for ours, eagers in zip(got, step(fn, args), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=near, atol=near)
    assert kernels(compiled, args) == kernels(known, args)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_under_autocast(dynamic):
    """A bias in float32 is cast beside queries in bfloat16."""

    def fn(q, k, v):
        with torch.autocast("cuda", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=of_ones(q.shape[-2], torch.float32))

    def known(q, k, v):
        with torch.autocast("cuda", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v)

    args = inputs(128, torch.float32)
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=dynamic)
    for ours, eagers in zip(step(compiled, args), step(fn, args), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=3e-2, atol=3e-2)
    assert {k for k in kernels(compiled, args) if "sdpa" in k or "flash" in k or "fmha" in k} == {
        k for k in kernels(known, args) if "sdpa" in k or "flash" in k or "fmha" in k
    }


@pytest.mark.parametrize("made", ["in the graph", "outside"])
def test_a_transposed_mask_runs_a_fused_kernel(made):
    """Eager falls back to products and a softmax, since fused kernels ask for rows side by side."""

    def fn(q, k, v, mask):
        mask = banded(q.shape[-2], q.dtype) if mask is None else mask
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.t())

    args = inputs(128, torch.bfloat16)
    mask = None if made == "in the graph" else banded(128, torch.bfloat16)
    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    given = [*args, mask]

    def attend(call):
        return lambda *tensors: call(*tensors, given[-1])

    for ours, eagers in zip(step(attend(compiled), args), step(attend(fn), args), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=2e-2, atol=2e-2)
    names = kernels(attend(compiled), args)
    assert any(part in name for name in names for part in ("sdpa", "fmha", "flash")), names


def test_dropout_draws_what_eager_draws():
    """The mask stays, since kernels draw their random numbers in their own ways."""

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=of_ones(q.shape[-2], torch.bfloat16), dropout_p=0.25)

    args = inputs(128, torch.bfloat16)
    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    torch.manual_seed(0)
    want = step(fn, args)
    torch.manual_seed(0)
    for ours, eagers in zip(step(compiled, args), want, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=2e-2, atol=2e-2)
