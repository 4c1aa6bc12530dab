"""Finds operations on each logit by itself between a layer and its loss: `logits / temperature`, `cap * tanh(logits / cap)`, casts between."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.ops.logit_points import ROWS, bounds_have_gradients
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node
CASTS = frozenset({"float", "double", "half", "bfloat16", "to", "type", "contiguous", "type_as"})
NAMES: dict[object, str] = {
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply", "multiply_"), "mul"),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide, "div", "div_", "divide", "true_divide"), "div"),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), "add"),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract"), "sub"),
    **dict.fromkeys((operator.neg, torch.neg, torch.negative, "neg", "neg_", "negative"), "neg"),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_"), "tanh"),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"), "sigmoid"),
    **dict.fromkeys((torch.clamp, torch.clip, "clamp", "clamp_", "clip", "clip_"), "clamp"),
}
"""Of `ops.logit_points.ROWS`, for what a graph calls."""
IN_PLACE = frozenset({operator.imul, operator.itruediv, operator.iadd, operator.isub}) | {n for n in NAMES if isinstance(n, str) and n.endswith("_")}
BINARY = inspect.signature(lambda input, other: None)
UNARY = inspect.signature(lambda input: None)
SIGNATURES = {
    **dict.fromkeys(("mul", "div", "add", "sub"), BINARY),
    **dict.fromkeys(("neg", "tanh", "sigmoid"), UNARY),
    "clamp": inspect.signature(lambda input, min=None, max=None: None),
}
REVERSED = {"mul": "mul", "add": "add", "sub": "rsub"}
"""Those that may have the logits as their second operand."""


def logits_of(node: Node) -> Node | None:
    """What a pointwise operation reads, where that is one tensor with dimensions."""
    found = [a for a in node.all_input_nodes if not is_scalar(a)]
    return found[0] if node.target in NAMES and len(found) == 1 else None


def is_scalar(node: Node) -> bool:
    """Whether a node is a number, or a plain tensor without dimensions."""
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat)) or (type(value) is FakeTensor and value.dim() == 0 and value.dtype.is_floating_point)


def point_of(node: Node) -> tuple[str, tuple[object, ...]] | None:
    """The operation's row and its other operands; None where it has arguments that are not followed."""
    name, logits = NAMES[node.target], logits_of(node)
    try:
        bound = SIGNATURES[name].bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    first, *others = bound.arguments.values()
    if first is not logits:
        if name not in REVERSED or others != [logits] or node.target in IN_PLACE:
            return None
        name, others = REVERSED[name], [first]
    given = [o for o in others if o is not None or name != "clamp"]
    if not all(is_number(o, logits) for o in given) or (ROWS[name].of_other is None and any(has_gradient(o) for o in given)):
        return None
    if name == "clamp" and any(isinstance(o, Node) and isinstance(o.meta["val"], torch.Tensor) for o in given) and not bounds_have_gradients():
        return None
    return name, tuple(others)


def has_gradient(value: Any) -> bool:
    found = value.meta["val"] if isinstance(value, Node) else None
    return isinstance(found, torch.Tensor) and found.requires_grad


def is_number(value: Any, logits: Node | None) -> bool:
    if not isinstance(value, Node) or logits is None:
        return type(value) in (int, float)
    found = value.meta["val"]
    return is_scalar(value) and (not isinstance(found, torch.Tensor) or found.device == logits.meta["val"].device)


def written_before(node: Node, user: Node) -> list[Node]:
    """Operations that write a node's memory and give nothing that is used, in order, where they are all that uses it besides and run before `user`."""
    others = [u for u in node.users if u is not user]
    places = {n: i for i, n in enumerate(node.graph.nodes)} if others else {}
    fits = all(u.target in IN_PLACE and not u.users and logits_of(u) is node and u.args[0] is node and places[u] < places[user] for u in others)
    return sorted(others, key=places.__getitem__) if fits else []


def writes_what_is_kept(node: Node) -> bool:
    """Whether a write to a node's memory may change the result of an operation whose derivative is computed of its result."""
    while node.target not in NAMES and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return NAMES.get(node.target) in ("tanh", "sigmoid")
