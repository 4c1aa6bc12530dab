"""Hand-written attention, computed by torch's attention operator: softmax(scale * q @ k^T + masks) @ v, without the scores.

The operator and the hand-written form differ in queries that see no key. There eager divides zero by zero where scores were hidden by minus infinity,
and averages all values where they were hidden by a number. Both are computed beside the operator, which is given a mask by which such queries see
every key, so that its own answer for them, which differs from kernel to kernel, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from dynacompile.ops.reading import Reading

LOW = -1e38
"""The lowest bias that is given to kernels on GPUs: they multiply by log2(e), beside which the lowest float32 and bfloat16 become minus infinity."""


class KeptAsWritten(Exception):
    """Attention that can't be torch's operator, as is found while it is traced. reasons: by the names of last nodes."""

    def __init__(self, reasons: Mapping[str, str]):
        super().__init__(", ".join(reasons.values()))
        self.reasons = dict(reasons)


class Scores:
    """What stands for scores and weights: the operands that they are made from, in the order of the graph's operations."""

    def __init__(self, query: torch.Tensor, keys: torch.Tensor):
        """keys: transposed, as the product has them."""
        self.operands = [query, keys]
        self.read = [Reading.of(query), Reading.of(keys)]

    def with_operand(self, operand: torch.Tensor) -> Scores:
        self.operands.append(operand)
        self.read.append(Reading.of(operand))
        return self

    def are_written(self) -> bool:
        return any(reading.is_written() for reading in self.read)


def hold_scores(query: torch.Tensor, keys: torch.Tensor) -> Scores:
    return Scores(query, keys)


def hold_biased_scores(bias: torch.Tensor, query: torch.Tensor, keys: torch.Tensor) -> Scores:
    return Scores(query, keys).with_operand(bias)


def hold_same_scores(scores: Scores) -> Scores:
    return scores


def hold_operand(scores: Scores, operand: torch.Tensor) -> Scores:
    return scores.with_operand(operand)


@dataclass(frozen=True)
class Term:
    """A mask, the operand of the same place. bias: it is added, `factor` times. hidden, shown: where it is true, or false, scores become `factor`."""

    kind: Literal["bias", "hidden", "shown"]
    factor: float


class Reader(Protocol):
    """What is known of masks while compiling."""

    def kind(self, given: dict[str, Any]) -> str:
        """ "all", "causal" or "other": of the mask among the arguments of an attention."""

    def refuse(self, place: str, reason: str) -> None:
        """Attention that has to stay as it is written; what is traced is dropped in the end."""

    def sees(self, visible: torch.Tensor) -> bool:
        """Whether each row of a mask of truth values is known to have one that is true."""


