"""torch's flex_attention: functions of scores and places, block masks, what they read, and gradients; never a graph break."""

from __future__ import annotations

import functools
import math
import warnings

import pytest
import torch
from torch import nn
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, create_mask, flex_attention, noop_mask, or_masks

import dynacompile
from dynacompile.events import AttentionFound, FrameSkipped, GraphBroke, MaskRead, Recompiled
from tests.attention_kernels import on_cpu

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 40, 16
generator = torch.Generator().manual_seed(0)
BIAS = torch.randn(HEADS, LENGTH, LENGTH, generator=generator, requires_grad=True)
SLOPES = torch.rand(HEADS, generator=generator)
DOCUMENTS = torch.randint(0, 3, (BATCH, LENGTH), generator=generator)
LENGTHS = torch.tensor([LENGTH, 7])


def causal(b, h, q, k):
    return q >= k


def strict(b, h, q, k):
    """The first query sees nothing."""
    return q > k


def window(b, h, q, k):
    return (q - k).abs() < 3


def same_document(b, h, q, k):
    return DOCUMENTS[b, q] == DOCUMENTS[b, k]


def padded(b, h, q, k):
    return k < LENGTHS[b]


def by_head(b, h, q, k):
    return torch.where(h % 2 == 0, q >= k, q <= k)


MASKS = (None, noop_mask, causal, strict, window, same_document, padded, by_head, and_masks(causal, window), or_masks(window, same_document))


def relative(score, b, h, q, k):
    return score + (q - k) * 0.1


def biased(score, b, h, q, k):
    return score + BIAS[h, q, k]


