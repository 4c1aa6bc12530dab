"""Control flow that tensors decide: the functions become graphs, and torch's operator over these is one operation of the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.bodies import Body, leaves, mapped, shape_of
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ops.regions import results_like, storage
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class Region(Body):
    """One function of an operator over graphs."""

    def __init__(self, cx: Context, name: str, function: Value, args: Sequence[Value]):
        super().__init__(cx, name)
        if any(not isinstance(body, Region) for body in cx.bodies):
            raise unsupported("sub-graph", f"{name} inside of a transform of torch.func")
        self.given = [tensor.fake for arg in args for tensor in leaves(arg)]
        self.inputs: list[torch.fx.Node] = []
        with cx.recorder.watching() as draws, self.traced():
            self.result = function.call(cx, [mapped(arg, self.example) for arg in args], {})
        self.outputs = leaves(self.result)
        self.draws = draws.seen
        refuse_aliases(self)

    def example(self, tensor: TensorValue) -> Value:
        with self.cx.recorder.mode:
            fake = tensor.fake.detach()
            if tensor.fake.requires_grad and torch.is_grad_enabled():
                fake.requires_grad_()
        value = self.input(fake)
        self.inputs.append(value.node)
        return value

    @property
    def fakes(self) -> list[torch.Tensor]:
        return [value.fake for value in self.outputs]


def refuse_aliases(body: Region) -> None:
    """Torch's operators want results that share memory with nothing else."""
    taken = {storage(fake) for fake in body.given} | {storage(node.meta["val"]) for node in body.reads(body.outputs)}
    for value in body.outputs:
        if storage(value.fake) in taken:
            raise unsupported("sub-graph", f"{body.name} of a function that returns an input, a view or the same tensor twice")
        taken.add(storage(value.fake))


def dropped(bodies: Sequence[Region], index: int) -> bool:
    """Takes an input that no body uses out of all of them: it is no operand, and gets no gradient."""
    if any(body.inputs[index].users for body in bodies):
        return False
    for body in bodies:
        body.graph.erase_node(body.inputs[index])
    return True


def only_tensors(body: Region, value: Value) -> None:
    constants = [leaf for leaf in flat(shape_of(value)) if leaf is not ...]
    if constants or not body.outputs:
        raise unsupported("sub-graph", f"{body.name} of a function that returns {constants[0] if constants else 'no tensor'}")


def flat(shape: Any) -> list[Any]:
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], list):
        return [leaf for item in shape[1] for leaf in flat(item)]
    if isinstance(shape, dict):
        return [leaf for item in shape.values() for leaf in flat(item)]
    return [shape]


def same_tensors(name: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
    for a, b in zip(first, second):
        if (a.dtype, a.device, a.dim()) != (b.dtype, b.device, b.dim()) or tuple(a.shape) != tuple(b.shape) or a.stride() != b.stride():
            raise unsupported("sub-graph", f"{name} of functions whose results differ in type, sizes or strides")


def record(
    cx: Context, target: Any, bodies: dict[str, Region], operands: list[TensorValue], examples: Sequence[torch.Tensor], arguments: Callable[..., tuple]
) -> list[Value]:
    """The call of the operator. arguments: its arguments, of the nodes of the graphs and of what they read around them."""
    outer = list(dict.fromkeys(node for body in bodies.values() for node in body.reads(body.outputs)))
    fakes = [value.fake for value in operands] + [node.meta["val"] for node in outer]
    draws = any(body.draws for body in bodies.values())
    if draws and torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes):
        raise unsupported("random-state", f"{target.name()} with gradients, which draws anew for the backward pass,")
    graphs = {f"{target.name()}_{role}": body.finish(body.outputs, outer) for role, body in bodies.items()}
    with cx.recorder.mode:
        results = results_like(examples, fakes)
    made = cx.recorder.call_graphs(target, lambda *nodes: arguments(nodes, tuple(outer)), graphs, results)
    return made.elements(cx)


def refill(result: Value, made: Sequence[Value]) -> Value:
    items = iter(made)
    return mapped(result, lambda _: next(items))


def cond(cx: Context, predicate: TensorValue, if_true: Value, if_false: Value, operands: list[Value]) -> Value:
    if predicate.fake.dtype is not torch.bool or predicate.fake.numel() != 1:
        raise unsupported("would-raise", f"torch.cond({predicate.describe()}, ...)")
    yes, no = (Region(cx, "torch.cond", function, operands) for function in (if_true, if_false))
    only_tensors(yes, yes.result)
    if shape_of(yes.result) != shape_of(no.result):
        raise unsupported("sub-graph", "torch.cond of functions whose results differ in structure")
    same_tensors("torch.cond", yes.fakes, no.fakes)
    given = [tensor for i, tensor in enumerate(leaves(TupleValue(operands))) if not dropped([yes, no], i)]
    inputs = tuple(tensor.node for tensor in given)
    branches = {"true": yes, "false": no}
    made = record(cx, of_torch.cond_op, branches, [predicate, *given], yes.fakes, lambda graphs, outer: (predicate.node, *graphs, (*inputs, *outer)))
    return refill(yes.result, made)