@dataclass(frozen=True)
class HandWritten:
    """Attention in the place of the product of weights and values.

    place: the name of the node. scale: of the product of queries and keys. terms: in the order of the operands that follow queries and keys.
    dtype: that products are computed in. product: the leading sizes of the scores; masked: those with which masks are applied; weighted: those with
    which values are multiplied. low: scores below it keep no digits beside those of others.
    """

    place: str
    scale: float
    terms: tuple[Term, ...]
    dtype: torch.dtype
    product: tuple
    masked: tuple
    weighted: tuple
    low: float

    def traced(self, scores: Scores, value: torch.Tensor, *, reader: Reader, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        if scores.are_written():
            reader.refuse(self.place, "the graph writes an operand of the scores before it uses the weights")
        query, key = scores.operands[0], scores.operands[1].transpose(-2, -1)
        rows = query.shape[-2]
        q, k = (self.placed(t, self.product) for t in (query, key))
        v = self.placed(value, self.weighted)
        masks = [self.mask_of(*pair) for pair in zip(self.terms, scores.operands[2:], strict=True)]
        visible = both([m for m in masks if m.dtype == torch.bool], torch.logical_and)
        bias = both([m for m in masks if m.dtype != torch.bool], torch.add)
        bias = None if bias is None else bias.to(self.dtype)
        made = self.attend({**scaled(q, self.scale), "key": k, "value": v}, visible, bias, reader, attention)
        return made.reshape(*self.weighted, rows, value.shape[-1])

    def attend(
        self, given: dict[str, Any], visible: torch.Tensor | None, bias: torch.Tensor | None, reader: Reader, attention: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """The result with four dimensions."""
        if visible is None and bias is None:
            return attention(**given)
        mask = visible if bias is None else bias if visible is None else torch.where(visible, bias, -math.inf)
        kind = reader.kind({**given, "attn_mask": mask})
        if kind != "other":
            return attention(**given, is_causal=kind == "causal")
        recorded = torch.is_grad_enabled() and (given["query"].requires_grad or given["key"].requires_grad)
        if bias is not None and recorded and not reader.sees(bias > self.low):
            reader.refuse(self.place, "a bias may hide all keys of a query, whose gradients torch's operator has otherwise")
        some = both([m for m in (visible, None if bias is None else bias != -math.inf) if m is not None], torch.logical_and)
        assert some is not None
        if reader.sees(some):
            return attention(**given, attn_mask=bearable(mask))
        shown = None if visible is None else visible.any(-1, keepdim=True)
        if visible is not None and shown is not None:
            visible = visible | ~shown
            mask = visible if bias is None else torch.where(visible, bias, -math.inf)
        made = attention(**given, attn_mask=bearable(mask))
        if bias is not None:
            seen = some.any(-1, keepdim=True)
            made = made * missing(seen if shown is None else seen | ~shown, made)
        return made if shown is None else torch.where(shown, made, self.unseen(given["value"], shown))

    def unseen(self, value: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        """What queries get all of whose keys are hidden. Eager passes no gradient on to hidden scores, and one of NaN to the values, if they are multiplied by
        weights of NaN."""
        mean = value.to(torch.promote_types(value.dtype, torch.float32)).mean(-2, keepdim=True).to(value.dtype)
        fill = next(t.factor for t in self.terms if t.kind != "bias")
        return mean if fill != -math.inf else mean * missing(shown, mean)

    def placed(self, tensor: torch.Tensor, leading: tuple) -> torch.Tensor:
        """A tensor with the leading sizes `leading` as one with four dimensions, which is computed with."""
        tensor = tensor.to(self.dtype).expand(*leading, *tensor.shape[-2:])
        sizes = (1,) * (2 - len(self.masked)) + self.masked
        if len(sizes) > 2:
            sizes = (sizes[0], math.prod(sizes[1:]))
        tensor = tensor.reshape(*sizes, *tensor.shape[-2:])
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

    def mask_of(self, term: Term, operand: torch.Tensor) -> torch.Tensor:
        """A bias, or where scores are visible; with two dimensions or four."""
        if term.kind == "bias":
            operand = operand if term.factor == 1 else operand * term.factor
        else:
            operand = operand.logical_not() if term.kind == "hidden" else operand.to(torch.bool)
        while operand.dim() < 2:
            operand = operand.unsqueeze(0)
        if operand.dim() == 2:
            return operand
        while operand.dim() < max(len(self.masked) + 2, 4):
            operand = operand.unsqueeze(0)
        if operand.dim() == 4:
            return operand
        middle = tuple(operand.shape[1:-2])
        if any(size != 1 for size in middle):
            middle = self.masked[1:]
        operand = operand.expand(operand.shape[0], *middle, *operand.shape[-2:])
        return operand.reshape(operand.shape[0], math.prod(middle), *operand.shape[-2:])


def scaled(query: torch.Tensor, scale: float) -> dict[str, Any]:
    """An attention's queries and scale, which is not negative: kernels take the largest score before they scale, and hide those of a causal one by -inf
    before."""
    return {"query": query, "scale": scale} if scale >= 0 else {"query": -query, "scale": -scale}


def by_operator(*operands_and_form: Any) -> Any:
    """The target of nodes that stand for attention by torch's operator. They are traced with what is known of their masks: see `HandWritten.traced`."""
    raise AssertionError("traced, never run")


def both(masks: Sequence[torch.Tensor], join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    found = None
    for mask in masks:
        found = mask if found is None else join(found, mask)
    return found


def missing(seen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A factor that leaves rows as they are that see a key, and makes others NaN."""
    return torch.where(seen, 1.0, math.nan).to(like.dtype)


def bearable(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A bias that kernels on GPUs may multiply by log2(e)."""
    if mask is None or mask.device.type != "cuda" or mask.dtype not in (torch.float32, torch.bfloat16):
        return mask
    low = torch.where(mask == -math.inf, mask, LOW)
    return torch.where(mask < LOW, low, mask)
