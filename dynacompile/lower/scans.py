"""Scans: sums, products, extrema and logarithms of sums of exponentials of the elements so far along a dimension, which is the r axis."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.ir.index import strided
from dynacompile.ir.loops import Buffer, Scan
from dynacompile.lower.context import Lowering, arguments
from dynacompile.lower.pointwise import require_element
from dynacompile.lower.reduction import Loops, from_zero
from dynacompile.lower.values import Expander, Value, nearest
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import PLACES, compute_dtype
from dynacompile.ops.table import Row

NARROW = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16})  # scanned as int32


class Along:
    """One scan that is being written: of a tensor, along one of its dimensions, into a buffer of the same shape."""

    def __init__(self, low: Lowering, node: torch.fx.Node, read: Buffer, dim: int, into: Buffer):
        self.low, self.node, self.read, self.into = low, node, read, into
        self.loops = Loops(low, read.size, [dim] if read.size else [], True)
        self.o: Expander = low.expander(into.dtype)

    def load(self, buffer: Buffer, step: int = 0, mask: Value | None = None, other: float = 0) -> Value:
        """An element of a buffer of the shape that is scanned, `step` places further along the dimension."""
        indices = list(self.loops.input)
        if step:
            (dim,) = self.loops.dims
            indices[dim] = indices[dim] + step
        return self.low.load(self.o, buffer, strided(indices, buffer.stride, buffer.offset), mask, other)

    def scan(self, kind: str, value: Value, reverse: bool = False, starts: Value | None = None) -> Value:
        o = self.o
        if not self.loops.reduces:
            return o.constant(0, torch.int64) if kind in PLACES else from_zero(value) if kind in ("sum", "logaddexp") else value
        dtype = value.dtype
        wide = o.cast(value, torch.int32) if dtype in NARROW else value
        args = (wide.id,) if starts is None else (wide.id, starts.id)
        result = torch.int64 if kind in PLACES else wide.dtype
        found = Value(o, o.body.emit("scan", args, result, Scan(kind, reverse)), result)
        return found if kind in PLACES else o.cast(found, dtype)

    def done(self, value: Value) -> None:
        self.low.finish(self.o, value, self.into, self.loops.axes, self.loops.input, self.node)


def source(low: Lowering, node: torch.fx.Node, arg: object, device: torch.device) -> Buffer:
    buffer = low.buffer_of(arg)
    require_element(low, buffer.name, device)
    return buffer


def lower_scan(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    val, given = node.meta["val"], arguments(node)
    read = source(low, node, node.args[0], val.device)
    along = Along(low, node, read, given["dim"] % max(1, len(read.size)), low.add(node.name, val))
    low.values[node] = node.name
    along.done(along.scan(row.detail, along.o.cast(along.load(read), compute_dtype(val.dtype))))


def lower_running_extremum(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """The values, and where they are."""
    values, positions = node.meta["val"]
    read = source(low, node, node.args[0], values.device)
    dim = arguments(node)["dim"] % max(1, len(read.size))
    names = low.parts(node, 2)
    for name, val, kind in ((names[0], values, row.detail), (names[1], positions, "arg" + row.detail)):
        along = Along(low, node, read, dim, low.add(name, val))
        along.done(along.scan(kind, nearest(along.o, along.load(read), read)))
    low.values[node] = names


def lower_running_extremum_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """Each element gets the gradients of the results that it gave: of those from it on, up to where the position changes."""
    val, given = node.meta["val"], arguments(node)
    grad, positions = (source(low, node, given[n], val.device) for n in ("grad", "indices"))
    dim = given["dim"] % max(1, len(grad.size))
    if positions.dtype != torch.int64:
        raise NotCovered
    along = Along(low, node, grad, dim, low.add(node.name, val))
    low.values[node] = node.name
    o, value = along.o, along.load(grad)
    if along.loops.reduces:
        place, size = along.loops.input[dim], grad.size[dim]
        at = along.load(positions)
        last = o.apply("eq", o.index(place), size - 1)
        later = along.load(positions, 1, ~last)
        ends = last | o.apply("ne", at, later)
        value = o.select(o.apply("eq", at, o.index(place)), along.scan("sum", value, reverse=True, starts=ends), 0)
    along.done(value)
