"""Attention whose mask is known while compiling: a mask that hides nothing is left out, and the lower triangle becomes `is_causal`.

Kernels for attention without a mask, or with a causal one, never read a bias of one number per query and key, and torch may choose the fast ones for them.
A mask that is known and neither of the two stays, and so does one that depends on an input, is dropped out, or that torch would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal

import torch
import torch.fx

from dynacompile.autograd.known_values import KnownValues, Ramp, Split, Value, computed, plain
from dynacompile.ir.shapes import expression_of

aten = torch.ops.aten
ATTENTION = frozenset({torch.nn.functional.scaled_dot_product_attention, aten.scaled_dot_product_attention, aten.scaled_dot_product_attention.default})
AROUND = frozenset({torch.nn.functional.multi_head_attention_forward})
"""Functions of torch's own that call attention, and are one operation to capture."""
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
Kind = Literal["all", "causal", "other"]


@dataclass
class Masks:
    """What one graph's masks are. known: of its nodes. read: by the torch-level node of each attention that has a mask, what was found.
    refused: attention that has to stay as it is written, by the name of its last node, and why."""

    known: KnownValues = field(default_factory=KnownValues)
    read: dict[torch.fx.Node, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def simplify(self, node: torch.fx.Node, mask: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of an attention, with a simpler mask where that is the same. mask: the node that gives it in the functional graph."""
        given = dict(zip(NAMES, args, strict=False)) | dict(kwargs)
        if given.get("is_causal") or given.get("dropout_p") or given["attn_mask"].requires_grad:
            self.read[node] = "kept"
            return tuple(args), dict(kwargs)
        kind = self.kind(node, mask, given)
        given["attn_mask"] = with_rows(given["attn_mask"]) if kind == "other" else None
        if kind == "causal":
            given["is_causal"] = True
        return (), given

    def kind(self, node: torch.fx.Node, mask: torch.fx.Node, given: Mapping[str, Any]) -> Kind:
        value = self.known.of(mask)
        kind: Kind = "other" if value is None or not covers(given) else kind_of(value, mask, is_square(given) and may_be_causal(given))
        self.read[node] = "kept" if kind == "other" else kind
        return kind

    def sees(self, visible: torch.fx.Node) -> bool:
        """Whether each row of a mask of truth values is known to have one that is true."""
        value = self.known.of(visible)
        if value is None:
            return False
        with plain():
            if isinstance(value, Split) and kind_of_split(value, True) != "other":
                return True
            found = computed(value, visible)
            return found is not None and bool(found.any(-1).all())


Simplify = Callable[[tuple, dict[str, Any]], tuple[tuple, dict[str, Any]]]


def with_attention(function: FunctionType, simplify: Simplify) -> FunctionType:
    """The function, which calls attention with simplified arguments. (A mode that sees torch functions would see this one alone.)"""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        args, kwargs = simplify(args, kwargs)
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)

    names = {**function.__globals__, "scaled_dot_product_attention": attention}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def mask_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The mask among the arguments of an attention."""
    found = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    return found if isinstance(found, torch.Tensor) else None


def with_rows(mask: torch.Tensor) -> torch.Tensor:
    """The mask, on a GPU with the numbers of one query side by side, as torch's fused kernels ask for. What is expanded in other dimensions stays so."""
    sizes = mask.shape
    if mask.device.type != "cuda" or mask.dim() < 2 or expression_of(mask.stride(-1)) == 1 or expression_of(sizes[-1]) == 1:
        return mask
    return row_major(mask)


def row_major(mask: torch.Tensor) -> torch.Tensor:
    sizes = mask.shape
    for dim in range(mask.dim() - 1):
        if expression_of(mask.stride(dim)) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask.contiguous().expand(sizes)


def covers(given: Mapping[str, Any]) -> bool:
    """Whether the mask is one of torch's forms: a rank of at least 2 that the scores have, and no size that makes the result larger."""
    query, key, mask = given["query"], given["key"], given["attn_mask"]
    scores = (*query.shape[:-1], key.shape[-2])
    if not 2 <= mask.dim() <= len(scores) or key.dim() != query.dim():
        return False
    return all(expression_of(m) in (1, expression_of(s)) for m, s in zip(reversed(mask.shape), reversed(scores)))


def is_square(given: Mapping[str, Any]) -> bool:
    """As many queries as keys. torch aligns `is_causal` at the first of both, and its fast kernels have it for squares alone."""
    return expression_of(given["query"].shape[-2]) == expression_of(given["key"].shape[-2])


def may_be_causal(given: Mapping[str, Any]) -> bool:
    """Whether kernels have `is_causal` with this scale, by which they multiply scores that are minus infinity already."""
    scale = given.get("scale")
    return scale is None or (isinstance(scale, (int, float)) and scale > 0)


def kind_of(value: Value, mask: torch.fx.Node, square: bool) -> Kind:
    with plain():
        kind = kind_of_split(value, square) if isinstance(value, Split) else "other"
        found = computed(value, mask) if kind == "other" else None
        if found is None or found.is_complex():
            return kind
        seen, hidden = visible(found), concealed(found)
        if bool(seen.all()):
            return "all"
        rows, columns = found.shape[-2:]
        if not square or rows != columns or rows == 1:
            return "other"
        lower = torch.ones(rows, columns, dtype=torch.bool, device="cpu").tril()
        return "causal" if bool((seen == lower).all()) and bool((hidden != lower).all()) else "other"


def kind_of_split(value: Split, square: bool) -> Kind:
    inside, outside = (bool(visible(side)) for side in (value.inside, value.outside))
    if inside and outside:
        return "all"
    ramp = value.ramp
    if outside and bool(concealed(value.inside)):  # not (ramp >= 0) is (-ramp - 1 >= 0)
        ramp = Ramp(-ramp.start - 1, tuple(-s for s in ramp.steps))
    elif not (inside and bool(concealed(value.outside))):
        return "other"
    *around, row, column = ramp.steps
    return "causal" if square and not any(around) and row > 0 and column == -row and 0 <= ramp.start < row else "other"


def visible(value: torch.Tensor) -> torch.Tensor:
    """Where a mask leaves the score as it is: True, or a bias of 0."""
    return value if value.dtype == torch.bool else value == 0


def concealed(value: torch.Tensor) -> torch.Tensor:
    """Where it makes the weight 0: False, or a bias of minus infinity or the lowest number of its dtype, beside which a visible score's exponential is all
    that counts: the hidden one's underflows to 0. Rows that see nothing, where it does not, are no part of a causal mask."""
    return ~value if value.dtype == torch.bool else value <= torch.finfo(value.dtype).min  # validated by torch: the query's dtype, or one that autocast casts
