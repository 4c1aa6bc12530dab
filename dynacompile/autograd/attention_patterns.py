"""Finds hand-written attention in a captured graph: a product of queries and keys, scaled and masked, a softmax, and the product with values.

The nodes of such a chain keep their places, and do other things: those before the last hold the operands, and the last calls torch's attention operator
(`ops/attention.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.autograd.known_values import plain
from dynacompile.env import Env
from dynacompile.ir.shapes import expression_of
from dynacompile.ops.attention import HandWritten, Term, by_operator, hold_biased_scores, hold_operand, hold_same_scores, hold_scores
from dynacompile.ops.attention_costs import beats_written, may_be_ours
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node
Step = tuple[Callable, tuple]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SMALLEST: dict[tuple[str, torch.dtype, bool], int] = {
    ("cpu", torch.float32, False): 1 << 18,
    ("cpu", torch.float32, True): 1 << 20,
    ("cpu", torch.bfloat16, False): 1 << 8,
    ("cpu", torch.float16, False): 1 << 18,
    **{("cuda", dtype, backward): 1 for dtype in (torch.float16, torch.bfloat16) for backward in (False, True)},
}
"""By the kind of device, the dtype, and whether there is a backward: the scores of one head from which torch's operator is faster, as measured. What is not
here is slower, or was not measured. `ops/attention_costs.py` knows from which on a kernel of ours is."""
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

PRODUCTS = frozenset({torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__"})
BIASED_PRODUCTS = frozenset({torch.baddbmm, "baddbmm"})
SOFTMAXES = frozenset({F.softmax, torch.softmax, "softmax"})
DROPOUTS = frozenset({F.dropout, torch.dropout})
RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze})
CASTS = frozenset({"float", "double", "half", "bfloat16", "to", "type", "contiguous", "type_as"})
TIMES = frozenset({operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply", "__mul__", "__rmul__"})
OVER = frozenset({operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide, "div", "div_", "divide", "true_divide", "__truediv__"})
PLUS = frozenset({operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__radd__"})
MINUS = frozenset({operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "__sub__"})
FILLS = frozenset({torch.masked_fill, "masked_fill", "masked_fill_"})
WHERES = frozenset({torch.where, "where"})
IN_PLACE = frozenset({operator.imul, operator.itruediv, operator.iadd, operator.isub, "mul_", "div_", "add_", "sub_", "masked_fill_"})

READERS = TIMES | OVER | PLUS | MINUS | FILLS | WHERES


@dataclass
class Chain:
    """One attention, as far as it was followed. reason: why it stays as it is. ours: kernels of ours compute it. told: what else there is to say of it."""

    nodes: list[Node] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    scale: float = 1.0
    terms: list[Term] = field(default_factory=list)
    masks: list[Node] = field(default_factory=list)
    masked: tuple | None = None
    softmax: Node | None = None
    likes: list[Node] = field(default_factory=list)
    reason: str = ""
    ours: bool = False
    told: str = ""

    def add(self, node: Node, step: Step) -> None:
        self.nodes.append(node)
        self.steps.append(step)

    def refuse(self, reason: str) -> None:
        self.reason = self.reason or reason

    def mask(self, node: Node, mask: Node, term: Term) -> None:
        """A mask that a node applies."""
        leading = tuple(node.meta["val"].shape[:-2])
        if self.masked is not None and not same(self.masked, leading):
            self.refuse("masks are applied to scores of several shapes")
        self.masked = leading
        self.masks.append(mask)
        self.terms.append(term)


def chain_from(node: Node, places: dict[Node, int], env: Env, kept: Mapping[str, str]) -> Chain | None:
    """The attention whose scores a node begins; None where it begins none."""
    chain = begun(node)
    if chain is None:
        return None
    current, last = node, None
    while last is None:
        following = follow(chain, current, places)
        if following is None:
            return None
        current, last = following
    chain.add(current, (operator.add, ()))
    if any(n not in chain.nodes for n in chain.likes):
        chain.refuse("the scores or weights have another use: type_as")
    chain.refuse(kept.get(current.name, ""))
    if not chain.reason:
        chain.reason = refused_operands(chain, last) or refused_masks(chain) or refused_gradients(chain, last)
    if not chain.reason:
        scores, recorded = chain.nodes[0].meta["val"], chain.nodes[-1].meta["val"].requires_grad
        chain.refuse(refused_size(scores.shape[-2:], last.meta["val"].shape[-1], scores.dtype, scores.device.type, recorded, env))
    if not chain.reason:
        chain.steps[-1] = (by_operator, (chain.nodes[-2], last, made_from(chain)))
    return chain


def begun(node: Node) -> Chain | None:
    """The beginning of a chain, at a product."""
    if node.op not in ("call_function", "call_method") or not is_plain(node):
        return None
    chain = Chain()
    if node.target in PRODUCTS and len(node.args) == 2 and not node.kwargs and all(isinstance(a, Node) and is_plain(a) for a in node.args):
        chain.add(node, (hold_scores, node.args))
    elif node.target in BIASED_PRODUCTS and len(node.args) == 3 and all(isinstance(a, Node) and is_plain(a) for a in node.args):
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        if node.kwargs.keys() - {"beta", "alpha"} or not all(is_number(n) for n in (beta, alpha)):
            return None
        chain.scale = float(alpha)  # type: ignore[arg-type]
        if beta:
            chain.mask(node, node.args[0], Term("bias", float(beta)))  # type: ignore[arg-type]
        chain.add(node, (hold_biased_scores, node.args) if beta else (hold_scores, node.args[1:]))
    else:
        return None
    return chain if node.meta["val"].dim() >= 2 else None


def follow(chain: Chain, node: Node, places: dict[Node, int]) -> tuple[Node, Node | None] | None:
    """Adds the operation that uses a node to its chain. The node to go on with, and, where that is the last product, its values; None where the chain
    is no attention."""
    users, what = sorted(node.users, key=places.__getitem__), "weights" if chain.softmax else "scores"
    writes = [u for u in users if u.target in IN_PLACE and u.args[0] is node and not u.users]
    for write in writes:
        if not taken(chain, node, write):
            return None
    likes = [u for u in users if u.target == "type_as" and len(u.args) == 2 and u.args[0] is not node]
    chain.likes += likes  # they read a dtype
    others = [u for u in users if u not in writes and u not in likes]
    found = None
    for user in others:
        values = last_operand(chain, node, user)
        if values is not None or (found is None and taken(chain, node, user)):
            found = (user, values)
            break
    if found is None:
        return None
    if len(others) > 1 or uses(found[0], node) > 1:
        names = sorted({name_of(u) for u in others if u is not found[0]} or {name_of(found[0])})
        chain.refuse(f"the {what} have another use: {', '.join(names)}")
    if writes and places[writes[-1]] > places[found[0]]:
        chain.refuse("the scores are written after they are read")
    return found


def name_of(node: Node) -> str:
    return "they are returned" if node.op == "output" else str(getattr(node.target, "__name__", node.target))


def uses(user: Node, node: Node) -> int:
    found: list[object] = []
    torch.fx.node.map_arg((user.args, user.kwargs), found.append)
    return sum(a is node for a in found)


def last_operand(chain: Chain, node: Node, user: Node) -> Node | None:
    """The values, where the user multiplies weights by them."""
    if chain.softmax is None or user.target not in PRODUCTS or len(user.args) != 2 or user.kwargs or user.args[0] is not node:
        return None
    values = user.args[1]
    return values if isinstance(values, Node) and is_plain(values) and is_plain(user) else None


def taken(chain: Chain, node: Node, user: Node) -> bool:
    """Whether a chain goes on with a user of its last node, which is added to it."""
    if user.op not in ("call_function", "call_method") or not is_plain(user) or not same(user.meta["val"].shape[-2:], node.meta["val"].shape[-2:]):
        return False
    if user.meta["val"].device != node.meta["val"].device or user.meta["val"].dtype not in FLOATS:
        return False
    step = step_of(chain, node, user)
    if step is None:
        return False
    if narrower(user.meta["val"].dtype, chain.nodes[0].meta["val"].dtype):
        chain.refuse("scores or weights are rounded to fewer digits than the products have")
    chain.add(user, step)
    return True


def step_of(chain: Chain, node: Node, user: Node) -> Step | None:
    """What a user of a chain's last node does instead."""
    target, same_step = user.target, (hold_same_scores, (node,))
    is_same = same(user.meta["val"].shape, node.meta["val"].shape)
    if target in CASTS:
        return same_step if is_same and user.args[0] is node else None
    if target in RESHAPES:
        return same_step if user.args[0] is node else None
    if not is_same:
        return None
    if target in SOFTMAXES:
        return same_step if chain.softmax is None and begins_weights(chain, node, user) else None
    if target in DROPOUTS:
        if chain.softmax is not None and is_active(user):
            chain.refuse("dropout draws random numbers, which must be eager's")
        return same_step if chain.softmax is not None and user.args[0] is node else None
    return None if chain.softmax is not None else score_step(chain, node, user)


