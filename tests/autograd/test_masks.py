"""Attention whose mask is known while compiling: what is read of the mask, what the graph then calls, and that results and gradients stay eager's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dynacompile
from dynacompile.autograd import differentiate
from dynacompile.autograd.masks import row_major
from dynacompile.events import MaskRead
from tests.autograd.recording import record
from tests.autograd.running import env_of
from tests.checking import check

LOWEST = torch.finfo(torch.float32).min


def bert(n, m):
    kept = torch.ones(2, m)
    return (1.0 - kept[:, None, None, :].expand(2, 1, n, m)) * LOWEST


def bert_inverted(n, m):
    """As transformers expands a padding mask of ones."""
    kept = torch.ones(2, m)[:, None, None, :].expand(2, 1, n, m).to(torch.float32)
    hidden = torch.tensor(1.0) - kept
    return hidden.masked_fill(hidden.to(torch.bool), LOWEST)


def looked_up(n, m):
    """Padding of ones, looked up by the indices of all scores."""
    padding, batch, keys = torch.ones(2, m, dtype=torch.bool), torch.arange(2)[:, None, None, None], torch.arange(m)[None, None, None, :]
    rows = torch.arange(n)[None, None, :, None]
    return (padding[batch, keys] & (rows >= 0)).expand(-1, -1, n, m)


def never_negative(n, m):
    """As transformers makes the mask of an encoder without padding: its last stride is 0."""
    return (torch.arange(n)[None, None, :, None] >= 0).expand(2, -1, n, m)


def ones(n, m):
    return torch.ones(n, m, dtype=torch.bool)


def zeros(n, m):
    return torch.zeros(1, 1, n, m)


def one_number(n, m):
    return torch.ones(1, 1, dtype=torch.bool)


def long_ago(n, m):
    return torch.arange(m)[None, :] >= torch.arange(n)[:, None] - 10_000


def both(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril() | torch.ones(n, m, dtype=torch.bool).triu()


def written(n, m):
    mask = torch.zeros(n, m)
    mask[:, : m // 2] = 1.0
    mask[:, m // 2 :] += 1.0
    mask -= 1.0
    return mask


ALL = (bert, bert_inverted, looked_up, never_negative, ones, zeros, one_number, long_ago, both, written)


def triangle(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril()


def triangle_per_head(n, m):
    return torch.ones(2, 3, n, m, dtype=torch.bool).tril()


def counted(n, m):
    return torch.arange(n)[:, None] >= torch.arange(m)


def counted_less(n, m):
    return torch.where(torch.arange(m)[None, :] > torch.arange(n)[:, None], -math.inf, 0.0)


def filled(n, m):
    return torch.triu(torch.full((n, m), LOWEST), diagonal=1)[None, None].expand(2, 1, n, m)


def filled_in_place(n, m):
    mask = torch.zeros(n, m)
    mask.masked_fill_(~torch.ones(n, m, dtype=torch.bool).tril(), -math.inf)
    return mask


def of_transformers(n, m):
    """The lowest number, by a product of positions with a comparison."""
    mask = torch.full((n, m), LOWEST)
    mask = mask * (torch.arange(m) > torch.arange(n).reshape(-1, 1))
    return mask[None, None, :, :].expand(2, 1, -1, -1)


def causal_and_ones(n, m):
    rows, columns = torch.arange(n)[None, None, :, None], torch.arange(m)[None, None, None, :]
    padding = torch.ones(2, m).to(torch.bool)[:, None, None, :]
    return (columns <= rows) & padding


def causal_looked_up(n, m):
    rows, columns = torch.arange(n)[None, None, :, None], torch.arange(m)[None, None, None, :]
    return (columns <= rows) & torch.ones(2, m, dtype=torch.bool)[torch.arange(2)[:, None, None, None], columns]


def mapped(n, m):
    """A function of one query and one key, mapped over both."""
    return torch.vmap(torch.vmap(lambda q, k: q >= k, (None, 0)), (0, None))(torch.arange(n), torch.arange(m))


def logarithm(n, m):
    return torch.ones(n, m).tril().log()


def shifted(n, m):
    """Of a longer range, cut."""
    longer = torch.arange(n + 5)
    return longer[5:, None].sub(5) >= longer[: -5 or None][:m]


CAUSAL = (
    triangle, triangle_per_head, counted, counted_less, filled, filled_in_place, of_transformers, causal_and_ones, causal_looked_up,
    logarithm, mapped, shifted,
)  # fmt: skip


def banded(n, m):
    distance = torch.arange(n)[:, None] - torch.arange(m)
    return (distance >= 0) & (distance < 3)


def strict(n, m):
    """The first query sees nothing."""
    return torch.ones(n, m, dtype=torch.bool).tril(-1)


def looks_ahead(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(1)


def upper(n, m):
    return torch.ones(n, m, dtype=torch.bool).triu()


def padded(n, m):
    return (torch.arange(m) < m - 2)[None, None, None, :].expand(2, 1, n, m)


def nothing(n, m):
    return torch.zeros(n, m, dtype=torch.bool)


def slopes(n, m):
    return (torch.arange(m) - torch.arange(n)[:, None]).float() * 0.25


def soft(n, m):
    """Far lower than other scores, but a number that scores may reach."""
    return torch.where(torch.ones(n, m, dtype=torch.bool).tril(), 0.0, -1e4)


def one_of_two(n, m):
    return torch.stack([torch.ones(n, m, dtype=torch.bool).tril(), torch.ones(n, m, dtype=torch.bool)])[:, None]


KEPT = (banded, strict, looks_ahead, upper, padded, nothing, slopes, soft, one_of_two)


def attend(mask, n, m=None, dtype=torch.float32, **kwargs):
    def attention(q, k, v):
        given = mask(q.shape[-2], k.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given if given.dtype == torch.bool else given.to(dtype), **kwargs)

    generator = torch.Generator().manual_seed(n)
    shapes = ((2, 3, n, 8), (2, 3, m or n, 8), (2, 3, m or n, 8))
    return attention, [torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def found(fn, *args, **options):
    """What was read of the masks when a function was compiled."""
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        near = 2e-2 if args[0].dtype == torch.bfloat16 else None
        check(fn, *args, options={"backend": "aot_eager", **options}, rtol=near, atol=near)
    finally:
        end()
    return [e.found for e in events if isinstance(e, MaskRead)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mask", (*ALL, *CAUSAL, *KEPT))
def test_square(mask, dtype):
    fn, args = attend(mask, 6, dtype=dtype)
    assert found(fn, *args) == ["all" if mask in ALL else "causal" if mask in CAUSAL else "kept"]


NEED_SIZES = (both, long_ago, written, shifted)
"""Masks of several boundaries, or written in part, are computed: with symbolic sizes they stay."""


@pytest.mark.parametrize("mask", (*ALL, *CAUSAL, *KEPT))
def test_symbolic(mask):
    attention, args = attend(mask, 6)

    def fn(x):
        return attention(*x.chunk(3, -1))

    want = "kept" if mask in (*KEPT, *NEED_SIZES) else "all" if mask in ALL else "causal"
    assert found(fn, torch.cat(args, -1).detach().requires_grad_(), dynamic=True) == [want]


@pytest.mark.parametrize(
    ("mask", "n", "m"), [(mask, n, m) for mask in (*ALL, *CAUSAL, *KEPT) for n, m in ((4, 7), (7, 4), (1, 5), (5, 1), (1, 1)) if mask is not shifted or n == m]
)
def test_other_sizes(mask, n, m):
    """With other numbers of queries than keys torch has two alignments of `is_causal`, so a triangle stays."""
    fn, args = attend(mask, n, m)
    got = found(fn, *args)
    if min(n, m) > 1:
        assert got == ["all" if mask in ALL else "kept"]


@pytest.mark.parametrize("mask", [bert, filled, banded])
def test_the_graph_calls_attention_without_the_mask(mask):
    fn, args = attend(mask, 6)
    pair = differentiate(*record(fn, args)[:2], env_of())
    calls = [n for n in pair.forward.graph.nodes if n.op == "call_function" and "attention" in str(n.target)]
    assert len(calls) == 1
    assert (calls[0].kwargs.get("attn_mask") is None) == (mask is not banded)
    names = [str(n.target) for n in pair.forward.graph.nodes if n.op == "call_function"]
    assert (len(names) == 3) == (mask is not banded), "what only made the mask is gone"  # attention and its two results


class Layers(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x.shape[-2], x.shape[-2]))
        return x


def test_a_mask_that_stays_is_made_once():
    def fn(x, *weights):
        for weight in weights:
            q, k, v = (x @ weight).chunk(3, -1)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=banded(x.shape[-2], x.shape[-2]))
        return x

    args = [torch.randn(2, 3, 6, 8), *(torch.randn(8, 24, requires_grad=True) for _ in range(3))]
    pair = differentiate(*record(fn, args)[:2], env_of())
    calls = [n for n in pair.forward.graph.nodes if n.op == "call_function" and "attention" in str(n.target)]
    assert len(calls) == 3
    assert len({n.kwargs["attn_mask"] for n in calls}) == 1
    assert sum("where" in str(n.target) for n in pair.forward.graph.nodes) == 1


@pytest.mark.parametrize("mask", [bert, filled, banded])
def test_built(mask):
    torch.manual_seed(0)
    check(Layers(lambda n, m: mask(n, m)[0, 0] if mask is not banded else mask(n, m)), torch.randn(2, 6, 8))


@pytest.mark.parametrize("weights", [False, True], ids=["kernel", "weights"])
def test_multihead_attention(weights):
    """Torch's own layer, which computes its weights by hand where these are asked for."""
    layer = nn.MultiheadAttention(24, 3, batch_first=True)

    def fn(x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return layer(x, x, x, attn_mask=mask, need_weights=weights)[0]

    assert found(fn, torch.randn(2, 8, 24)) == ([] if weights else ["causal"])


def test_operators_by_name():
    def fn(q, k, v):
        mask = triangle(6, 6)
        return torch.ops.aten.scaled_dot_product_attention(q, k, v, mask) + torch.ops.aten.scaled_dot_product_attention.default(q, k, v, mask)

    assert found(fn, *attend(triangle, 6)[1]) == ["causal", "causal"]


@pytest.mark.parametrize("rank", [2, 3])
def test_fewer_dimensions(rank):
    def fn(x):
        return F.scaled_dot_product_attention(*x.chunk(3, -1), attn_mask=counted(6, 6))

    assert found(fn, torch.randn(*(3, 6, 24)[3 - rank :], requires_grad=True)) == ["causal"]


def test_checkpointed():
    def layer(x):
        return F.scaled_dot_product_attention(*x.chunk(3, -1), attn_mask=counted(6, 6))

    def fn(x):
        return checkpoint(layer, x, use_reentrant=False).sin()

    assert set(found(fn, torch.randn(2, 3, 6, 24, requires_grad=True))) == {"causal"}


def test_rows_of_a_mask_are_laid_out():
    """The last dimension is contiguous, and what was expanded besides stays one copy."""
    mask = torch.randn(4, 5).t()[None, None].expand(2, 3, 5, 4)
    made = row_major(mask)
    assert torch.equal(made, mask)
    assert made.stride() == (0, 0, 4, 1)
    column = torch.randn(2, 1, 5, 1).expand(2, 3, 5, 4)
    assert torch.equal(row_major(column), column)
    assert row_major(column).stride() == (20, 0, 4, 1)


def test_grouped_queries():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=triangle(5, 5), enable_gqa=True)

    q, k, v = (torch.randn(2, heads, 5, 8, requires_grad=True) for heads in (4, 2, 2))
    assert found(fn, q, k, v) == ["causal"]


