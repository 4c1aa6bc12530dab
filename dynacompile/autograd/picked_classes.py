"""Finds where a graph takes one class of each row of a softmax: `log_softmax(...).gather(-1, index)`, `log_probs[arange, target]`, and the
same of a softmax, or of logits beside the logarithms of their rows' sums of exponentials.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node
GATHERS = frozenset({torch.gather, "gather"})
TAKES = frozenset({torch.take_along_dim, "take_along_dim"})
READS = frozenset({operator.getitem, "__getitem__"})
SUBSCRIPTED = READS | {operator.setitem, "__setitem__"}
PICKS = GATHERS | TAKES | READS
LOG_SOFTMAX = frozenset({F.log_softmax, torch.log_softmax, "log_softmax"})
SOFTMAX = frozenset({F.softmax, torch.softmax, "softmax"})
SIGNATURES = {
    **dict.fromkeys(GATHERS, inspect.signature(lambda input, dim, index: None)),
    **dict.fromkeys(TAKES, inspect.signature(lambda input, index, dim: None)),
}
ALIASES = {"indices": "index", "self": "input"}


def picked_arguments(node: Node) -> dict[str, Any] | None:
    """The arguments of a loss whose rows are what the node picks, by name: each row's negative logarithm of its probability. None where the node picks
    something else than one class of each row. wraps: negative classes count from the end."""
    if node.op not in ("call_function", "call_method") or node.target not in PICKS or not node.args:
        return None
    found = read_arguments(node) if node.target in READS else gather_arguments(node)
    if found is None:
        return None
    given, is_picked = found
    return {"reduction": "none", "ignore_index": -1, "weight": None, **given} if is_picked else None


def gather_arguments(node: Node) -> tuple[dict[str, Any], bool] | None:
    try:
        bound = SIGNATURES[node.target].bind(*node.args, **{ALIASES.get(k, k): v for k, v in node.kwargs.items()})  # type: ignore[index]
    except TypeError:
        return None
    source, dim, index = (bound.arguments[name] for name in ("input", "dim", "index"))
    sizes, places = sizes_of(source), sizes_of(index)
    if sizes is None or places is None or type(dim) is not int or len(sizes) < 2:
        return None
    return {"input": source, "target": index, "wraps": False}, dim % len(sizes) == len(sizes) - 1 and places == (*sizes[:-1], 1)


def read_arguments(node: Node) -> tuple[dict[str, Any], bool] | None:
    source, index = node.args[:2]
    sizes = sizes_of(source)
    if sizes is None or len(sizes) != 2 or not isinstance(index, (tuple, list)) or len(index) != 2:
        return None
    counter, classes = index
    return {"input": source, "target": classes, "wraps": True}, counts(counter, sizes[0]) and sizes_of(classes) == sizes[:1]


def counts(value: object, end: int) -> bool:
    """Whether a value is 0, 1, 2, ... below `end`. A tensor that something else than subscripts uses may be written."""
    if isinstance(value, Node):
        if any(u.target not in SUBSCRIPTED or any(value is a for a in u.args) for u in value.users):
            return False
        given = value.args in ((end,), (0, end)) or (not value.args and value.kwargs.get("end") == end)
        return value.target is torch.arange and bool(given) and not value.kwargs.keys() - {"device", "end"}
    return isinstance(value, (range, list, tuple)) and list(value) == list(range(end))


def sizes_of(value: object) -> tuple[int, ...] | None:
    """Of a plain tensor whose sizes are known."""
    fake = value.meta.get("val") if isinstance(value, Node) else None
    plain = type(fake) is FakeTensor and all(isinstance(n, int) for n in fake.shape)
    return tuple(fake.shape) if plain else None  # type: ignore[union-attr]


def kind_of(chain: Sequence[Node], has_logarithms: bool) -> str:
    """What is picked of a chain's last node: "logarithm" of a probability, "probability", or "logit"; empty where that needs no pass over the classes, or
    there is more than one softmax."""
    softmaxes = sum(n.target in LOG_SOFTMAX for n in chain), sum(n.target in SOFTMAX for n in chain)
    return {(1, 0): "logarithm", (0, 1): "probability", (0, 0): "logit" if has_logarithms else ""}.get(softmaxes, "")