def score_step(chain: Chain, node: Node, user: Node) -> Step | None:
    """What a user does instead that scales scores, or masks them."""
    target, args = user.target, user.args
    if target in TIMES or target in OVER:
        if len(args) != 2 or user.kwargs or (target in OVER and args[0] is not node):
            return None
        number = number_of(args[1] if args[0] is node else args[0])
        if number is None or not math.isfinite(number) or number == 0:
            return None
        factor = number if target in TIMES else 1 / number
        chain.scale *= factor
        chain.terms = [Term(t.kind, t.factor * factor) for t in chain.terms]
        return (hold_same_scores, (node,))
    if target in PLUS or target in MINUS:
        if len(args) != 2 or user.kwargs or (target in MINUS and args[0] is not node):
            return None
        bias: Any = args[1] if args[0] is node else args[0]
        if not is_mask(bias) or bias.meta["val"].dtype == torch.bool:
            return None
        if any(t.kind != "bias" and t.factor != -math.inf for t in chain.terms):
            chain.refuse("scores are changed after some were hidden by a number")
        chain.mask(user, bias, Term("bias", 1.0 if target in PLUS else -1.0))
        return (hold_operand, (node, bias))
    hidden = hiding(node, user) if target in FILLS or target in WHERES else None
    if hidden is None:
        return None
    mask, term = hidden
    chain.mask(user, mask, term)
    return (hold_operand, (node, mask))


