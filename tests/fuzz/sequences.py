"""Programs over sequences (batch, time, width): embeddings, positions, attention, shifted slices, windows, scans, rolls, sorts, gathers and scatters, products,
sizes in arithmetic and in branches, and losses, forward and backward, called with batches and lengths that change, some under a default device.

    python -m tests.fuzz.sequences FIRST LAST [--backend default|reference] [--device cuda] [--show]

From seed 900000 on every other statement is of `OF_A_LENGTH`: functions that take a length as a number, and slices to a constant, which a size may equal.

A statement is kept if eager runs it for the sizes of every call. Results in float32 may be twenty times as far from those in float64 as eager's are.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.fuzz.command import main
from tests.fuzz.compare import weights
from tests.scenarios import strides

HEADS = "q = {x}.view({x}.shape[0], -1, {h}, {c} // {h}).transpose(1, 2); "
"""Queries, which the statements of ATTENTION begin with. {x}: the sequence so far; {c}: its width; {h}, {g}: heads, of which {g} divides {h}; {d}: a
dimension; {k}: 1 to 3; {s}: another sequence, `x` or `k`, whose length differs."""
BACK = "t = a.transpose(1, 2).flatten(2)"
SOFTMAX = "s = q @ q.transpose(-2, -1) / q.shape[-1] ** 0.5; "
SEQUENCES = {
    "embeddings": (
        "t = {x} + F.embedding(i, w.view(-1, 8)[:32])[:, :{x}.shape[1], :1]",
        "t = F.embedding(i, w[:32 * {c}].view(32, {c}), padding_idx={k}) * 0.5",
        "t = F.embedding(i, w[:32 * {c}].view(32, {c}), scale_grad_by_freq=True)",
        "t = {x} + F.embedding_bag(i, w[:32 * {c}].view(32, {c}), mode={m!r})[:, None]",
        "t = {x} * F.embedding_bag(i, w[:32].view(32, 1), mode='sum', per_sample_weights={x}[:, :, 0].sigmoid()[:, :i.shape[1]])[:, None]",
        "t = {x} + F.embedding_bag(i.flatten(), w[:32 * {c}].view(32, {c}), offsets=torch.arange(i.shape[0]) * i.shape[1], mode='mean')[:, None]",
        "t = {x} + w[:32][i][..., None]", "t = {x} + F.one_hot(i, 32).to({x}.dtype) @ w[:32 * {c}].view(32, {c})",
        "t = {x} + F.embedding(torch.arange({x}.shape[1]) % 32, w[:32 * {c}].view(32, {c}))",
        "t = {x} + F.embedding_bag(i, w[:32 * {c}].view(32, {c}), mode='sum', padding_idx=3)[:, None]",
    ),
    "positions": (
        "t = {x} + torch.arange({x}.shape[1])[:, None] * 0.1", "t = {x} * torch.linspace(0, 1, {x}.shape[1])[:, None]",
        "p = torch.arange({x}.shape[1], dtype={x}.dtype)[:, None] * 100.0 ** (-torch.arange(0, {c}, 2, dtype={x}.dtype) / {c}); "
        "t = {x} * 0.5 + torch.cat([p.sin(), p.cos()], -1)[:, :{c}]",
        "p = torch.outer(torch.arange({x}.shape[1], dtype={x}.dtype), 10.0 ** (-torch.arange(0, {c}, 2, dtype={x}.dtype) / {c})); "
        "a, b = {x}[..., ::2], {x}[..., 1::2]; t = torch.stack([a * p.cos() - b * p.sin(), a * p.sin() + b * p.cos()], -1).flatten(-2)",
        "p = torch.cat([torch.outer(torch.arange({x}.shape[1], dtype={x}.dtype), w[:{c} // 2])] * 2, -1); "
        "a, b = {x}.chunk(2, -1); t = {x} * p.cos() + torch.cat([-b, a], -1) * p.sin()",
        "p = torch.arange(-{x}.shape[1] + 1, 1); t = {x} * (p.to({x}.dtype) * 0.1).exp()[:, None]",
        "p = torch.arange({x}.shape[1] - 1, -1, -1); t = {x}[:, p] - {x}",
        "p = torch.view_as_complex({x}.unflatten(-1, (-1, 2)).contiguous()); "
        "t = torch.view_as_real(p * torch.polar(torch.ones_like(p.real), p.imag * 0.5)).flatten(2)",
    ),
    "attention": tuple(HEADS + form for form in (
        "a = F.scaled_dot_product_attention(q, q, q, is_causal=True); " + BACK, "a = F.scaled_dot_product_attention(q, q, q); " + BACK,
        "m = torch.arange(q.shape[2]) <= torch.arange(q.shape[2])[:, None]; a = F.scaled_dot_product_attention(q, q, q, attn_mask=m); " + BACK,
        "m = torch.arange(q.shape[2]) < n.clamp(max=q.shape[2])[:, None]; a = F.scaled_dot_product_attention(q, q, q, attn_mask=m[:, None, None]); " + BACK,
        "m = -(torch.arange(q.shape[2]) - torch.arange(q.shape[2])[:, None]).abs().to(q.dtype) * 2.0 ** -torch.arange(1, {h} + 1)[:, None, None]; "
        "a = F.scaled_dot_product_attention(q, q, q, attn_mask=m); " + BACK,
        "v = k.view(k.shape[0], -1, {h}, {c} // {h}).transpose(1, 2); v = torch.cat([v, q], 2); "
        "m = torch.ones(q.shape[2], v.shape[2], dtype=torch.bool).tril(v.shape[2] - q.shape[2]); "
        "a = F.scaled_dot_product_attention(q, v, v, attn_mask=m); " + BACK,
        "v = k.view(k.shape[0], -1, {h}, {c} // {h}).transpose(1, 2); a = F.scaled_dot_product_attention(q, v, v.sin()); " + BACK,
        "v = q[:, :{g}]; a = F.scaled_dot_product_attention(q, v, v, is_causal=True, enable_gqa=True); " + BACK,
        "v = q[:, :{g}].repeat_interleave({h} // {g}, 1); a = F.scaled_dot_product_attention(q, v, v); " + BACK,
        "v = q[:, :{g}, None].expand(-1, -1, {h} // {g}, -1, -1).flatten(1, 2); " + SOFTMAX + "a = s.softmax(-1) @ v; " + BACK,
        SOFTMAX + "a = s.softmax(-1) @ q; " + BACK,
        SOFTMAX + "m = torch.ones_like(s, dtype=torch.bool).tril(); a = s.masked_fill(~m, float('-inf')).softmax(-1) @ q; " + BACK,
        SOFTMAX + "p = torch.arange(s.shape[-1]); p = p[:, None] - p; m = (p >= 0) & (p < {k} + 1); "
        "a = s.where(m, float('-inf')).softmax(-1) @ q; " + BACK,
        SOFTMAX + "p = torch.arange(s.shape[-1]); p = (p[:, None] - p).clamp(-{k}, {k}) + {k}; a = (s + w[p]).softmax(-1) @ q; " + BACK,
        SOFTMAX + "m = torch.full((s.shape[-1], s.shape[-1]), float('-inf')).triu(1); a = (s + m).softmax(-1) @ q; " + BACK,
        SOFTMAX + "p = torch.arange(s.shape[-1]); p = (p[:, None] + p).expand_as(s) % s.shape[-1]; a = s.gather(-1, p).softmax(-1) @ q; " + BACK,
        SOFTMAX + "p = F.pad(s, (1, 0)).view(*s.shape[:2], -1, s.shape[-2])[:, :, 1:].view_as(s); a = (s + p).softmax(-1) @ q; " + BACK,
        "v = q.unfold(2, {k}, 1).transpose(-2, -1); s = (q[:, :, {k} - 1:, None] @ v.transpose(-2, -1)) * 0.3; a = (s.softmax(-1) @ v).squeeze(3); " + BACK,
        "s = torch.einsum('bhqd,bhkd->bhqk', q, q); a = torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), q); " + BACK,
        "s = (F.elu(q) + 1).cumsum(2); a = q * s / s.sum(-1, keepdim=True); " + BACK,
        SOFTMAX + "v, p = s.topk(min(s.shape[-1], {k} + 1), -1); a = torch.full_like(s, float('-inf')).scatter(-1, p, v).softmax(-1) @ q; " + BACK,
    )),
    "slices": (
        "t = {x}[:, 1:] - {x}[:, :-1]", "t = {x}[:, ::2]", "t = {x}[:, 1::2] + 1", "t = {x}[:, -1:] + {x}", "t = {x} - {x}[:, -1, None]",
        "t = {x}[:, -k.shape[1]:]", "t = {x}[:, :k.shape[1]]", "t = {x}[:, {x}.shape[1] // 2:]", "t = {x}[:, :-({x}.shape[1] // 3)]",
        "t = torch.cat([{x}[:, {k}:], {x}[:, :{k}]], 1)", "t = F.pad({x}[:, :-{k}], (0, 0, {k}, 0))", "t = {x}.narrow(1, 1, {x}.shape[1] - 2)",
        "u = {x}; t = u.clone(); t[:, {k}:] += u[:, :-{k}]", "t = {x}.clone(); t[:, -1] = 0", "t = {x} * 1; t[:, ::2] = {x}[:, ::2].sin()",
        "t = torch.zeros_like({x}); t[:, :{x}.shape[1] // 2] = {x}[:, {x}.shape[1] - {x}.shape[1] // 2:]",
        "t = torch.diff({x}, dim=1)", "t = torch.diff({x}, dim=1, prepend={x}[:, :1])", "t = {x}[:, {x}.shape[1] // 2, None] * {x}",
        "t = {x}[torch.arange({x}.shape[0]), n[:{x}.shape[0]] - 1][:, None] + {x}", "t = {x}.select(1, -1).unsqueeze(1).expand_as({x}) * {x}",
    ),
    "windows": (
        "t = F.conv1d({x}.transpose(1, 2), w[:{c} * {c} * {k}].view({c}, {c}, {k}) * 0.3, padding={k} // 2).transpose(1, 2)",
        "t = F.conv1d(F.pad({x}.transpose(1, 2), ({k} - 1, 0)), w[:{c} * {k}].view({c}, 1, {k}), groups={c}).transpose(1, 2)",
        "t = F.conv1d({x}.mT, w[:{c} * {c} * 2].view({c}, {c}, 2) * 0.3, stride=2).mT", "t = {x}.unfold(1, {k}, 1).mean(-1)",
        "t = F.conv1d({x}.mT, w[:{c} * {c} * 2].view({c}, {c}, 2) * 0.3, w[:{c}], dilation=2).mT", "t = {x}.unfold(1, {k} + 1, 2).amax(-1)",
        "t = F.conv_transpose1d({x}.mT, w[:{c} * {c} * 2].view({c}, {c}, 2) * 0.3, stride=2).mT", "t = ({x}.unfold(1, {k}, {k}) * w[:{k}]).sum(-1)",
        "t = F.pad({x}, (0, 0, {k}, 0))", "t = F.pad({x}, (0, 0, 0, {k}), value=0.5)", "t = F.pad({x}.mT, ({k}, 1), mode='replicate').mT",
        "t = F.pad({x}.mT, (1, {k}), mode='reflect').mT", "t = F.pad({x}.mT, (1, 1), mode='circular').mT", "t = F.pad({x}, (0, 0, -1, {k}))",
        "t = F.pad({x}, (0, 0, 0, -{x}.shape[1] % 4))", "t = F.pad({x}, (0, 0, 0, -{x}.shape[1] % 4)).view({x}.shape[0], -1, 4, {c}).mean(2)",
        "t = F.max_pool1d({x}.mT, {k}, 1).mT", "t = F.max_pool1d({x}.mT, 3, 2, 1).mT", "t = F.avg_pool1d({x}.mT, 3, 1, 1).mT",
        "t = F.avg_pool1d({x}.mT, 2, ceil_mode=True).mT", "t = F.adaptive_avg_pool1d({x}.mT, 3).mT", "t = F.adaptive_max_pool1d({x}.mT, 2).mT",
        "t = F.interpolate({x}.mT, scale_factor=2, mode='linear').mT", "t = F.interpolate({x}.mT, size=k.shape[1], mode='linear', align_corners=True).mT",
        "t = F.interpolate({x}.mT, size={x}.shape[1] // 2 + 1).mT", "t = F.fold(F.unfold({x}[:, None], ({k}, {c})), {x}.shape[1:], ({k}, {c}))[:, 0]",
        "t = F.lp_pool1d({x}.mT.sigmoid(), 2, 2).mT", "t = F.unfold({x}[:, None], ({k}, 1)).view({x}.shape[0], {k}, -1, {c}).sum(1)",
    ),
    "scans": (
        "t = {x}.cumsum(1) * 0.3", "t = {x}.tanh().cumprod(1)", "t = {x}.cummax(1)[0]", "t = {x}.cummin(1).values", "t = {x}.logcumsumexp(1)",
        "t = {x}.flip(1).cumsum(1).flip(1) * 0.3", "t = {x}.cumsum(1) / torch.arange(1, {x}.shape[1] + 1)[:, None]", "t = {x}.flip({d})",
        "t = {x}.roll({x}.shape[1] // 2, 1)", "t = {x}.roll(-{k}, 1)", "t = {x}.roll((1, {x}.shape[0] - 1), (1, 0))", "t = {x}.roll(-{x}.shape[1] // 2, 1)",
        "t = {x}.roll({x}.shape[1] + {k}, 1)", "t = {x}.roll(({x}.shape[1] - 1) // 2, (1,)) - {x}", "t = {x}.cumsum(2)[:, ::2] * 0.2",
        "t = {x}.flip(0, 1)", "t = {x}.rot90(2, (1, 2))", "t = {x}.roll(k.shape[1], 1)", "t = {x}.roll({k}) * 0.5", "t = {x}.gather(1, {x}.cummax(1)[1])",
    ),
    "sorts": (
        "t = {x}.sort(1)[0]", "t = {x}.sort({d}, descending=True).values", "t = {x}.topk(min(3, {x}.shape[1]), 1)[0]",
        "p = {x}.argsort(1); t = {x}.gather(1, p.flip(1))",
        "p = {x}.argmax(1, keepdim=True); t = {x}.scatter(1, p, 0.5)", "p = {x}.argmax(2); t = {x}.scatter_add(2, p[..., None], {x}[..., :1])",
        "p = {x}[..., 0].argsort(1); t = {x}.take_along_dim(p[..., None], 1)", "p = {x}.sum(-1).topk({x}.shape[1] // 2 + 1).indices; "
        "t = {x}.gather(1, p[..., None].expand(-1, -1, {c}))",
        "p = i[:, :{x}.shape[1]] % {x}.shape[1]; t = torch.zeros_like({x}).scatter_add(1, p[..., None].expand_as({x}), {x})",
        "p = i[:, :{x}.shape[1]] % {x}.shape[1]; t = {x}.gather(1, p[..., None].expand(-1, -1, {c}))",
        "p = i[0, :{x}.shape[1]] % {x}.shape[1]; t = {x}.index_add(1, p, {x}, alpha=0.5)", "p = i[0] % {x}.shape[1]; t = {x}.index_select(1, p)",
        "t = torch.zeros_like({x}).index_copy(1, i[0, :{x}.shape[1]].argsort(), {x})",
        "p = i[:, :{x}.shape[1]] % {x}.shape[1]; t = {x}.clone(); t.index_put_((torch.arange({x}.shape[0])[:, None], p), {x} * 0.5, accumulate=True)",
        "p = i[:, :{x}.shape[1]] % 7; t = {x}.new_zeros({x}.shape[0], 7, {c}).scatter_reduce(1, p[..., None].expand_as({x}), {x}, 'amax', include_self=False)",
        "p = i[:, :{x}.shape[1]] % 5; t = {x}.new_ones({x}.shape[0], 5, {c}).scatter_reduce(1, p[..., None].expand_as({x}), {x}, 'mean')",
        "t = {x}.kthvalue(({x}.shape[1] + 1) // 2, 1, keepdim=True)[0] - {x}", "t = {x} - {x}.median(1, keepdim=True)[0]",
        "t = {x} * {x}.quantile(0.5, 1, keepdim=True)",
        "p = torch.bucketize({x}, torch.linspace(-1, 1, {x}.shape[1]).to({x}.dtype)); t = {x} + w[p]", "t = {x} * {x}.msort()",
        "p = torch.searchsorted({x}.mT.sort(-1)[0].contiguous(), {x}.mT.contiguous()).mT; t = {x} + p * 0.1", "t = {x} + torch.histc(i.to({x}.dtype), {c})",
        "t = {x} + torch.bincount(i.flatten(), minlength=32)[i[:, :{x}.shape[1]]][..., None] * 0.1",
    ),
    "masks": (
        "m = torch.arange({x}.shape[1]) < n[:, None]; t = {x} * m[..., None]",
        "m = torch.arange({x}.shape[1]) < n[:, None]; t = {x}.masked_fill(~m[..., None], 0.25)",
        "m = (torch.arange({x}.shape[1]) < n[:, None]).to({x}.dtype)[..., None]; "
        "t = {x} - ({x} * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1)",
        "m = torch.arange({x}.shape[1]) >= n[:, None]; t = {x}.masked_fill(m[..., None], float('-inf')).softmax(1)",
        "t = torch.where({x} > 0, {x}, {x}.flip(1))",
        "t = {x}.tril({x}.shape[1] - {c})", "t = {x}.triu(-{k}) + {x}",
        "m = torch.ones({x}.shape[1], {x}.shape[1]).tril().to({x}.dtype); t = m / m.sum(1, keepdim=True) @ {x}",
        "m = i[:, :{x}.shape[1]] != {k}; t = {x}.where(m[..., None], w[:{c}])",
        "p = torch.tril_indices({c}, {c}); t = {x} + ({x}[..., p[0]] * {x}[..., p[1]]).sum(-1, keepdim=True)",
        "m = torch.rand_like({x}) < 2; t = {x} * m", "t = {x}.where(torch.arange({x}.shape[1])[:, None] % 2 == 0, -{x})",
        "m = (i[:, :{x}.shape[1]] > 9).cumsum(1); t = {x} * (m[:, :, None] == m[:, None]).to({x}.dtype).mean(-1, keepdim=True)",
        "t = {x}.masked_scatter({x} > 0, {x}.flip(1).relu() + 1)", "m = {x} > {x}.mean(1, keepdim=True); t = {x}.lerp({x} * 2, m.to({x}.dtype))",
    ),
    "products": (
        "t = {x} @ w[:{c} * {c}].view({c}, {c}) * 0.3", "t = F.linear({x}, w[:2 * {c} * {c}].view(2 * {c}, {c}), w[:2 * {c}]).chunk(2, -1)[0] * 0.3",
        "a, b = F.linear({x}, w[:2 * {c} * {c}].view(2 * {c}, {c})).chunk(2, -1); t = a * b.sigmoid()", "t = {x} @ {x}.mT @ {x} * 0.1",
        "t = torch.bmm({x}, {x}.mT).softmax(-1).bmm({x})", "t = torch.einsum('btc,bsc->bts', {x}, {x}).softmax(-1) @ {x}",
        "t = torch.einsum('btc,cd->btd', {x}, w[:{c} * {c}].view({c}, {c})) * 0.3",
        "t = {x}[:, :, None] @ w[:{c} * {c}].view({c}, {c}); t = t.squeeze(2) * 0.3",
        "t = (w[:{c} * {c}].view({c}, {c}) @ {x}.mT).mT * 0.3", "t = torch.einsum('btc,btd->bcd', {x}, {x}).softmax(-1); t = {x} @ t",
        "t = torch.cdist({x}, k) @ k * 0.1", "t = torch.cdist({x}, {x}[:, :2] + 1)[..., :1] + {x}", "t = torch.baddbmm({x}, {x} @ {x}.mT, {x}, alpha=0.1)",
        "t = torch.einsum('b t c, b s c -> b s c', {x}, k) * 0.3", "a = ({x} @ k.mT).softmax(-1); t = a.transpose(1, 2) @ {x}",
        "t = torch.stack([({x}[b] @ w[:{c} * {c}].view({c}, {c})) * 0.3 for b in range({x}.shape[0])])",
        "t = torch.kron({x}[0], w[:2].view(1, 2))[None, :, :{c}]",
        "t = F.bilinear({x}, {x}, w[:{c} * {c} * {c}].view({c}, {c}, {c})) * 0.1", "t = torch.tensordot({x}, k, ([0, 2], [0, 2]))[None] @ k * 0.1",
    ),
    "shapes": (
        "t = {x}.view({x}.shape[0], -1, {h}, {c} // {h}).transpose(1, 2).reshape({x}.shape[0], -1, {c})",
        "t = {x}.unflatten(-1, ({h}, -1)).mean(2, keepdim=True).expand(-1, -1, {h}, -1).flatten(2)",
        "a, b = {x}.split([{x}.shape[1] // 2, {x}.shape[1] - {x}.shape[1] // 2], 1); t = torch.cat([b, a], 1)", "t = torch.cat({x}.chunk(3, 1)[::-1], 1)",
        "t = torch.stack([{x}, {x}.sin()], 2).flatten(1, 2)", "t = torch.cat([k, {x}], 1)", "t = torch.cat([{x}, k[:, :1]], 1)[:, 1:]",
        "t = {x}.repeat(1, 2, 1)",
        "t = {x}.repeat_interleave(2, 1)", "t = {x}.reshape(-1, {c}).view_as({x}) * 2", "t = {x}.flatten(0, 1)[None]",
        "t = {x}.transpose(0, 1).contiguous().transpose(0, 1)",
        "t = {x}.transpose(0, 1)", "t = {x}.permute(1, 0, 2).reshape({x}.shape[1], -1).t().reshape({x}.shape[0], {c}, -1).mT",
        "t = {x}[:1].expand({x}.shape[0], -1, -1)",
        "t = {x} + {x}.mean(1, keepdim=True).expand_as({x})", "t = torch.cat([t.sin() for t in {x}.split(4, 1)], 1)", "t = sum({x}.unbind(0))[None] * 0.5",
        "t = {x}.reshape({x}.shape[0], {x}.shape[1] * {c}).view({x}.shape[0], {c}, {x}.shape[1]).mT", "t = torch.stack({x}.unbind(1)[::2], 1)",
        "t = {x}[:, :{x}.shape[1] // 2 * 2].view({x}.shape[0], -1, 2, {c}).sum(2)",
        "t = {x}[:, :{x}.shape[1] // 2 * 2].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)",
        "t = {x}.repeat_interleave(n[:1].new_tensor([2, 1]).repeat({x}.shape[1])[:{x}.shape[1]], 1, output_size=({x}.shape[1] + 1) // 2 + {x}.shape[1])",
        "t = F.pad({x}, (0, 0, 0, -{x}.shape[1] % {h})).unflatten(1, (-1, {h})).softmax(2).flatten(1, 2)[:, :{x}.shape[1]]",
        "t = {x}.as_strided({x}.shape, {x}.stride())",
        "t = torch.tensor_split({x}, 2, 1)[0]", "t = {x}.hsplit((2,))[-1]", "t = {x}.tile(2, 1)[..., :{c}]",
        "t = torch.meshgrid({x}[0, :, 0], w[:{c}], indexing='ij')[0][None]",
    ),
    "numbers": (
        "t = {x} / {x}.shape[1] ** 0.5", "t = {x} * ({x}.shape[1] * {x}.shape[0]) * 0.05", "t = {x} + max({x}.shape[1], 4)", "t = {x} * (1 / {x}.shape[1])",
        "t = {x}[:, 1:] if {x}.shape[1] > 8 else {x} * 2", "t = {x}.sin() if {x}.shape[1] % 2 else {x}.cos()", "t = {x} - min(k.shape[1], {x}.shape[1]) / 7",
        "t = {x} * torch.tensor({x}.shape[1]) * 0.1", "t = {x} + {x}.new_full((), {x}.shape[1])", "t = {x} ** 2 / float({x}.numel())",
        "t = {x} + ({x}.shape[1] - k.shape[1])",
        "import math; t = {x} * math.log({x}.shape[1] + 1)", "import math; t = {x} / math.sqrt({x}.size(1))", "t = {x} + {x}.shape[1] // 3 + {x}.shape[1] % 3",
        "t = {x} * (2 if {x}.shape[1] >= k.shape[1] else 0.5)", "t = {x}\nfor j in range({k}):\n    t = t + t.roll(j + 1, 1) / t.shape[1]",
        "t = {x} * len({x}[0]) * 0.1",
        "t = {x}.clamp(max={x}.shape[1] / 4)", "t = F.threshold({x}, 1 / {x}.shape[1], -1.0)", "t = F.dropout({x}, 0.0)",
        "t = {x}.add(k.mean(), alpha={x}.shape[1])",
    ),
    "pointwise": (
        "t = {x}.relu()", "t = F.gelu({x})", "t = {x}.sin()", "t = F.silu({x}) * {x}", "t = F.layer_norm({x}, ({c},), w[:{c}], w[:{c}])",
        "t = F.rms_norm({x}, ({c},), w[:{c}])",
        "t = {x}.softmax({d})", "t = {x}.log_softmax({d})", "t = F.normalize({x}, dim={d})", "t = {x} * {x}.mean(1, keepdim=True).sigmoid()",
        "t = {x} - {x}.amax({d}, keepdim=True)",
        "t = F.group_norm({x}.mT, {h}).mT", "t = F.batch_norm({x}.mT, None, None, training=True).mT", "t = F.glu(torch.cat([{x}, {x}], -1))",
        "t = {x}.var(1, keepdim=True) + {x}",
        "t = F.instance_norm({x}.mT).mT", "t = {x}.std({d}, keepdim=True) * {x}", "t = {x}.norm(dim=-1, keepdim=True) * {x}",
        "t = F.softplus({x}) - {x}.logsumexp(1, keepdim=True)",
    ),
}  # fmt: skip
TARGETS = "p = i[:, :{x}.shape[1]] % {c}; "
ENDS = (
    "r = {x}.mean(1)", "r = {x}.square().sum()", "r = {x}.sum({d})", "r = {x}.var({d})", "r = {x}.amax(1)", "r = {x}.logsumexp({d})", "r = {x}[:, -1]",
    "r = {x}.square().mean((1, 2))",
    "m = torch.arange({x}.shape[1]) < n[:, None]; r = ({x} * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)", "r = {x}.argmax(1)",
    "r = {x}.sort(1)[1]",
    TARGETS + "r = F.cross_entropy({x}.transpose(1, 2), p)", TARGETS + "r = F.cross_entropy({x}.flatten(0, 1), p.flatten(), ignore_index={k})",
    TARGETS + "r = F.cross_entropy({x}.reshape(-1, {c}), p.reshape(-1), label_smoothing=0.1, reduction='sum')",
    TARGETS + "r = F.cross_entropy({x}.mT, p, reduction='none')",
    TARGETS + "r = F.cross_entropy({x}.mT, p, weight=w[:{c}].detach().sigmoid(), label_smoothing=0.2)",
    TARGETS + "r = F.nll_loss({x}.log_softmax(-1).mT, p, ignore_index={k})",
    TARGETS + "r = F.cross_entropy({x}[:, :-1].flatten(0, 1), p[:, 1:].flatten())", "r = F.cross_entropy({x}.mT, {x}.detach().flip(1).softmax(-1).mT)",
    "r = F.cross_entropy({x}.flatten(0, 1), {x}.detach().cos().softmax(-1).flatten(0, 1), reduction='none', label_smoothing=0.1)",
    TARGETS + "m = torch.arange({x}.shape[1]) < n[:, None]; r = F.cross_entropy({x}.mT, p.masked_fill(~m, -100)); r = torch.nan_to_num(r)",
    TARGETS + "r = F.binary_cross_entropy_with_logits({x}, F.one_hot(p, {c}).to({x}.dtype), pos_weight=w[:{c}].detach().exp())",
    "r = F.binary_cross_entropy({x}.sigmoid(), (i[:, :{x}.shape[1], None] > 9).to({x}.dtype).expand_as({x}), reduction='sum')",
    "r = F.mse_loss({x}[:, 1:], {x}[:, :-1])",
    "r = F.kl_div({x}.log_softmax(-1), {x}.detach().flip(1).softmax(-1), reduction='batchmean')", "r = F.huber_loss({x}, {x}.flip(1), delta=0.7)",
    "r = F.kl_div({x}.log_softmax(-1), {x}.roll(1, 1).log_softmax(-1), log_target=True)",
    "r = F.smooth_l1_loss({x}, {x}.roll(1, 1), beta=0.4, reduction='none')",
    "r = F.l1_loss({x}, {x}.roll(1, 1).detach())", "r = F.cosine_embedding_loss({x}[:, 0], {x}[:, -1], 1 - 2 * (n[:{x}.shape[0]] % 2), margin=0.1)",
    "r = F.triplet_margin_loss({x}[:, 0], {x}[:, 1], {x}[:, -1])", "r = F.gaussian_nll_loss({x}, {x}.flip(1).detach(), F.softplus({x}))",
    "r = F.poisson_nll_loss({x}, {x}.detach().abs(), full=True)", "r = F.soft_margin_loss({x}, {x}.detach().sign())",
    "r = F.cosine_similarity({x}, {x}.flip(1), -1)",
    "r = F.ctc_loss({x}.log_softmax(-1).transpose(0, 1), i[:, :2] % ({c} - 1) + 1, torch.full(({x}.shape[0],), {x}.shape[1]), torch.full(({x}.shape[0],), 2))",
    TARGETS + "r = {x}.log_softmax(-1).gather(-1, p[..., None]).squeeze(-1).sum(1) / n[:{x}.shape[0]]",
    TARGETS + "r = F.multi_margin_loss({x}.flatten(0, 1), p.flatten())",
    "r = F.margin_ranking_loss({x}[:, 1:], {x}[:, :-1], torch.ones(1, 1, 1), margin=0.2)", "r = F.hinge_embedding_loss({x}, {x}.detach().sign())",
    "r = {x}.prod(1)",
    "r = F.multilabel_soft_margin_loss({x}.mean(1), ({x}.mean(1) > 0).to({x}.dtype))", "r = {x}", "r = {x}.mT", "r = {x}.std((0, 1))", "r = {x}.topk(2, 1)[1]",
    TARGETS + "r = ({x}.argmax(-1) == p).to({x}.dtype).mean() + {x}.mean()", "r = torch.pdist({x}.mean(1))", "r = {x}.norm(dim=1)", "r = {x}.cumsum(1)[:, -1]",
    "r = {x}.aminmax(dim=1)[1]",
)  # fmt: skip
WIDTHS = (4, 6, 8, 16)
LENGTHS = (4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 33, 64)
BATCHES = (1, 2, 3, 4, 6)
MOST = 20_000  # elements of a tensor
LARGEST = 1e4  # value of a tensor
ALLOWED = 20
BREAKS = {"data-dependent-shape", "data-dependent-branch"}  # of ctc_loss, which looks at what its operands hold
KNOWN = re.compile("is the memory of a torch.complex64 tensor|_use_cudnn_ctc_loss")
COUNTED = re.compile(r"unbind\([01]\)|range\(\w+\.shape\[0\]\)")  # a size is the length of a list
CALLS = 4

OF_A_LENGTH = (
    "t = {x} * torch.hann_window({x}.shape[1]).to({x}.dtype)[:, None]",
    "t = {x} * torch.hamming_window({x}.shape[1], False).to({x}.dtype)[:, None]",
    "t = {x} + torch.bartlett_window({x}.shape[1]).to({x}.dtype)[:, None]",
    "t = {x} - torch.blackman_window(2 * {x}.shape[1]).to({x}.dtype)[::2, None]",
    "t = {x} + torch.arange(0.0, {x}.shape[1], dtype={x}.dtype)[:, None] * 0.1",
    "t = {x} * torch.arange(0, {x}.shape[1] / 1, 0.5, dtype={x}.dtype)[::2, None]",
    "t = {x} * torch.arange(0, {x}.shape[1], 0.5, dtype={x}.dtype)[::2, None] * 0.1",
    "t = {x} + torch.fft.fftfreq({x}.shape[1], dtype={x}.dtype)[:, None]",
    "t = {x}[:, :{x}.shape[1] // 2 + 1] * torch.fft.rfftfreq({x}.shape[1]).to({x}.dtype)[:, None]",
    "t = torch.gradient({x}, dim=1)[0] + {x}",
    "t = {x} - F.avg_pool1d({x}.mT, {x}.shape[1]).mT",
    "t = {x} - F.max_pool1d({x}.mT, {x}.shape[1]).mT",
    "t = {x} - F.max_pool2d({x}, ({x}.shape[1], 1))",
    "t = {x} + F.avg_pool2d({x}[:, None], {x}.shape[1:])[:, 0]",
    "t = F.one_hot(i % {x}.shape[1], {x}.shape[1]).to({x}.dtype) @ {x}",
    "t = {x} + torch.logspace(0, 1, steps={x}.shape[1], dtype={x}.dtype)[:, None] * 0.1",
    "t = F.pad({x}, (0, 0, 0, (1 << {x}.shape[1].bit_length()) - {x}.shape[1]))",
    "t = torch.Tensor({x}.shape).to({x}.dtype).fill_(0.5) * {x}",
    "t = {x}[:, :8] * 2",
    "t = {x}[:, :6].sin()",
    "t = {x}[:, 1:5].softmax(1)",
    "t = {x}[:, :8].cumsum(1) * 0.3",
    "t = {x}[:, :6].reshape({x}.shape[0], -1, {c}) * 2",
    "t = {x}[:, :8].contiguous().exp()",
    "t = {x}[:3].mT.contiguous().mT + 1",
    "t = {x} * 1; t[:, :6] = 0.5",
)  # fmt: skip
FIRST_OF_A_LENGTH = 900_000


@dataclass(frozen=True)
class Program:
    """calls: batch, length and width of x, and the length of k. symbols: what `compile` is told of them. differentiated: inputs have gradients.
    default: calls are made under the device of the tensors, as all are on other devices."""

    seed: int
    source: str
    calls: tuple[tuple[int, int, int, int], ...]
    symbols: Any
    differentiated: bool
    default: bool = False

    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), space)
        return space["program"]

    def arguments(self, call: int, dtype: torch.dtype, device: str = "cpu") -> dict[str, torch.Tensor]:
        """x, k: sequences; w: weights; i: a token of 32 for each element of x's sequences; n: their lengths."""
        generator = torch.Generator().manual_seed(self.seed * 16 + call)
        batch, length, width, other = self.calls[call]
        x, w, k = (torch.randn(size, generator=generator) for size in ((batch, length, width), (4096,), (batch, other, width)))
        i = torch.randint(32, (batch, length), generator=generator)
        n = torch.randint(1, length + 1, (batch,), generator=generator)
        x, w, k = (t.to(device, dtype).requires_grad_(self.differentiated) for t in (x, w, k))
        return {"x": x, "w": w, "i": i.to(device), "n": n.to(device), "k": k}


