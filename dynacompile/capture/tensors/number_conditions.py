"""Branches on tensors that one number fills, as distributions have them that are made of numbers: `(scale > 0).all()`. Where the number varies, the condition
is asked of the number, as a guard."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.tensors.assumptions import name_of
from dynacompile.capture.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

FILLS = {"full": 1, "full_like": 1, "tensor": 0, "scalar_tensor": 0}
"""By name: the place of the number that a tensor is filled with."""
SPREADS = frozenset({"expand", "view", "reshape", "clone", "contiguous"})
ALL, BOTH = frozenset({"all", "_is_all_true"}), frozenset({"and_", "logical_and", "__and__"})
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge")}
SINGLE = (torch.float32, torch.float64)
APART, LEAST = 1e-6, 1e-37
"""A number that differs from a constant by more than this part of it, and by more than this, compares alike once both are rounded to float32."""


def answer_of_numbers(cx: Context, condition: TensorValue) -> bool | None:
    """Whether a tensor of one bool is true, where it compares a number that varies with constants; None for other tensors. Adds guards."""
    seen: list[torch.fx.Node] = []
    answer = None if cx.symbols is None else truth(cx, condition.node, seen)
    if answer is not None:
        cx.recorder.optional.update(dict.fromkeys(reversed(seen)))
    return answer


def truth(cx: Context, node: Any, seen: list[torch.fx.Node]) -> bool | None:
    """Whether all of a tensor of bools is true. seen: gets the operations that it is made by."""
    if not is_unwritten(cx, node) or node.kwargs:
        return None
    seen.append(node)
    name, args = name_of(node), node.args
    if name in ALL and len(args) == 1:
        return truth(cx, args[0], seen)
    if name in BOTH and len(args) == 2:
        left, right = truth(cx, args[0], seen), truth(cx, args[1], seen)
        return None if left is None or right is None else left and right
    if name not in COMPARISONS or len(args) != 2:
        return None
    left_number, right_number = number_in(cx, args[0]), number_in(cx, args[1])
    return compared(COMPARISONS[name], left_number, right_number)


def compared(compare: Callable[[Any, Any], Any], a: Any, b: Any) -> bool | None:
    constant, varying = (b, a) if isinstance(a, torch.SymFloat) else (a, b)
    if not isinstance(varying, torch.SymFloat) or type(constant) not in (int, float):
        return None
    apart = max(abs(constant) * APART, LEAST)
    if not bool(varying > constant + apart) and not bool(varying < constant - apart):
        return None
    return bool(compare(a, b))


def number_in(cx: Context, operand: Any) -> Any:
    """The number that is an operand of a comparison, or that fills it; None where it is another tensor."""
    while is_unwritten(cx, operand):
        if name_of(operand) in SPREADS:
            operand = operand.args[0]
        elif operand.target is operator.getitem and name_of(operand.args[0]) == "broadcast_tensors":
            operand = operand.args[0].args[operand.args[1]]
        else:
            break
    if not isinstance(operand, torch.fx.Node):
        return operand
    place = FILLS.get(name_of(operand))
    if place is None or not is_unwritten(cx, operand) or operand.meta["val"].dtype not in SINGLE or len(operand.args) <= place:
        return None
    return operand.args[place]


def is_unwritten(cx: Context, node: Any) -> bool:
    """Whether it is a tensor that an operation of the graph makes, and that nothing has written since."""
    made = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(made, torch.Tensor) and node.op != "placeholder" and cx.recorder.version(made) == 0