def hiding(node: Node, user: Node) -> tuple[Node, Term] | None:
    """The mask of a user that hides scores, and what they become."""
    args: tuple[Any, ...] = user.args
    if len(args) != 3 or user.kwargs:
        return None
    if user.target in FILLS:
        scores, mask, fill = args
        kind = "hidden"
    elif user.target == "where" or args[1] is node:
        scores, mask, fill = (args[0], args[1], args[2]) if user.target == "where" else (args[1], args[0], args[2])
        kind = "shown"
    else:
        mask, fill, scores = args
        kind = "hidden"
    number = number_of(fill)
    if number is not None and -math.inf < number < torch.finfo(user.meta["val"].dtype).min:
        return None  # eager refuses it
    if scores is not node or number is None or not is_mask(mask) or mask.meta["val"].dtype != torch.bool:
        return None
    return mask, Term(kind, number)  # type: ignore[arg-type]


def begins_weights(chain: Chain, node: Node, user: Node) -> bool:
    """Whether a softmax makes weights: over the keys."""
    dim = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
    if user.args[0] is not node or type(dim) is not int or dim % node.meta["val"].dim() != node.meta["val"].dim() - 1:
        return False
    chain.softmax = user
    return True


def is_active(node: Node) -> bool:
    given = dict(zip(("input", "p", "training" if node.target is F.dropout else "train", "inplace"), node.args)) | dict(node.kwargs)
    p, training = given.get("p", 0.5), given.get("training", given.get("train", True))
    return not (training is False or (is_number(p) and p == 0))


def is_plain(node: Node) -> bool:
    value = node.meta.get("val")
    return type(value) is FakeTensor and value.layout == torch.strided


def is_mask(value: object) -> bool:
    return isinstance(value, Node) and is_plain(value) and number_of(value) is None


def is_number(value: object) -> bool:
    return type(value) in (int, float)


def number_of(value: object) -> float | None:
    """A number that the graph has, as such or as a tensor without dimensions, which rounds it to its dtype."""
    if isinstance(value, Node) and value.target in (torch.full, torch.tensor) and value.op == "call_function" and is_plain(value):
        number: Any = value.args[-1]
        is_one = value.meta["val"].dim() == 0 and value.meta["val"].dtype in FLOATS and all(is_reader(u, value) for u in value.users)
        with plain():
            return torch.tensor(number, dtype=value.meta["val"].dtype, device="cpu").item() if is_one and is_number(number) else None
    return float(value) if is_number(value) else None  # type: ignore[arg-type]


def is_reader(user: Node, number: Node) -> bool:
    """Whether an operation is known to read a tensor, and to give neither it nor a view of it: others may write it."""
    return user.target in READERS and not user.kwargs and not (user.target in IN_PLACE and user.args[0] is number)


def same(one: Sequence, other: Sequence) -> bool:
    return len(one) == len(other) and all(expression_of(a) == expression_of(b) for a, b in zip(one, other, strict=True))


