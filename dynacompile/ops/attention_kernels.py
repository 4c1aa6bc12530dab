"""Attention whose scores and mask functions of points change, as three operators: one forward, one for each of the kernels of its backward.

A kernel of ours computes each, block by block (`codegen/triton/attention.py`). What is here computes all scores at once: it says what the operators mean, runs
where programs are interpreted, and is what kernels are tested against. `blocks` are the tensors of a BlockMask, which only say what may be skipped: which
scores count, the mask says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dynacompile.ops.flexible_attention import Blocks, laid_like
from dynacompile.ops.point_functions import PLACE, parsed, spread

Numbers = Sequence[Any]
LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
SHARED = "Tensor[] blocks, int[] block_size, Tensor[] reads, Scalar[] numbers, str score, str mask, float scale, str precision"
LIBRARY.define(f"attention(Tensor query, Tensor key, Tensor value, {SHARED}) -> (Tensor, Tensor, Tensor)")
PASSED = "Tensor query, Tensor key, Tensor value, Tensor grad, Tensor logarithms, Tensor delta"
LIBRARY.define(f"attention_query_gradient({PASSED}, {SHARED}, str derivative, int[] wanted) -> Tensor[]")
LIBRARY.define(f"attention_key_gradient({PASSED}, {SHARED}, str derivative) -> (Tensor, Tensor)")

FORWARD = torch.ops.dynacompile.attention.default
"""(the attention, the logarithms of the sums of exponentials, the largest scores). Queries that see no key get zeros, and minus infinity. block_size: queries
and keys of a block; blocks: for each block of queries how many blocks of keys it sees in part, and which; then the same of blocks that it sees as a whole, to
which the mask is not applied, where the mask tells them apart. Without blocks every key is looked at. score, mask: functions of points, "" for none. precision:
of products of float32: "ieee", "tf32", or "exact", by multiplications and additions of float32."""
QUERY_GRADIENT = torch.ops.dynacompile.attention_query_gradient.default
"""The gradient of the queries, and those of the reads at the places `wanted`, in float32. delta: of each query the sum of its result times its gradient, less
the gradient of its logarithm. derivative: of the function of scores, a function of the score and the gradient of its result; "" where there is none."""
KEY_GRADIENT = torch.ops.dynacompile.attention_key_gradient.default
"""The gradients of keys and values. blocks: for each block of keys the blocks of queries that see it."""
DEVICES = {"cuda"}
"""Where there are kernels."""


@dataclass(frozen=True)
class Scores:
    """Scores of all queries and keys before and after they are changed, in float32 at least, and where they count (None: everywhere)."""

    before: torch.Tensor
    after: torch.Tensor
    visible: torch.Tensor | None
    given: dict[str, Any]

    def hidden(self, value: torch.Tensor, fill: float) -> torch.Tensor:
        return value if self.visible is None else torch.where(self.visible, value, fill)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def each_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], 1)


def scores_of(query: torch.Tensor, key: torch.Tensor, reads: Sequence[torch.Tensor], numbers: Numbers, score: str, mask: str, scale: float) -> Scores:
    before = (wide(query) @ each_head(wide(key), query.shape[1]).mT) * scale
    given: dict[str, Any] = {f"r{i}": spread(t) for i, t in enumerate(reads)} | {f"n{i}": n for i, n in enumerate(numbers)}
    for dim, name in enumerate(PLACE):
        given[name] = torch.arange(before.shape[dim], device=query.device).reshape([-1 if d == dim else 1 for d in range(4)])
    given["score"] = before
    after = parsed(score).run(given, query.device)[0].to(before.dtype).expand(before.shape) if score else before
    visible = parsed(mask).run(given, query.device)[0].expand(before.shape) if mask else None
    made = Scores(before, after, visible, given)
    return Scores(before, made.hidden(after, -math.inf), visible, given)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    block_size: Sequence[int],
    reads: Sequence[torch.Tensor],
    numbers: Numbers,
    score: str,
    mask: str,
    scale: float,
    precision: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = scores_of(query, key, reads, numbers, score, mask, scale).after
    unseen = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.where(unseen, 0.0, scores.softmax(-1))
    made = (weights @ each_head(wide(value), query.shape[1])).to(query.dtype)
    logarithms = torch.where(unseen, -math.inf, scores.logsumexp(-1, keepdim=True)).squeeze(-1)
    return laid_like(made, query), logarithms, scores.amax(-1)


@dataclass(frozen=True)
class Derivatives:
    """weights: of the values. scores: gradients of the products of queries and keys. additions: to the gradients of what the functions read."""

    weights: torch.Tensor
    scores: torch.Tensor
    additions: list[tuple[str, list[torch.Tensor], torch.Tensor]]


def derivatives(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    logarithms: torch.Tensor,
    delta: torch.Tensor,
    reads: Sequence[torch.Tensor],
    numbers: Numbers,
    functions: tuple[str, str, str],
    scale: float,
) -> Derivatives:
    score, mask, derivative = functions
    scores = scores_of(query, key, reads, numbers, score, mask, scale)
    shift = torch.where(logarithms == -math.inf, 0.0, logarithms)[..., None]
    weights = (scores.after - shift).exp()
    made = weights * (wide(grad) @ each_head(wide(value), query.shape[1]).mT - delta[..., None])
    additions: list[tuple[str, list[torch.Tensor], torch.Tensor]] = []
    if derivative:
        made, additions = parsed(derivative).run({**scores.given, "grad": made}, query.device)
        made = made.to(weights.dtype).expand(weights.shape)
        additions = [(of, indices, scores.hidden(value.expand(made.shape), 0.0)) for of, indices, value in additions]
    return Derivatives(weights, scores.hidden(made, 0.0) * scale, additions)


def query_gradient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    logarithms: torch.Tensor,
    delta: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    block_size: Sequence[int],
    reads: Sequence[torch.Tensor],
    numbers: Numbers,
    score: str,
    mask: str,
    scale: float,
    precision: str,
    derivative: str,
    wanted: Sequence[int],
) -> list[torch.Tensor]:
    found = derivatives(query, key, value, grad, logarithms, delta, reads, numbers, (score, mask, derivative), scale)
    sums = {f"r{i}": torch.zeros(reads[i].shape, dtype=torch.float32, device=query.device) for i in wanted}
    for name, indices, added in found.additions:
        if indices:
            sums[name].index_put_(tuple(i.expand(added.shape) for i in indices), added.to(torch.float32), accumulate=True)
        else:
            sums[name] += added.sum()
    made = (found.scores @ each_head(wide(key), query.shape[1])).to(query.dtype)
    return [like_operand(made, query), *sums.values()]


def key_gradient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    logarithms: torch.Tensor,
    delta: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    block_size: Sequence[int],
    reads: Sequence[torch.Tensor],
    numbers: Numbers,
    score: str,
    mask: str,
    scale: float,
    precision: str,
    derivative: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    found = derivatives(query, key, value, grad, logarithms, delta, reads, numbers, (score, mask, derivative), scale)

    def together(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(1, (key.shape[1], -1)).sum(2)

    of_keys, of_values = together(found.scores.mT @ wide(query)), together(found.weights.mT @ wide(grad))
    return like_operand(of_keys.to(key.dtype), key), like_operand(of_values.to(value.dtype), value)


def like_operand(grad: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """Laid out as an operand that is not expanded."""
    return grad.contiguous() if 0 in operand.stride() else laid_like(grad, operand)


# The same on fakes


def show_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = laid_like(query.new_empty((*query.shape[:3], value.shape[3])), query)
    logarithms, largest = (query.new_empty(query.shape[:3], dtype=wide(query).dtype) for _ in range(2))
    return made, logarithms, largest


def show_query_gradient(query: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    reads, wanted = rest[7], rest[-1]
    return [like_operand(query.new_empty(query.shape), query), *(query.new_empty(reads[i].shape, dtype=torch.float32) for i in wanted)]


def show_key_gradient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return like_operand(key.new_empty(key.shape), key), like_operand(value.new_empty(value.shape), value)


IMPLEMENTED: dict[str, tuple[Callable, Callable]] = {
    "attention": (attention, show_attention),
    "attention_query_gradient": (query_gradient, show_query_gradient),
    "attention_key_gradient": (key_gradient, show_key_gradient),
}
for name, (run, show) in IMPLEMENTED.items():
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dynacompile::{name}", show, lib=LIBRARY)


# Under autograd


@dataclass(frozen=True)
class Form:
    """What the operators are told beside tensors. reads: how many. blocks: of a mask. wanted: the reads that may have gradients."""

    score: str
    mask: str
    derivative: str
    numbers: tuple[Any, ...]
    reads: int
    blocks: Blocks
    wanted: tuple[int, ...]
    scale: float
    precision: str


class Attention(torch.autograd.Function):
    """By the operators. rest: what the functions read, then the tensors that are `form.blocks`."""

    @staticmethod
    def forward(ctx: Any, form: Form, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        reads, blocks = rest[: form.reads], rest[form.reads :][: form.blocks.forward]
        shared = list(form.blocks.size), list(reads), list(form.numbers), form.score, form.mask, form.scale, form.precision
        made, logarithms, largest = FORWARD(query, key, value, list(blocks), *shared)
        ctx.save_for_backward(query, key, value, made, logarithms, *rest)
        ctx.form = form
        ctx.mark_non_differentiable(largest)
        return made, logarithms, largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor | None, of_logarithms: torch.Tensor | None, of_largest: torch.Tensor | None) -> tuple:
        form: Form = ctx.form
        query, key, value, made, logarithms, *rest = ctx.saved_tensors
        count = form.reads
        wants = ctx.needs_input_grad[1:]
        if grad is None and of_logarithms is None:
            return (None,) * (4 + len(rest))
        delta = torch.zeros_like(logarithms) if grad is None else (wide(grad) * wide(made)).sum(-1)
        delta = delta if of_logarithms is None else delta - of_logarithms
        grad = torch.zeros_like(made) if grad is None else grad if grad.stride(-1) == 1 else grad.contiguous()
        blocks, half = rest[count:], form.blocks.forward
        shared = list(form.blocks.size), rest[:count], list(form.numbers), form.score, form.mask, form.scale, form.precision, form.derivative
        wanted = [i for i in form.wanted if wants[3 + i]]
        grads: list[torch.Tensor | None] = [None] * len(wants)
        if wants[0] or wanted:
            grads[0], *sums = QUERY_GRADIENT(query, key, value, grad, logarithms, delta, blocks[:half], *shared, wanted)
            for i, found in zip(wanted, sums, strict=True):
                grads[3 + i] = found.to(rest[i].dtype)
        if wants[1] or wants[2]:
            grads[1], grads[2] = KEY_GRADIENT(query, key, value, grad, logarithms, delta, blocks[half:], *shared)
        return None, *(g if w else None for g, w in zip(grads, wants, strict=True))