def test_positional_and_scaled():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, triangle(6, 6), 0.0, False, scale=0.5)

    assert found(fn, *attend(triangle, 6)[1]) == ["causal"]


def test_dropout_keeps_the_mask():
    """Kernels draw their random numbers in their own ways."""
    fn, args = attend(bert, 6, dropout_p=0.5)
    assert found(fn, *args) == ["kept"]


def test_a_mask_beside_is_causal_is_refused_as_in_eager():
    fn, args = attend(triangle, 6, is_causal=True)
    check(fn, *args, options={"backend": "aot_eager"}, graphs=None, breaks=None)


def test_masks_of_inputs_stay():
    def fn(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask & triangle(6, 6))

    assert found(fn, *attend(triangle, 6)[1], torch.ones(6, 6, dtype=torch.bool)) == ["kept"]


def test_a_mask_that_gets_a_gradient_stays():
    def fn(q, k, v, slope):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(6, 6) * slope)

    assert found(fn, *attend(triangle, 6)[1], torch.ones((), requires_grad=True)) == ["kept"]


def test_a_mask_that_the_function_returns_is_returned():
    def fn(q, k, v):
        mask = filled(6, 6)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), mask

    assert found(fn, *attend(triangle, 6)[1]) == ["causal"]


def test_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bert(6, 6).to(torch.bfloat16))

    events = []
    end = dynacompile.subscribe(events.append)
    check(fn, *attend(bert, 6)[1], options={"backend": "aot_eager"}, rtol=2e-2, atol=2e-2)
    end()
    assert [e.found for e in events if isinstance(e, MaskRead)] == ["all"]


def test_one_program_serves_all_lengths():
    """Of symbolic sizes a triangle of counters is one for each of them."""

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=counted(q.shape[-2], k.shape[-2]))

    dynacompile.reset()
    compiled = dynacompile.compile(fn, backend="aot_eager", dynamic=True)
    for n in (6, 9, 17, 2, 1, 33):
        q, k, v = (torch.randn(2, 3, n, 8) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v))
    q, k, v = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(compiled(q, k, v), fn(q, k, v))