def sizes(pick: random.Random, moves: tuple[int, ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Of the calls, which differ in the places `moves`."""
    width = pick.choice(WIDTHS)
    found: list[list[int]] = []
    for _ in range(CALLS):
        size = [pick.choice(BATCHES), pick.choice(LENGTHS), width, pick.choice(LENGTHS)]
        found.append([n if at in moves or not found else found[0][at] for at, n in enumerate(size)])
    return tuple(tuple(size) for size in found)  # type: ignore[misc]


def marks(moves: set[int]) -> dict[str, dict[int, dict]]:
    """Of the dimensions that vary, as `compile` takes them."""
    places = {"x": (0, 1), "i": (0, 1), "n": (0,), "k": (0, 3)}
    return {name: {dim: {} for dim, place in enumerate(of) if place in moves} for name, of in places.items() if moves & set(of)}


class Writer:
    """Statements that run for the sizes of all calls."""

    def __init__(self, pick: random.Random, program: Program):
        self.pick, self.lines = pick, list[str]()
        self.spaces: list[dict[str, Any]] = [{"torch": torch, "F": F, **program.arguments(call, torch.float32)} for call in range(CALLS)]

    def add(self, form: str) -> bool:
        pick, name = self.pick, "t" if self.lines else "x"
        width = self.spaces[0][name].shape[-1]
        heads = [h for h in (1, 2, 4) if width % h == 0]
        h = pick.choice(heads)
        filled = {"h": h, "g": pick.choice([g for g in heads if h % g == 0]), "c": width, "k": pick.choice((1, 2, 3)), "m": pick.choice(("sum", "mean", "max"))}
        text = form.format(x=name, d=pick.randrange(3), **filled)
        made = [dict(space) for space in self.spaces]
        try:
            for space in made:
                exec(text, space)
        except Exception:  # noqa: BLE001 - no statement for these sizes
            return False
        if not all(fits(space[result], result == "t") for space in made for result in ("t", "r") if result in space):
            return False
        self.spaces = made
        self.lines += text.replace("; ", "\n").split("\n")
        return True


def fits(value: torch.Tensor, sequence: bool) -> bool:
    if value.numel() > MOST or not value.numel() or (sequence and value.dim() != 3):
        return False
    return not value.is_floating_point() or bool((value.detach().abs() < LARGEST).all())


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    moves = pick.choice(((1, 3), (1, 3), (0, 1, 3), (0, 1, 3), (0, 1), (0,)))
    plain = Program(seed, "", sizes(pick, moves), pick.choice((None, None, True, True, True, marks(set(moves)))), pick.random() < 0.85)
    writer, wanted = Writer(pick, plain), pick.randint(2, 5)
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        made = 0
        while made < wanted:
            is_of_length = seed >= FIRST_OF_A_LENGTH and pick.random() < 0.5
            made += writer.add(pick.choice(OF_A_LENGTH if is_of_length else SEQUENCES[pick.choice(list(SEQUENCES))]))
        while not writer.add(pick.choice(ENDS)):
            pass
    body = "".join(f"    {line}\n" for line in writer.lines)
    symbols = plain.symbols if not COUNTED.search(body) or not isinstance(plain.symbols, dict) else True
    default = pick.random() < 0.25
    return Program(seed, f"def program(x, w, i, n, k):\n{body}    return r, t\n", plain.calls, symbols, plain.differentiated, default)


def run(function: Callable, program: Program, call: int, dtype: torch.dtype, device: str) -> list[torch.Tensor | None]:
    """Results, and the gradients of x, w and k."""
    given = program.arguments(call, dtype, device)
    with torch.device(device) if program.default or device != "cpu" else nullcontext():
        made = list(function(**given))
    roots = [t for t in made if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [weights(t).to(device) for t in roots])
    return [*made, *(given[name].grad for name in "xwk")]


def check_program(program: Program, counts: Counter, backend: str = "default", device: str = "cpu") -> None:
    """Raises AssertionError for what differs from eager."""
    dynacompile.reset()
    events: list[object] = []
    options = {"fallback": "none", "verify": True, "reference": backend == "reference"}
    compiled = dynacompile.compile(program.function(), isolate_recompiles=True, dynamic=program.symbols, options=options)
    end = dynacompile.subscribe(events.append)
    try:
        for call in range(CALLS):
            check_call(compiled, program, call, counts, device)
    finally:
        end()
    left = [event for event in events if isinstance(event, FrameSkipped) or (isinstance(event, GraphBroke) and event.code not in BREAKS)]
    broke = [event.reason for event in left if not KNOWN.search(event.reason)]
    assert not broke, f"not one graph: {broke[0]}"
    entries = sum(isinstance(event, Compiled) for event in events)
    counts["entries"] += entries
    counts["symbols that served no further call"] += entries >= CALLS and program.symbols is True


def check_call(compiled: Callable, program: Program, call: int, counts: Counter, device: str) -> None:
    try:
        best = run(program.function(), program, call, torch.float64, "cpu")
        want = run(program.function(), program, call, torch.float32, device)
    except RuntimeError:  # as of what a write has changed before its backward
        counts["refused by eager"] += 1
        return
    got = run(compiled, program, call, torch.float32, device)
    counts["calls"] += 1
    for name, a, b, exact in zip(("result", "sequence", *(f"gradient of {of}" for of in "xwk")), got, want, best, strict=True):
        where = f"call {call} of {program.calls[call]}: {name}"
        assert (a is None) == (b is None), f"{where}: {a}, and eager {b}"
        if a is None or b is None or exact is None:
            continue
        assert (a.shape, a.dtype, strides(a)) == (b.shape, b.dtype, strides(b)), f"{where}: {a.shape} {a.stride()}, eager's {b.shape} {b.stride()}"
        assert a.requires_grad == b.requires_grad, f"{where}: requires_grad={a.requires_grad}"
        assert torch.equal(a.isnan(), b.isnan()), f"{where}: {int(a.isnan().sum())} NaN, eager's {int(b.isnan().sum())}"
        got64, want64, exact64 = (t.detach().cpu().double().nan_to_num() for t in (a, b, exact))
        error, own = ((t - exact64).abs().max().item() for t in (got64, want64))
        scale = exact64.abs().max().item()
        counts["values"] += a.numel()
        assert error <= ALLOWED * own + 1e-6 * scale + 1e-7, f"{where}: off by {error}, eager by {own}, where values reach {scale}"


if __name__ == "__main__":
    raise SystemExit(main("sequences", "Compare programs over sequences with eager's.", generate, check_program, backend="default", device="cpu"))
