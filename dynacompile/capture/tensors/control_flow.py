"""torch.cond, while_loop and the loops over a dimension: decided or unrolled while capture follows them where that is known; else their
functions become graphs, and torch's operator over these one operation of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.regions import cond as cond_as_graphs
from dynacompile.capture.tensors.regions import map_rows, scan
from dynacompile.capture.tensors.regions import while_loop as while_loop_as_graphs
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.source import Constant
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

MOST_STEPS = 64  # of a loop that is unrolled


@handles(torch.cond)
def cond(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults: dict[str, Value | None] = {"operands": TupleValue([])}
    predicate, if_true, if_false, operands = bind_arguments("cond", ["pred", "true_fn", "false_fn", "operands"], args, kwargs, defaults)
    if isinstance(predicate, TensorValue):
        return cond_as_graphs(cx, predicate, if_true, if_false, operands.elements(cx))
    return (if_true if predicate.truth(cx) else if_false).call(cx, operands.elements(cx), {})


@handles(torch.while_loop)
def while_loop(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition, body, carried = bind_arguments("while_loop", ["cond_fn", "body_fn", "carried_inputs"], args, kwargs, {})
    return while_loop_as_graphs(cx, condition, body, carried.elements(cx))


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


def is_short(cx: Context, xs: Value, dim: int) -> bool:
    """Whether a loop over a dimension is unrolled."""
    first = cx.call_real(first_tensor, Constant(first_tensor, "first_tensor"), [xs])
    steps = first.fake.shape[0] if isinstance(first, TensorValue) and first.fake.dim() else 0
    return dim == 0 and not isinstance(steps, torch.SymInt) and 0 < steps <= MOST_STEPS


@handles(of_torch.scan_rows)
def scan_row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults: dict[str, Value | None] = {"dim": ConstantValue(0), "reverse": ConstantValue(False)}
    combine, init, xs, dim, reverse = bind_arguments("scan", ["combine_fn", "init", "xs", "dim", "reverse"], args, kwargs, defaults)
    if is_short(cx, xs, dim.constant()):
        return cx.call_real(unrolled_scan, Constant(unrolled_scan, "scan"), [combine, init, xs, dim, reverse])
    return scan(cx, combine, init, xs, dim.constant(), reverse.truth(cx))


@handles(of_torch.map_rows)
def map_row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) < 2:
        raise unsupported("would-raise", "map without a function and tensors")
    if is_short(cx, args[1], 0):
        return cx.call_real(unrolled_map, Constant(unrolled_map, "map"), args)
    return map_rows(cx, args[0], args[1], args[2:])