def narrower(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether one has not all numbers of the other."""
    return torch.promote_types(one, other) != one


def made_from(chain: Chain) -> HandWritten:
    scores = chain.nodes[0].meta["val"]
    product, weighted = tuple(scores.shape[:-2]), tuple(chain.nodes[-2].meta["val"].shape[:-2])
    masked = product if chain.masked is None else chain.masked
    return HandWritten(chain.nodes[-1].name, chain.scale, tuple(chain.terms), scores.dtype, product, masked, weighted, lost(scores.dtype))


def lost(dtype: torch.dtype) -> float:
    """Scores below it are so coarse that those of one query differ by nothing, or by so much that eager's own result means nothing."""
    return -(2.0 ** (DIGITS[dtype] + 1))


def refused_operands(chain: Chain, last: Node) -> str:
    """Why products stay as they are."""
    made, scores, weights = (chain.nodes[i].meta["val"] for i in (-1, 0, -2))
    query, keys = chain.steps[0][1][-2:]
    if made.dtype != scores.dtype or scores.dtype not in FLOATS:
        return "the two products have different dtypes"
    if any(n.meta["val"].dtype not in FLOATS for n in (query, keys, last)):
        return "operands are not of floating point"
    if not same(made.shape[:-2], weights.shape[:-2]) or min(n.meta["val"].dim() for n in (query, keys, last)) < 2:
        return "the values have other dimensions than the weights"
    if any(isinstance(n, int) and n == 0 for n in (*scores.shape, *made.shape)):
        return "a size is zero"
    return refused_kernel(query.meta["val"], last.meta["val"])


def refused_kernel(query: torch.Tensor, value: torch.Tensor) -> str:
    """Why torch has no kernel for them."""
    is_on_gpu = query.device.type == "cuda"
    if torch.are_deterministic_algorithms_enabled() and is_on_gpu:
        return "deterministic algorithms are asked for"
    sizes = query.shape[-1], value.shape[-1]
    if expression_of(sizes[0]) != expression_of(sizes[1]):
        return "values have another width than queries"
    if is_on_gpu and not all(isinstance(n, int) and n % 8 == 0 and n <= 256 for n in sizes):
        return "torch has no kernel for this width"
    if any(isinstance(n, int) and n == 0 for n in (*query.shape, *value.shape)):
        return "a size is zero"
    enabled = of_torch.get_flash_sdp_enabled() or (is_on_gpu and of_torch.get_mem_efficient_sdp_enabled())
    return "" if enabled else "torch's kernels are switched off"


def refused_masks(chain: Chain) -> str:
    """Why masks keep scores as they are."""
    dtype = chain.nodes[0].meta["val"].dtype
    fills = {t.factor for t in chain.terms if t.kind != "bias"}
    if len(fills) > 1:
        return "scores are hidden by several numbers"
    if fills and not next(iter(fills)) <= lost(dtype):
        return "scores are hidden by a number that scores may reach"
    if fills - {-math.inf} and any(t.kind == "bias" for t in chain.terms):
        return "scores are hidden by a number, and have a bias"
    for term, mask in zip(chain.terms, chain.masks, strict=True):
        value = mask.meta["val"]
        if value.requires_grad:
            return "a bias gets a gradient"
        if term.kind == "bias" and (value.dtype not in FLOATS or torch.promote_types(value.dtype, dtype) != dtype):
            return "a bias has more digits than the products"
        if value.device != chain.nodes[0].meta["val"].device:
            return "a mask is on another device"
    return ""


def refused_gradients(chain: Chain, last: Node) -> str:
    """Gradients must flow as the operator has them flow: from the last product to all that require them."""
    wanted = [n.meta["val"].requires_grad for n in chain.nodes[:-1]]
    final = chain.nodes[-1].meta["val"].requires_grad
    start = any(n.meta["val"].requires_grad for n in chain.steps[0][1][-2:])
    if len(set(wanted)) != 1 or wanted[0] != start or final != (start or last.meta["val"].requires_grad):
        recorded = torch.is_grad_enabled()
        if recorded or any((*wanted, final)):
            return "gradients end between the products"
    return ""


def refused_size(sizes: Sequence, width: object, dtype: torch.dtype, device: str, recorded: bool, env: Env) -> str:
    """Why the operator would not be faster. sizes: of the scores of one head. width: elements of a head."""
    if env.config.precise and dtype.itemsize == 2:
        return "every result of half precision is to be rounded as in eager"
    if not env.config.attention_scores and may_be_ours(dtype, device, width) and beats_written(*sizes):
        return ""
    smallest = env.config.attention_scores or SMALLEST.get((device, dtype, recorded), 0)
    if not smallest:
        return "torch's operator is not known to be faster here"
    if smallest == 1:
        return ""
    if any(not isinstance(n, int) for n in sizes):
        return "the sizes differ from call to call"
    return "" if math.prod(sizes) >= smallest else f"fewer than {smallest} scores are faster without torch's operator"