def while_loop(cx: Context, condition: Value, function: Value, carried: list[Value]) -> Value:
    test, body = (Region(cx, "torch.while_loop", f, carried) for f in (condition, function))
    only_tensors(body, body.result)
    given = leaves(TupleValue(carried))
    if not isinstance(test.result, TensorValue) or test.result.fake.dtype is not torch.bool or test.result.fake.dim():
        raise unsupported("sub-graph", "torch.while_loop with a condition that gives no boolean tensor")
    if shape_of(TupleValue(carried)) != shape_of(body.result):
        raise unsupported("sub-graph", "torch.while_loop of a function whose results differ from its arguments in structure")
    same_tensors("torch.while_loop", [t.fake for t in given], body.fakes)
    inputs = tuple(tensor.node for tensor in given)
    made = record(cx, of_torch.while_loop_op, {"cond": test, "body": body}, given, body.fakes, lambda graphs, outer: (*graphs, inputs, outer))
    return refill(body.result, made)


def rows_of(cx: Context, name: str, xs: Value, dim: int, reverse: bool) -> Value:
    """The tensors with the dimension that is looped over in front."""
    tensors = leaves(xs)
    if not tensors or not all(-t.fake.dim() <= dim < t.fake.dim() for t in tensors) or len({t.fake.shape[dim] for t in tensors}) != 1:
        raise unsupported("would-raise", f"{name} over tensors without that dimension, or of several sizes")
    if not tensors[0].fake.shape[dim]:
        raise unsupported("would-raise", f"{name} over no steps")

    def first(tensor: TensorValue) -> Value:
        moved = cx.op("call_function", torch.movedim, [tensor, ConstantValue(dim), ConstantValue(0)], {}) if dim else tensor
        return cx.op("call_function", torch.flip, [moved, TupleValue([ConstantValue(0)])], {}) if reverse else moved

    return mapped(xs, first)  # type: ignore[arg-type]


def scan(cx: Context, combine: Value, init: Value, xs: Value, dim: int, reverse: bool) -> Value:
    dim = dim + leaves(xs)[0].fake.dim() if dim < 0 and leaves(xs) else dim
    xs = rows_of(cx, "scan", xs, dim, reverse)
    carry, rows = leaves(init), leaves(xs)
    body = Region(cx, "scan", combine, [init, row_example(cx, xs)])
    only_tensors(body, body.result)
    parts = body.result.elements(cx)
    if len(parts) != 2 or shape_of(parts[0]) != shape_of(init):
        raise unsupported("sub-graph", "scan of a function whose carry changes its structure")
    count = len(carry)
    same_tensors("scan", [t.fake for t in carry], body.fakes[:count])
    steps = rows[0].fake.shape[0]
    examples = body.fakes[:count] + stacks(cx, steps, body.fakes[count:])
    before, over = [t.node for t in carry], [t.node for t in rows]
    made = record(cx, of_torch.scan_op, {"combine": body}, [*carry, *rows], examples, lambda graphs, outer: (*graphs, before, over, outer))
    return refill(body.result, [*made[:count], *(in_place_of(cx, value, dim, reverse) for value in made[count:])])


MOVES_BACK = any(isinstance(c, CodeType) and {"movedim", "ndim"} <= {*c.co_names} for c in of_torch.scan_rows.__code__.co_consts)
"""Whether torch's scan gives its rows along the dimension that it went over: 2.11's has them in front."""


def in_place_of(cx: Context, rows: Value, dim: int, reverse: bool) -> Value:
    """Stacked results, in the order and along the dimension that was looped over."""
    if reverse:
        rows = cx.op("call_function", torch.flip, [rows, TupleValue([ConstantValue(0)])], {})
    if MOVES_BACK and dim and dim < rows.fake.dim():  # type: ignore[attr-defined]
        rows = cx.op("call_function", torch.movedim, [rows, ConstantValue(0), ConstantValue(dim)], {})
    return rows


def map_rows(cx: Context, function: Value, xs: Value, extra: list[Value]) -> Value:
    xs = rows_of(cx, "map", xs, 0, False)
    rows = leaves(xs)
    body = Region(cx, "map", function, [row_example(cx, xs), *extra])
    only_tensors(body, body.result)
    more = leaves(TupleValue(extra))
    over, inputs = [t.node for t in rows], [t.node for t in more]
    examples = stacks(cx, rows[0].fake.shape[0], body.fakes)
    made = record(cx, of_torch.map_impl, {"body": body}, [*rows, *more], examples, lambda graphs, outer: (*graphs, over, (*inputs, *outer)))
    return refill(body.result, made)


def row_example(cx: Context, xs: Value) -> Value:
    """One row of each tensor, as a value that no graph has."""

    def row(tensor: TensorValue) -> Value:
        with cx.recorder.mode:
            return TensorValue(tensor.node, tensor.fake.select(0, 0))

    return mapped(xs, row)


def stacks(cx: Context, steps: int, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with cx.recorder.mode:
        return [row.new_empty((steps, *row.shape)) for row in rows]
