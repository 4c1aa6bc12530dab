"""Random numbers on GPUs, drawn where they are used: eager's numbers as loops over cuRAND's sequences, and the generator moved on as eager moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.ir.index import Index, constant
from dynacompile.ir.loops import Buffer, Extern
from dynacompile.lower.context import DTYPES, Lowering, arguments, geometry, origin
from dynacompile.lower.numbers import number as symbolic_number
from dynacompile.lower.values import Expander, Value
from dynacompile.native import core as native_core
from dynacompile.ops.draws import DRAW, MOST_BYTES, Drawing, by_fours, by_grid
from dynacompile.ops.scalars import NEAREST
from dynacompile.private import of_torch

aten = torch.ops.aten
SINGLE = (torch.float32, torch.float16, torch.bfloat16)


def lower_draw(low: Lowering, node: torch.fx.Node) -> bool:
    """Whether the node draws on a GPU and is a loop of ours now. What stays a call is noted with the reason."""
    op, val = node.target, node.meta.get("val")
    if not isinstance(op, of_torch.OpOverload) or op.namespace != "aten" or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    made = [v for v in (val if isinstance(val, (tuple, list)) else (val,)) if isinstance(v, torch.Tensor)]
    if not made or made[0].device.type != "cuda":
        return False
    rule, val = RULES.get(op), made[0]
    if rule is None:
        low.draws.append((node, "there is no rule for which numbers eager's kernel draws, and what it makes of them"))
        return False
    given = arguments(node)
    reason = refusal(low, val) or rule.refusal(low, val, given)
    low.draws.append((node, reason))
    if reason:
        return False
    drawing = rule.drawing(val)
    state = Buffer(low.fresh(f"{node.name}_state"), torch.int64, val.device, (2,), (1,), "extern")
    low.buffers[state.name] = state
    low.steps.append(Extern(state.name, DRAW, (drawing.count,), {"device": val.device}, (state.name,), random=True, origins=(origin(node),)))
    buffer, o = low.add(node.name, val), low.expander(val.dtype)
    number = uniform(low, o, state, drawing, low.broadcast(buffer, buffer.size))
    low.finish_pointwise(o, rule.value(low, o, number, val, given), buffer, node)
    low.values[node] = buffer.name
    return True


def refusal(low: Lowering, val: torch.Tensor) -> str:
    """Why no loop draws the numbers of such a tensor, whatever the operation."""
    size, stride = geometry(val)
    if any(isinstance(n, Index) for n in (*size, *stride)):
        return "its size differs from call to call, and with it what eager's threads draw"
    if val.numel() == 0:
        return "it has no elements"
    if val.numel() * val.element_size() > MOST_BYTES:
        return "eager draws so large a tensor in parts"
    if not is_dense(size, stride):
        return "its elements do not lie side by side in memory"
    if val.dtype not in DTYPES:
        return f"kernels of ours make no {val.dtype}"
    if val.device != low.device:
        return f"the program's kernels run on {low.device}"
    if torch.cuda.is_available() and not native_core().draws():
        return "this build of torch does not show the state of its generators on GPUs"
    return ""


def is_dense(size: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(size, stride, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return True


def uniform(low: Lowering, o: Expander, state: Buffer, drawing: Drawing, element: Index) -> Value:
    """The number of an element, by its place in memory."""
    seed, offset = (low.load(o, state, constant(i)) for i in range(2))
    block = o.apply("shr", offset, 2) + o.index(drawing.block(element))  # the offset counts numbers, and is a multiple of four
    return o.uniform(seed, o.index(drawing.sequence(element)), block, o.index(drawing.place(element)))


Given = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """refusal: why these arguments are no loop. drawing: how the elements of the result are numbered. value: of an element, from its number in (0, 1]."""

    refusal: Callable[[Lowering, torch.Tensor, Given], str]
    drawing: Callable[[torch.Tensor], Drawing]
    value: Callable[[Lowering, Expander, Value, torch.Tensor, Given], Value]


def by_grid_of(val: torch.Tensor) -> Drawing:
    return by_grid(val.numel(), val.device)


def refused_uniform(low: Lowering, val: torch.Tensor, given: Given) -> str:
    return "" if val.dtype in SINGLE else f"eager draws {val.dtype} from more bits"


def from_zero(low: Lowering, o: Expander, number: Value, val: torch.Tensor, given: Given) -> Value:
    """In [0, 1) instead of (0, 1], where the number as rounded to the result's dtype decides."""
    rounded = getattr(o, NEAREST[val.dtype])(number) if val.dtype in NEAREST else number
    return o.select(o.eq(rounded, 1.0), 0.0, rounded)


def refused_coins(low: Lowering, val: torch.Tensor, given: Given) -> str:
    p = given["p"]
    if given["generator"] is not None:
        return "it draws from a generator of the program's"
    if val.dtype == torch.float64:
        return f"eager draws {val.dtype} from more bits"
    known = isinstance(p, torch.SymFloat) or (isinstance(p, (int, float)) and 0 <= p <= 1)  # capture guards that a symbol is between them
    return "" if known else "its probability is no known number from 0 to 1"


def coin(low: Lowering, o: Expander, number: Value, val: torch.Tensor, given: Given) -> Value:
    """Eager compares in float32."""
    p = given["p"]
    if isinstance(p, torch.SymFloat):
        p = symbolic_number(o, p)
    p = o.cast(p, torch.float32) if isinstance(p, Value) else torch.tensor(float(p), dtype=torch.float64).float().item()
    return o.cast(number < p, o.compute)


def refused_coins_of_tensor(low: Lowering, val: torch.Tensor, given: Given) -> str:
    p = given["self"].meta["val"]
    if given["generator"] is not None:
        return "it draws from a generator of the program's"
    if p.dtype not in (*SINGLE, torch.float64):
        return f"its probabilities are {p.dtype}"
    return "" if p.is_contiguous() and p.device == val.device else "its probabilities do not lie in memory one after the other"


def coin_of_tensor(low: Lowering, o: Expander, number: Value, val: torch.Tensor, given: Given) -> Value:
    buffer = low.buffer_of(given["self"])
    p = low.load(o, buffer, low.broadcast(buffer, buffer.size))
    if buffer.dtype in NEAREST:
        p = getattr(o, NEAREST[buffer.dtype])(p)  # a kernel that makes it, too, may hold it in float32
    p = o.require((p >= 0) & (p <= 1), p)
    return o.cast(o.cast(number, p.dtype) <= p, o.compute)


RULES: dict[Any, Rule] = {
    aten.rand.default: Rule(refused_uniform, by_grid_of, from_zero),
    aten.rand_like.default: Rule(refused_uniform, by_grid_of, from_zero),
    aten.bernoulli.p: Rule(refused_coins, by_grid_of, coin),
    aten.bernoulli.default: Rule(refused_coins_of_tensor, lambda val: by_fours(), coin_of_tensor),
}