def biased_in_steps(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def capped(score, b, h, q, k):
    return 2.0 * torch.tanh(score / 2.0)


def hiding(score, b, h, q, k):
    return torch.where(q >= k, score, -math.inf)


SCORES = (None, relative, biased, biased_in_steps, capped, hiding, functools.partial(relative))


@pytest.fixture(autouse=True)
def warnings_of_eager(monkeypatch):
    """Eager computes what is not compiled, and says so; on the CPU it has no gradients, which are compared with those of its definition here."""
    monkeypatch.setattr(flex, "_validate_device", lambda *operands: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_definition(query, key, value, score_mod, block_mask, scale, kernel_options):
    out, sums, largest = math_attention(query, key, value, score_mod, block_mask, scale, kernel_options)
    return out, sums, largest.detach()


def operands(grad, heads=HEADS, dtype=torch.float32):
    seeded = torch.Generator().manual_seed(1)
    sizes = [(BATCH, h, LENGTH, WIDTH) for h in (HEADS, heads, heads)]
    return [torch.randn(size, generator=seeded).to(dtype).requires_grad_(grad) for size in sizes]


def results(call, leaves):
    made = call(*leaves)
    made = made if isinstance(made, tuple) else (made,)
    grown = [t for t in made if t.requires_grad]
    if not grown:
        return list(made)
    return [
        *made,
        *torch.autograd.grad(grown, [t for t in (*leaves, BIAS) if t.requires_grad], [t.detach().clamp(-3, 3).cos() for t in grown], allow_unused=True),
    ]


def check(form, leaves, monkeypatch, backend="aot_eager", scores=0, near=2e-5, dynamic=None):
    """What was decided, where results are eager's, and the function became one graph."""
    events = []
    dynacompile.reset()
    options = {"attention_scores": scores}
    compiled = dynacompile.compile(form, backend=backend, isolate_recompiles=True, dynamic=dynamic, options=options)
    end = dynacompile.subscribe(events.append)
    have = results(compiled, leaves)
    end()
    with monkeypatch.context() as patched:
        if have[0].requires_grad:
            patched.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
            patched.setattr(flex, "flex_attention_hop", by_definition)
        want = results(form, leaves)
    assert len(have) == len(want)
    for one, other in zip(have, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=near)
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    return [e.kernel for e in events if isinstance(e, AttentionFound)], [e.found for e in events if isinstance(e, MaskRead)]


def name_of(function):
    return getattr(function, "__name__", "none" if function is None else "partial")


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
def test_masks(mask, grad, monkeypatch):
    block = None if mask is None else create_block_mask(mask, BATCH, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)

    def form(q, k, v):
        return flex_attention(q, k, v, block_mask=block)

    assert check(form, operands(grad), monkeypatch, scores=1 << 18) == ([False], [])
    kernel, read = check(form, operands(grad), monkeypatch, scores=1)
    assert kernel == [True]
    assert read == ([] if mask in (None, noop_mask) else ["causal"] if mask is causal else ["kept"])


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", [None, strict, same_document], ids=name_of)
@pytest.mark.parametrize("score", SCORES[1:], ids=name_of)
def test_functions_of_scores(score, mask, grad, monkeypatch):
    block = None if mask is None else create_block_mask(mask, BATCH, None, LENGTH, LENGTH, device="cpu")

    def form(q, k, v):
        return flex_attention(q, k, v, score_mod=score, block_mask=block)

    assert check(form, operands(grad), monkeypatch) == ([False], [])


@pytest.mark.parametrize("score", [biased, capped], ids=name_of)
def test_built(score, monkeypatch):
    block = create_block_mask(same_document, BATCH, None, LENGTH, LENGTH, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=block), operands(True), monkeypatch, backend="default")


@pytest.mark.parametrize("mask", [causal, window, same_document, and_masks(causal, padded)], ids=name_of)
def test_masks_that_the_frame_makes(mask, monkeypatch):
    def form(q, k, v):
        block = create_block_mask(mask, BATCH, None, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=block)

    check(form, operands(True), monkeypatch)


def test_masks_and_their_parts_are_results():
    def form(q):
        block = create_block_mask(same_document, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
        return create_mask(causal, None, None, 5, 7, device="cpu"), create_mask(hiding, 1, 2, 5, 5, device="cpu"), block.kv_num_blocks, block.kv_indices

    compiled = dynacompile.compile(form, backend="aot_eager", fullgraph=True, isolate_recompiles=True)
    for have, want in zip(compiled(torch.ones(())), form(torch.ones(())), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", [None, causal, strict], ids=name_of)
def test_grouped_heads_and_what_goes_with_the_result(mask, grad, monkeypatch):
    block = None if mask is None else create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")

    def grouped(q, k, v):
        return flex_attention(q, k, v, block_mask=block, scale=0.3, enable_gqa=True, kernel_options={"BLOCK_M": 32})

    def with_sums(q, k, v):
        return flex_attention(q, k, v, relative, block, return_lse=True)

    def with_auxiliary(q, k, v):
        out, more = flex_attention(q, k, v, score_mod=biased, block_mask=block, return_aux=AuxRequest(lse=True))
        assert more.max_scores is None
        return out, more.lse

    check(grouped, operands(grad, heads=2), monkeypatch)
    check(with_sums, operands(grad), monkeypatch)
    check(with_auxiliary, operands(grad), monkeypatch)


@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_scales_that_are_not_positive(scale, grad, monkeypatch):
    block = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    assert check(lambda q, k, v: flex_attention(q, k, v, block_mask=block, scale=scale), operands(grad), monkeypatch, scores=1)[0] == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_scores_that_are_whole_numbers_or_truth_values(dtype, monkeypatch):
    block = create_block_mask(strict, None, None, LENGTH, LENGTH, device="cpu")
    for score in (lambda s, b, h, q, k: q - k, lambda s, b, h, q, k: q >= k):
        for mask in (None, block):
            near = 2e-2 if dtype == torch.bfloat16 else 1e-5
            check(lambda q, k, v, score=score, mask=mask: flex_attention(q, k, v, score, mask), operands(False, dtype=dtype), monkeypatch, near=near)


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("score", [None, relative, hiding], ids=name_of)
def test_queries_whose_scores_are_all_minus_infinity_have_no_gradient(score, backend, monkeypatch):
    """Torch's own gradient of the operator, which is not that of its definition, and which eager takes on devices that have it."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query, key, value = (t.detach() for t in operands(True))
    query[:, :, 3], key = -math.inf, key.abs() + 0.1
    leaves = [t.requires_grad_() for t in (query, key, value)]

    def form(q, k, v):
        return flex_attention(q, k, v, score_mod=score, return_lse=True)

    expected = results(form, leaves)
    assert expected[0][:, :, 3].eq(0).all() and expected[2][:, :, 3].eq(0).all()
    for have, want in zip(results(dynacompile.compile(form, backend=backend, fullgraph=True), leaves), expected, strict=True):
        assert (have is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_the_layout_of_the_result_is_that_of_the_queries(monkeypatch):
    def form(q, k, v):
        turned = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
        return flex_attention(*turned, block_mask=block)

    block = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    compiled = dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True)
    leaves = operands(False)
    assert compiled(*leaves).stride() == form(*leaves).stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype, monkeypatch):
    block = create_block_mask(padded, BATCH, None, LENGTH, LENGTH, device="cpu")
    for score, scores in ((relative, 0), (None, 1)):
        near = 1e-10 if dtype == torch.float64 else 2e-2
        check(lambda q, k, v, score=score: flex_attention(q, k, v, score, block), operands(False, dtype=dtype), monkeypatch, scores=scores, near=near)


def test_autocast(monkeypatch):
    def form(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, relative)

    check(form, operands(False), monkeypatch, near=2e-2)


def test_a_parameter_that_a_function_of_scores_reads(monkeypatch):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Parameter(torch.randn(HEADS, 2 * LENGTH)), nn.Linear(WIDTH, 3 * WIDTH)

        def forward(self, x):
            def score(s, b, h, q, k):
                return s + self.table[h, q - k + LENGTH]

            return flex_attention(*self.inner(x).chunk(3, -1), score_mod=score)

    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    compiled = dynacompile.compile(layer, backend="aot_eager", fullgraph=True, isolate_recompiles=True)
    grads = []
    for call in (compiled, layer):
        with monkeypatch.context() as patched:
            if call is layer:
                patched.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
                patched.setattr(flex, "flex_attention_hop", by_definition)
            layer.zero_grad()
            call(x).sin().sum().backward()
            grads.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_one_program_serves_all_lengths():
    def form(q, k, v):
        return flex_attention(q, k, v, score_mod=relative)

    dynacompile.reset()
    compiled = dynacompile.compile(form, backend="aot_eager", dynamic=True, fullgraph=True)
    for length in (5, 9, 17):
        leaves = [torch.randn(BATCH, HEADS, length, WIDTH) for _ in range(3)]
        torch.testing.assert_close(compiled(*leaves), form(*leaves))


@pytest.mark.parametrize("form", [
    lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]),
    lambda q, k, v: flex_attention(q[0], k[0], v[0]),
    lambda q, k, v: flex_attention(q, k[..., :4], v),
    lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 8, 8, device="cpu")),
    lambda q, k, v: flex_attention(q, k, v, kernel_options={"BACKEND": "no such"}),
    lambda q, k, v: flex_attention(q, k, v, return_aux=AuxRequest(max_scores=True)),
], ids=["heads", "dimensions", "width", "lengths of the mask", "options", "not on the CPU"])  # fmt: skip
def test_what_eager_refuses_is_eagers_error(form):
    compiled = dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True)
    found = []
    for call in (compiled, form):
        with pytest.raises((ValueError, NotImplementedError, RuntimeError)) as error:
            call(*operands(False))
        found.append((error.type, str(error.value)))
    assert found[0] == found[1]


def test_gradients_on_the_cpu_are_eagers_error(monkeypatch):
    monkeypatch.undo()
    compiled = dynacompile.compile(flex_attention, backend="aot_eager", isolate_recompiles=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        compiled(*operands(True))


@pytest.fixture
def kernels():
    """Programs for the CPU take the kernels' operators, which run as they are defined."""
    with on_cpu():
        yield


def decided(form, leaves, **options):
    events = []
    dynacompile.reset()
    end = dynacompile.subscribe(events.append)
    made = dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True, options=options)(*leaves)
    end()
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    (found,) = [e for e in events if isinstance(e, AttentionFound)]
    return found, made


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", [None, strict, same_document], ids=name_of)
@pytest.mark.parametrize("score", [score for score in SCORES if score is not None], ids=name_of)
def test_functions_for_kernels(score, mask, grad, kernels, monkeypatch):
    """What does not depend on places is computed before, the rest is a function of points, and its derivative, too."""
    block = None if mask is None else create_block_mask(mask, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)

    def form(q, k, v):
        return flex_attention(q, k, v, score_mod=score, block_mask=block)

    assert decided(form, operands(grad))[0].ours
    check(form, operands(grad), monkeypatch)


def test_numbers_beside_places(kernels, monkeypatch):
    def score(s, b, h, q, k):
        return s + FIXED[1, q, k] + FIXED[h, -1, k] + FIXED[h][q][k]

    check(lambda q, k, v: flex_attention(q, k, v, score_mod=score), operands(False), monkeypatch)
    assert decided(lambda q, k, v: flex_attention(q, k, v, score_mod=score), operands(False))[0].ours


TABLE, FIXED = torch.randn(LENGTH, generator=generator), BIAS.detach()


def summed_before(s, b, h, q, k):
    return s + TABLE[(q >= k).to(torch.int64)] + FIXED.cumsum(0)[h, q, k]


def by_rows(s, b, h, q, k):
    return s + FIXED[h, q].cumsum(0)[k]


def doubled(s, b, h, q, k):
    return s.double()


def deterministic(form, leaves):
    torch.use_deterministic_algorithms(True)
    try:
        return decided(form, leaves)[0]
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_kernels_do_not_take_is_named(kernels):
    def form(score):
        return lambda q, k, v: flex_attention(q, k, v, score_mod=score)

    leaves = operands(True)
    assert decided(form(summed_before), leaves)[0].ours  # a sum that does not depend on places is computed before
    reasons = {
        "scores does aten.index.Tensor of tensors with dimensions": decided(form(by_rows), leaves)[0],
        "not a number of float32": decided(form(doubled), leaves)[0],
        "no dtype, or several": decided(form(relative), operands(False, dtype=torch.float64))[0],
        "deterministic": deterministic(form(biased), leaves),
        "rounded as in eager": decided(form(relative), operands(False, dtype=torch.bfloat16), precise=True)[0],
        "more than 512 elements": decided(form(relative), [torch.randn(1, 1, 4, 513) for _ in range(3)])[0],
    }
    for reason, found in reasons.items():
        assert not found.ours and reason in found.reason, (reason, found)


def test_a_backward_that_is_differentiated_again(kernels):
    def form(q, k, v):
        return flex_attention(q, k, v, score_mod=biased, block_mask=block)

    block = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    leaves, found = operands(True), []
    for call in (dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True), by_composition(form)):
        grads = torch.autograd.grad(call(*leaves).sin().sum(), (*leaves, BIAS), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in grads), (*leaves, BIAS)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def by_composition(form):
    """In operations that autograd differentiates any number of times."""

    def call(q, k, v):
        scores = q @ k.mT / math.sqrt(WIDTH) + BIAS
        return torch.where(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), scores, -math.inf).softmax(-1) @ v

    return call


def test_one_program_serves_all_block_masks_of_a_size(kernels):
    def form(q, k, v, block):
        return flex_attention(q, k, v, score_mod=relative, block_mask=block)

    events = []
    ends = torch.tensor([3, 30])
    compiled = dynacompile.compile(form, backend="aot_eager", fullgraph=True, isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    for last in (3, 17, 40):
        ends.fill_(last)
        block = create_block_mask(lambda b, h, q, k: k < ends[b], BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
        leaves = operands(False)
        want = torch.where(torch.arange(LENGTH) < last, leaves[0] @ leaves[1].mT / 4 + 0.1 * (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)), -math.inf)
        torch.testing.assert_close(compiled(*leaves, block), want.softmax(-1) @ leaves[2], rtol=1e-4, atol=1e-5)
    end()
    assert not [e for e in events if isinstance(e, Recompiled)]
