"""torch's flex_attention: functions of scores and of their places, mapped over all of them, in operations that autograd differentiates.

The definition is torch's own for eager: products and scores in float32 at least, weights rounded to the queries' dtype, queries that see no key
get zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynacompile.ops.attention import Reader, scaled

Mapped = Callable[..., torch.Tensor]
"""A function of a score (or not), its batch, head, query and key, and of the tensors that it reads besides; all but the latter have no dimensions."""


def index_by_points(tensor: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """tensor[indices] for indices without dimensions, which are mapped: torch's own subscript would ask for their numbers."""
    return torch.ops.aten.index.Tensor(tensor, list(indices))


def of_points(graph: torch.fx.GraphModule) -> Mapped:
    """The function whose graph capture has followed."""

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return graph.forward(*tensors)[0]

    return function


def over_points(function: Mapped, score: torch.Tensor | None, sizes: Sequence[int], reads: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The function at each of (batch, head, query, key), a tensor of these sizes."""
    first, rest = () if score is None else (0,), (None,) * len(reads)
    for place in (3, 2, 1, 0):
        function = torch.func.vmap(function, (*first, *(0 if k == place else None for k in range(4)), *rest))
    places = [torch.arange(0, size, device=device) for size in sizes]
    return function(*(() if score is None else (score,)), *places, *reads)


class MaskOverPoints:
    """The target of nodes that make a mask from a function of places, or of a score and places, of which it is true where the score is not minus infinity."""

    __module__, __name__ = __name__, "flex_mask"

    def __init__(self, graph: torch.fx.GraphModule, has_score: bool):
        self.graph, self.has_score = graph, has_score

    def __call__(self, batch: int, heads: int, queries: int, keys: int, device: torch.device, *reads: torch.Tensor) -> torch.Tensor:
        sizes = (batch, heads, queries, keys)
        score = torch.zeros(sizes, device=device) if self.has_score else None
        made = over_points(of_points(self.graph), score, sizes, reads, device)
        return ~torch.isneginf(made) if self.has_score else made


@dataclass(frozen=True)
class Blocks:
    """Which blocks of keys blocks of queries see, in tensors. size: queries and keys of a block. forward, backward: how many tensors say it, of each block of
    queries and of each block of keys: numbers of blocks that are seen in part, and which, then the same of those that are seen as a whole."""

    size: tuple[int, int]
    forward: int
    backward: int


class Flexible:
    """The target of nodes that are flex_attention. score, mask: graphs of functions, or None; reads: how many tensors each reads besides.
    auxiliary: more is asked for than the attention itself, which is followed by the logarithms of the sums, and the largest scores.
    blocks: of a mask; their tensors come last, and say nothing that the mask does not."""

    __module__, __name__ = __name__, "flex_attention"
    blocks: Blocks | None = None

    def __init__(self, score: torch.fx.GraphModule | None, mask: torch.fx.GraphModule | None, reads: tuple[int, int], scale: float, auxiliary: bool):
        self.score, self.mask, self.reads, self.scale, self.auxiliary = score, mask, reads, scale, auxiliary

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *reads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = autocast(query, key, value)
        with torch.autocast(query.device.type, enabled=False):
            return self.attend(query, *self.spread(query, key, value), reads)

    def spread(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values for each head and each of the batch."""
        if key.shape[1] != query.shape[1]:
            each = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(each, 1) for t in (key, value))
        return key.expand(query.shape[0], *key.shape[1:]), value.expand(query.shape[0], *value.shape[1:])

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, reads: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * self.scale
        visible = self.visible(query, key, reads)
        if self.score is not None:
            scores = over_points(of_points(self.score), scores, scores.shape, reads[: self.reads[0]], query.device)
            scores = scores if scores.is_floating_point() else scores.to(wide)
        if visible is not None:
            scores = torch.where(visible, scores, torch.full([], -math.inf, dtype=wide, device=query.device))
        weights, sums = weights_of(scores)
        made = laid_like(weights.to(query.dtype) @ value.to(query.dtype), query)
        return (made, sums, scores.detach().amax(-1)) if self.auxiliary else (made,)

    def visible(self, query: torch.Tensor, key: torch.Tensor, reads: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Where keys are seen; None: everywhere."""
        if self.mask is None:
            return None
        sizes = (*query.shape[:3], key.shape[2])
        return unexpanded(over_points(of_points(self.mask), None, sizes, reads[self.reads[0] : sum(self.reads)], query.device))


@dataclass(frozen=True)
class FlexibleKernel:
    """Such attention, without a function of scores, by torch's attention operator."""

    form: Flexible

    def __repr__(self) -> str:
        return "FlexibleKernel()"  # in the text of graphs

    def traced(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *reads: torch.Tensor, reader: Reader, attention: Callable[..., torch.Tensor]
    ) -> tuple[torch.Tensor]:
        query, key, value = autocast(query, key, value)
        with torch.autocast(query.device.type, enabled=False):
            given, visible = self.given(query, key, value, reads)
            made = self.without_mask(given, visible, reader, attention)
            return (laid_like(self.masked(given, visible, reader, attention) if made is None else made, query),)

    def given(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, reads: Sequence[torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor | None]:
        """The operator's arguments, and where keys are seen."""
        key, value = self.form.spread(query, key, value)
        given = {name: t if t.stride(-1) == 1 else t.contiguous() for name, t in (("query", query), ("key", key), ("value", value))}
        return {**given, **scaled(given["query"], self.form.scale)}, self.form.visible(query, key, reads)

    def without_mask(self, given: dict[str, Any], visible: torch.Tensor | None, reader: Reader, attention: Callable[..., torch.Tensor]) -> torch.Tensor | None:
        """The attention where the operator needs no mask for it."""
        if visible is None:
            return attention(**given)
        kind = reader.kind({**given, "attn_mask": visible})
        return None if kind == "other" else attention(**given, is_causal=kind == "causal")

    def masked(self, given: dict[str, Any], visible: torch.Tensor | None, reader: Reader, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        assert visible is not None
        if reader.sees(visible):
            return attention(**given, attn_mask=visible)
        seen = visible.any(-1, keepdim=True)
        return attention(**given, attn_mask=visible | ~seen).masked_fill(~seen, 0.0)


def autocast(*operands: torch.Tensor) -> Iterator[torch.Tensor]:
    kind = operands[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (t if dtype is None or t.dtype == torch.float64 else t.to(dtype) for t in operands)


def weights_of(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax of scores, and the logarithms of its sums; of queries whose scores are all minus infinity, whether a function hides the keys or the products
    are infinite, zeros and minus infinity, which no gradient passes."""
    unseen = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(unseen, 0.0)
    return scores.softmax(-1).masked_fill(unseen, 0.0), scores.logsumexp(-1).masked_fill(unseen.squeeze(-1), -math.inf)


def unexpanded(mask: torch.Tensor) -> torch.Tensor:
    """The mask with one batch, or head, where all are the same memory."""
    for dim in (0, 1):
        if mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def laid_like(result: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The result with its dimensions in memory as the queries have theirs, the last one innermost."""
    strides = query.stride()
    inward = sorted(range(3), key=lambda dim: (-strides[dim], dim))
    order = [*inward, 3]
    return result.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
