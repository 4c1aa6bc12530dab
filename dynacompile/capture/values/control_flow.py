"""torch.cond and the loops over a dimension: decided or unrolled while capture follows them. What depends on values is left to Python by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace

MOST_STEPS = 64  # of a loop that is unrolled


@handles(torch.cond)
def cond(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults: dict[str, Value | None] = {"operands": TupleValue([])}
    predicate, if_true, if_false, operands = bind_arguments("cond", ["pred", "true_fn", "false_fn", "operands"], args, kwargs, defaults)
    if isinstance(predicate, TensorValue):
        raise unsupported("data-dependent-branch", f"torch.cond({predicate.describe()}, ...)")
    return (if_true if predicate.truth(cx) else if_false).call(cx, operands.elements(cx), {})


@handles(torch.while_loop)
def while_loop(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("data-dependent-branch", "torch.while_loop")


def first_tensor(tree: Any) -> Any:
    while isinstance(tree, (tuple, list, dict)):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def row_of(tree: Any, index: int) -> Any:
    if isinstance(tree, dict):
        return {name: row_of(part, index) for name, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)([row_of(part, index) for part in tree])
    return tree[index]


def stacked(rows: list[Any]) -> Any:
    first = rows[0]
    if isinstance(first, dict):
        return {name: stacked([row[name] for row in rows]) for name in first}
    if isinstance(first, (tuple, list)):
        return type(first)([stacked([row[i] for row in rows]) for i in range(len(first))])
    return torch.stack(rows)


def own(tree: Any) -> Any:
    """Results share no memory with what they are made from."""
    if isinstance(tree, dict):
        return {name: own(part) for name, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)([own(part) for part in tree])
    return tree.clone()


def unrolled_scan(combine_fn: Callable[..., Any], init: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    """What scan does, for capture to follow."""
    length = first_tensor(xs).shape[0]
    carry, rows = init, []
    for i in range(length):
        carry, row = combine_fn(carry, row_of(xs, length - 1 - i if reverse else i))
        rows.append(row)
    return own(carry), stacked(rows[::-1] if reverse else rows)


def unrolled_map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    return stacked([f(row_of(xs, i), *args) for i in range(first_tensor(xs).shape[0])])


def unrolls(real: Callable[..., Any], follow: Callable[..., Any]) -> None:
    @handles(real)
    def row(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        position = 2 if real is scan else 1
        xs = args[position] if len(args) > position else kwargs.get("xs")
        dim = kwargs.get("dim", args[3] if len(args) > 3 and real is scan else ConstantValue(0))
        if xs is not None:
            first = cx.call_real(first_tensor, Constant(first_tensor, "first_tensor"), [xs])
            steps = first.fake.shape[0] if isinstance(first, TensorValue) and first.fake.dim() else 0
            if 0 < steps <= MOST_STEPS and dim.constant() == 0:
                return cx.call_real(follow, Constant(follow, follow.__name__), args, kwargs)
        raise unsupported("unknown-function", f"{real.__name__} over another dimension than the first, or more than {MOST_STEPS} steps,")


unrolls(scan, unrolled_scan)
unrolls(map_rows, unrolled_map)
