"""flex_attention by the generated kernels on a GPU: the cases and random programs of the interpreter's tests, sizes of models, deterministic sums, memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import dynacompile
from dynacompile.events import AttentionFound, FrameSkipped, GraphBroke, Recompiled
from tests.codegen.attention_cases import CASES
from tests.fuzz.flexible import check, generate

pytestmark = pytest.mark.gpu
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    (event,), _ = check(replace(CASES[name], device="cuda"))
    assert event.ours, event.reason


@pytest.mark.parametrize("seed", range(2000, 2016))
def test_random_programs(seed):
    check(replace(generate(seed), device="cuda"))


@dataclass(frozen=True)
class Form:
    """Attention at the size of a model. width: of heads; mask, score: names; groups: heads of keys."""

    width: int
    dtype: torch.dtype
    mask: str = "window"
    score: str = "falling"
    lengths: tuple[int, int] = (1024, 1024)
    groups: int = 4
    batch: int = 2
    heads: int = 4

    def __str__(self) -> str:
        names = str(self.dtype).removeprefix("torch."), self.mask, self.score
        return f"{'-'.join(names)}-{self.heads}/{self.groups}x{'x'.join(map(str, (*self.lengths, self.width)))}"

    def operands(self) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(self.width)
        sizes = (self.heads, self.lengths[0]), (self.groups, self.lengths[1]), (self.groups, self.lengths[1])
        return [torch.randn(self.batch, *size, self.width, device="cuda", generator=generator).to(self.dtype).requires_grad_() for size in sizes]

    def reads(self) -> list[torch.Tensor]:
        """What the function of scores reads and has a gradient."""
        generator = torch.Generator("cuda").manual_seed(1)
        queries, keys = self.lengths
        size = {"bias": (self.heads, queries, keys), "table": (self.heads, queries + keys), "keys": (keys,)}.get(self.score)
        return [] if size is None else [torch.randn(size, device="cuda", generator=generator).requires_grad_()]

    def mask_mod(self) -> Callable | None:
        documents = torch.arange(max(self.lengths), device="cuda") // 300
        return {
            "all": None,
            "causal": lambda b, h, q, k: q >= k,
            "window": lambda b, h, q, k: (q >= k) & (q - k < 200),
            "documents": lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k),
            "strict": lambda b, h, q, k: q > k,
        }[self.mask]

    def score_mod(self, read: list[torch.Tensor]) -> Callable | None:
        keys = self.lengths[1]
        return {
            "": None,
            "falling": lambda s, b, h, q, k: s - 0.01 * (h + 1) * (q - k).abs(),
            "softcap": lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0),
            "bias": lambda s, b, h, q, k: s + read[0][h, q, k],
            "table": lambda s, b, h, q, k: s + read[0][h, q - k + keys - 1],
            "keys": lambda s, b, h, q, k: s * (1 + 0.2 * read[0][k]),
        }[self.score]

    def call(self) -> Callable:
        mask = self.mask_mod()
        block = None if mask is None else create_block_mask(mask, None, None, *self.lengths, device="cuda")

        def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
            return flex_attention(query, key, value, self.score_mod(list(read)), block, enable_gqa=self.groups != self.heads)

        return call

    def whole(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
        """All scores at once, as the definition has them."""
        wide = torch.promote_types(query.dtype, FP32)
        key, value = (t.repeat_interleave(self.heads // self.groups, 1) for t in (key, value))
        scores = query.to(wide) @ key.to(wide).mT / math.sqrt(self.width)
        b, h, q, k = (torch.arange(n, device="cuda").reshape([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(scores.shape))
        score, mask = self.score_mod(list(read)), self.mask_mod()
        scores = scores if score is None else score(scores, b, h, q, k).to(wide)
        scores = scores if mask is None else torch.where(mask(b, h, q, k), scores, -math.inf)
        unseen = (scores == -math.inf).all(-1, keepdim=True)
        return scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0).to(query.dtype) @ value


FORMS = (
    *(Form(width, dtype, "causal", score) for width in (64, 128) for dtype in (BF16, FP16, FP32) for score in ("falling", "table")),
    *(Form(64, dtype, "window", "bias", (512, 512)) for dtype in (BF16, FP32)),
    *(Form(64, dtype, "documents", "keys", (1000, 1000)) for dtype in (BF16, FP16, FP32)),
    *(Form(width, dtype, "window", "falling", (257, 515)) for width in (40, 80, 256) for dtype in (BF16, FP32)),
    Form(512, BF16, "causal", "softcap", (256, 256)),
    Form(512, FP32, "causal", "softcap", (256, 256)),
    Form(64, BF16, "all", "softcap", (1000, 333)),
    Form(64, BF16, "strict", "", (777, 777)),
    Form(64, BF16, "window", "", (1024, 1024), groups=2, heads=8),
    Form(128, FP16, "causal", "table", (640, 640), groups=1, heads=4),
    Form(64, FP32, "causal", "falling", (333, 333), groups=3, heads=6),
    Form(64, BF16, "causal", "falling", (1, 2000)),
)


def step(call: Callable, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    made = call(*leaves)
    tangent = torch.randn(made.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)).to(made.dtype)
    return [made.detach(), *torch.autograd.grad(made, leaves, tangent)]


def compiled(form: Form, **options) -> tuple[Callable, list]:
    """A function that compiles at its first call, and the events."""
    events: list = []
    dynacompile.reset()
    dynacompile.subscribe(events.append)
    return dynacompile.compile(form.call(), isolate_recompiles=True, **options), events


def decision(events: list) -> AttentionFound:
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    return next(e for e in events if isinstance(e, AttentionFound))


def check_errors(form: Form, have: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
    """Not much further from float64 than the definition in the dtype is."""
    want = step(form.whole, leaves)
    best = step(form.whole, [t.detach().double().requires_grad_() for t in leaves])
    for i, (one, other, right) in enumerate(zip(have, want, best, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.isfinite().all(), f"result {i}"
        errors = [(t.double() - right).abs().max().item() for t in (one, other)]
        allowed = 3 * errors[1] + 8 * max(torch.finfo(form.dtype).eps, 5e-7) * max(right.abs().max().item(), 1.0)
        assert errors[0] <= allowed, f"result {i}: wrong by {errors[0]:g}, all at once by {errors[1]:g}"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sizes_of_models(form):
    leaves = [*form.operands(), *form.reads()]
    call, events = compiled(form)
    have = step(call, leaves)
    found = decision(events)
    assert found.kernel and found.ours, found.reason
    check_errors(form, have, leaves)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_products_with_tf32_where_the_setting_allows_them(dtype):
    """The setting is guarded, and changes products of float32 alone."""
    form = Form(64, dtype, lengths=(512, 512))
    leaves = form.operands()
    call, events = compiled(form)
    before = torch.backends.cuda.matmul.fp32_precision
    exact = step(call, leaves)
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        have = step(call, leaves)
    finally:
        torch._C._set_fp32_precision_setter("cuda", "matmul", before)  # the property does not take back the default
    differs = [not torch.equal(one, other) for one, other in zip(have, exact, strict=True)]
    assert all(differs) if dtype == FP32 else not any(differs)
    for one, other in zip(have, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("score", ["falling", "table"])
def test_every_tile_gives_the_same(score):
    """max-autotune builds all tiles, checks them against each other, and chooses."""
    form = Form(64, BF16, "causal", score, (640, 640))
    leaves = [*form.operands(), *form.reads()]
    call, events = compiled(form, mode="max-autotune")
    have = step(call, leaves)
    assert decision(events).ours
    check_errors(form, have, leaves)


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize(("score", "ours"), [("falling", True), ("softcap", True), ("table", False), ("keys", False)])
def test_deterministic_algorithms(deterministic, score, ours):
    """Kernels add gradients of what a function reads in no fixed order, and so leave those programs to others; all else is the same to the bit every time."""
    form = Form(64, BF16, "causal", score, (512, 512))
    leaves = [*form.operands(), *form.reads()]
    call, events = compiled(form)
    first = step(call, leaves)
    assert decision(events).ours == ours
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(step(call, leaves), first, strict=True))
    check_errors(form, first, leaves)


def test_a_program_that_was_compiled_without_deterministic_algorithms_is_not_theirs():
    form = Form(64, BF16, "causal", "table", (256, 256))
    leaves = [*form.operands(), *form.reads()]
    call, events = compiled(form)
    step(call, leaves)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, second = step(call, leaves), step(call, leaves)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [e.ours for e in events if isinstance(e, AttentionFound)] == [True, False]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_one_program_serves_all_lengths():
    form = Form(64, BF16, "all", "falling")
    call, events = compiled(form, dynamic=True)
    for lengths in ((100, 300), (257, 64), (1024, 1024), (1000, 999)):
        own = replace(form, lengths=lengths)
        leaves = own.operands()
        check_errors(own, step(call, leaves), leaves)
    assert not [e for e in events if isinstance(e, Recompiled)]


def test_sums_of_exponentials_and_their_gradients():
    form = Form(64, FP32, "strict", "falling", (300, 300))
    block = create_block_mask(form.mask_mod(), None, None, *form.lengths, device="cuda")

    def both(query, key, value):
        made, more = flex_attention(query, key, value, form.score_mod([]), block, return_aux=AuxRequest(lse=True, max_scores=True))
        return made, more.lse, more.max_scores

    leaves = form.operands()
    query, key, _ = leaves
    made, sums, largest = dynacompile.compile(both, fullgraph=True, isolate_recompiles=True)(*leaves)
    scores = query.double() @ key.double().mT / 8
    b, h, q, k = (torch.arange(n, device="cuda").reshape([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(scores.shape))
    scores = torch.where(form.mask_mod()(b, h, q, k), form.score_mod([])(scores, b, h, q, k), -math.inf)
    assert (sums[:, :, 0] == -math.inf).all() and not made[:, :, 0].any()
    seen = scores[:, :, 1:]
    torch.testing.assert_close(sums[:, :, 1:].double(), seen.logsumexp(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(largest[:, :, 1:].double(), seen.amax(-1), rtol=1e-5, atol=1e-5)
    have = torch.autograd.grad(sums[:, :, 1:].sin().sum(), (query, key))
    want = torch.autograd.grad(seen.logsumexp(-1).sin().sum(), (query, key))
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


def test_under_autocast():
    form = Form(64, FP32, lengths=(512, 512))

    def call(*operands):
        with torch.autocast("cuda", BF16):
            return inner(*operands)

    inner, leaves = form.call(), form.operands()
    events: list = []
    end = dynacompile.subscribe(events.append)
    have = step(dynacompile.compile(call, fullgraph=True, isolate_recompiles=True), leaves)
    end()
    assert decision(events).ours and have[0].dtype == BF16
    half = [t.detach().to(BF16).requires_grad_() for t in leaves]
    for one, other in zip(have, step(form.whole, half), strict=True):
        torch.testing.assert_close(one.to(BF16), other, rtol=3e-2, atol=3e-2)


def test_recorded_as_a_cuda_graph():
    form = Form(64, BF16, "window", "falling", (512, 512))
    call, _ = compiled(form, mode="reduce-overhead")
    for seed in range(4):
        torch.manual_seed(seed)
        leaves = [torch.randn_like(t).requires_grad_() for t in form.operands()]
        check_errors(form, [t.clone() for t in step(call, leaves)], leaves)


@pytest.mark.parametrize("score", ["falling", "table"])
def test_no_memory_for_scores(score):
    form = Form(64, BF16, "causal", score, (4096, 4096), batch=1, heads=8, groups=8)
    leaves = [*form.operands(), *form.reads()]
    call, _ = compiled(form)
    step(call, leaves)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(call, leaves)
    peak, scores = torch.cuda.max_memory_allocated() - before, 8 * 4096 * 4096 * 2
    assert peak < scores // 3, f"{peak} bytes, and scores of {scores}"
