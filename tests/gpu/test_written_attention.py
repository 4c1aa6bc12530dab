"""Hand-written attention and flex_attention on a GPU: torch's kernels, values no worse than eager's against float64, and no memory for scores."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

import dynacompile
from dynacompile.events import AttentionFound, GraphBroke, MaskRead

pytestmark = pytest.mark.gpu
FUSED = ("flash", "sdpa", "fmha", "attention")


def plain(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v


def triangle(q, k, v, mask):
    below = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.softmax((q @ k.transpose(-2, -1) * 0.125).masked_fill(~below, -math.inf), dim=-1, dtype=torch.float32).to(q.dtype) @ v


def filled(q, k, v, mask):
    return (q @ k.transpose(-2, -1) * 0.125).masked_fill(mask, -math.inf).softmax(-1) @ v


def filled_by_a_number(q, k, v, mask):
    return (q @ k.transpose(-2, -1) * 0.125).masked_fill(mask, torch.finfo(q.dtype).min).softmax(-1) @ v


def batches(q, k, v, mask):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(0.125).softmax(-1), v)


def grouped(q, k, v, mask):
    return plain(q, k[:, :2].repeat_interleave(2, 1), v[:, :2].repeat_interleave(2, 1), mask)


FORMS = (plain, triangle, filled, filled_by_a_number, batches, grouped)


def inputs(n, dtype, grad=True):
    generator = torch.Generator("cuda").manual_seed(n)
    made = [torch.randn(2, 4, n, 64, device="cuda", generator=generator, dtype=dtype).requires_grad_(grad) for _ in range(3)]
    hidden = torch.rand(2, 1, n, n, device="cuda", generator=generator) < 0.3
    hidden[..., 0] = False
    hidden[0, 0, 5] = True  # a query that sees nothing
    return made, hidden


def step(fn, operands, mask):
    out = fn(*operands, mask)
    grown = [t for t in operands if t.requires_grad]
    return [out, *(torch.autograd.grad(out, grown, torch.ones_like(out).cumsum(-1) / 64) if grown else ())]


def observed(fn, operands, mask, **options):
    events = []
    dynacompile.reset()
    compiled = dynacompile.compile(fn, isolate_recompiles=True, **options)
    end = dynacompile.subscribe(events.append)
    made = step(compiled, operands, mask)
    end()
    assert not [e for e in events if isinstance(e, GraphBroke)]
    return compiled, made, events


def kernels(fn, operands, mask):
    step(fn, operands, mask)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as run:
        step(fn, operands, mask)
        torch.cuda.synchronize()
    return {e.name for e in run.events()}


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_kernels_and_values(form, dtype, grad):
    operands, mask = inputs(192, dtype, grad)
    compiled, made, events = observed(form, operands, mask)
    assert [e.kernel for e in events if isinstance(e, AttentionFound)] == [True]
    wide = [t.detach().double().requires_grad_(grad) for t in operands]
    for have, want, best in zip(made, step(form, operands, mask), step(form, wide, mask), strict=True):
        assert torch.equal(have.isnan(), want.isnan())
        finite = want.isfinite() & best.isfinite()
        errors = [(t.double() - best)[finite].abs().max().item() if finite.any() else 0.0 for t in (have, want)]
        allowed = 2 * errors[1] + 4 * torch.finfo(dtype).eps * (best[finite].abs().max().item() if finite.any() else 0.0)
        assert errors[0] <= allowed, f"wrong by {errors[0]:g}, eager by {errors[1]:g}"
    names = kernels(compiled, operands, mask)
    assert any(part in name.lower() for name in names for part in FUSED), names


def test_single_precision_stays_as_written():
    operands, mask = inputs(64, torch.float32)
    events = observed(plain, operands, mask)[2]
    assert [(e.kernel, e.reason) for e in events if isinstance(e, AttentionFound)] == [(False, "torch's operator is not known to be faster here")]


@pytest.mark.parametrize("bias", [-math.inf, torch.finfo(torch.bfloat16).min], ids=["infinity", "lowest"])
def test_biases_that_hide_all_keys_of_a_query(bias):
    """Kernels multiply by log2(e), where the lowest number would become minus infinity."""

    def form(q, k, v, mask):
        hidden = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, bias)
        return (q @ k.transpose(-2, -1) * 0.125 + hidden).softmax(-1) @ v

    operands, mask = inputs(128, torch.bfloat16, False)
    _, (have,), events = observed(form, operands, mask)
    assert [e.kernel for e in events if isinstance(e, AttentionFound)] == [True]
    torch.testing.assert_close(have, form(*operands, mask), rtol=2e-2, atol=2e-2, equal_nan=True)


def test_under_autocast():
    def form(q, k, v, mask):
        with torch.autocast("cuda", torch.bfloat16):
            return triangle(q, k, v, mask)

    operands, mask = inputs(128, torch.float32)
    _, made, events = observed(form, operands, mask)
    assert [e.kernel for e in events if isinstance(e, AttentionFound)] == [True]
    assert [e.found for e in events if isinstance(e, MaskRead)] == ["causal"]
    for have, want in zip(made, step(form, operands, mask), strict=True):
        torch.testing.assert_close(have, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("form", [plain, triangle, filled], ids=lambda f: f.__name__)
def test_no_memory_for_scores(form):
    rows = 4096
    generator = torch.Generator("cuda").manual_seed(0)
    operands = [torch.randn(1, 8, rows, 64, device="cuda", generator=generator, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    mask = torch.zeros(1, 1, rows, rows, dtype=torch.bool, device="cuda")
    compiled = observed(form, operands, mask)[0]
    step(compiled, operands, mask)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(compiled, operands, mask)
    peak = torch.cuda.max_memory_allocated() - before
    scores = 8 * rows * rows * 2
    assert peak < scores // 2, f"{peak} bytes, and scores of {scores}"


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 40)


SLOPES = 0.05


def falling(score, b, h, q, k):
    return score - SLOPES * (h + 1) * (q - k)


@pytest.mark.parametrize("score", [None, falling], ids=["", "score"])
@pytest.mark.parametrize("mask", [None, causal, window], ids=lambda m: getattr(m, "__name__", "all"))
def test_flex_attention(mask, score):
    block = None if mask is None else create_block_mask(mask, None, None, 192, 192, device="cuda")

    def form(q, k, v, _):
        return flex_attention(q, k, v, score_mod=score, block_mask=block)

    operands, _ = inputs(192, torch.bfloat16)
    compiled, made, events = observed(form, operands, None)
    assert [(e.kernel, e.ours) for e in events if isinstance(e, AttentionFound)] == [(True, mask is not None or score is not None)]
    assert [e.found for e in events if isinstance(e, MaskRead)] == ([] if mask is None or score is not None else ["causal" if mask is causal else "kept"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = step(form, operands, None)
    for have, want in zip(made, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=3e-2, atol=3e-2)
    assert any(part in name.lower() for name in kernels(compiled, operands, None) for part in FUSED)


def test_gradients_of_what_a_function_of_scores_reads():
    table = torch.randn(4, 256, device="cuda", requires_grad=True)

    def biased(score, b, h, q, k):
        return score + table[h, q - k + 128]

    def form(q, k, v, table):
        return flex_attention(q, k, v, score_mod=biased)

    operands, _ = inputs(128, torch.float32)
    compiled = dynacompile.compile(form, fullgraph=True, isolate_recompiles=True)
    results = []
    for call in (compiled, form):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = call(*operands, table)
            results.append([out, *torch.autograd.grad(out.sin().sum(), [*operands, table])])
    torch.testing.assert_close(*results, rtol=2e-3, atol=2e-3)
