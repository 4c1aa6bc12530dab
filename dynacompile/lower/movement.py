"""Ops that put elements elsewhere: the index says from where, a mask where nothing is read."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.ir.extents import derived
from dynacompile.ir.index import Extent, Index, atom, constant, extent, never_negative, strided
from dynacompile.ir.loops import Buffer
from dynacompile.lower.context import Lowering, arguments
from dynacompile.lower.joining import join_in_place
from dynacompile.lower.numbers import number
from dynacompile.lower.pointwise import require_element
from dynacompile.lower.values import Expander, Value
from dynacompile.ops.decompositions import MOST_JOINED
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import NEAREST
from dynacompile.ops.table import Row


class Move:
    """A nest over the result's shape that is being written."""

    def __init__(self, low: Lowering, node: torch.fx.Node):
        self.low, self.node = low, node
        val = node.meta["val"]
        self.out: Buffer = low.add(node.name, val)
        self.indices = list(low.axes(self.out.size)[1])
        self.o: Expander = low.expander(val.dtype)
        low.values[node] = node.name

    def source(self, arg: object) -> Buffer:
        buffer = self.low.buffer_of(arg)
        require_element(self.low, buffer.name, self.out.device)
        return buffer

    def load(self, buffer: Buffer, indices: list[Index], mask: Value | None = None, other: float = 0) -> Value:
        value = self.low.load(self.o, buffer, strided(indices, buffer.stride, buffer.offset), mask, other)
        return self.o.cast(value, self.o.compute)

    def between(self, index: Index, low: Extent, high: Extent, size: Extent) -> Value | None:
        """low <= index < high, None where every index in 0..size-1 is."""
        tests = []
        if not never_negative(constant(0) - low):
            tests.append(self.o.apply("le", low, self.o.index(index)))
        if not never_negative(constant(0) + high - size):
            tests.append(self.o.apply("lt", self.o.index(index), high))
        return self.o.both(tests)

    def done(self, value: Value) -> None:
        self.low.finish_pointwise(self.o, value, self.out, self.node)


def lower_cat(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """Masked loads from each input, chosen by position."""
    given = arguments(node)
    parts = [a for a in given["tensors"] if low.buffer_of(a).size != (0,)]
    dim = given["dim"] % max(1, node.meta["val"].dim())
    if not 0 < len(parts) <= MOST_JOINED:
        raise NotCovered
    if join_in_place(low, node, parts, dim):
        return
    move = Move(low, node)
    o, result = move.o, None
    start: Extent = 0
    place, total = move.indices[dim], move.out.size[dim]
    for part in parts:
        buffer = move.source(part)
        width = buffer.size[dim]
        if width == 0:
            continue
        mask = move.between(place, start, start + width, total)
        value = move.load(buffer, [*move.indices[:dim], place - start, *move.indices[dim + 1 :]], mask)
        result = value if result is None or mask is None else o.select(o.apply("lt", o.index(place), start), result, value)
        start = extent(start + width)
    if result is None:
        result = o.constant(0)
    move.done(result)


def lower_pad(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """constant_pad_nd: pairs of widths, last dimension first; negative ones cut off."""
    given = arguments(node)
    widths, fill = given["pad"], given["value"]
    if not isinstance(fill, (bool, int, float, torch.SymFloat)) or not all(isinstance(w, (int, Index)) for w in widths):
        raise NotCovered
    move = Move(low, node)
    read = move.source(node.args[0])
    varies = isinstance(fill, torch.SymFloat)
    if varies and (read.numel == 0 or not read.dtype.is_floating_point):
        raise NotCovered
    if read.dtype.is_floating_point and not varies:
        fill = torch.tensor(fill, dtype=read.dtype).item()  # as elements of half precision have it
    indices, mask = list(move.indices), None
    for i in range(len(widths) // 2):
        d, before = len(indices) - 1 - i, widths[2 * i]
        mask = move.o.both((mask, move.between(indices[d], before, before + read.size[d], move.out.size[d])))
        indices[d] = indices[d] - before
    if varies:
        value = move.load(read, indices, mask)
        move.done(value if mask is None else move.o.select(mask, value, held(move.o, number(move.o, fill), read.dtype, value.dtype)))
        return
    other = fill if mask is not None else 0
    if read.numel == 0:
        move.done(move.o.constant(fill))
        return
    move.done(move.load(read, indices, mask, other))


def held(o: Expander, given: Value | float, dtype: torch.dtype, compute: torch.dtype) -> Value:
    """A number as elements of a dtype have it, in another that it is computed in."""
    value = o.cast(given, compute)
    return getattr(o, NEAREST[dtype])(value) if dtype in NEAREST else value


def lower_slice_scatter(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    values = arguments(node)
    dim, start, end, step = values["dim"], values["start"], values["end"], values["step"]
    move = Move(low, node)
    base, part = move.source(values["self"]), move.source(values["src"])
    size = move.out.size[dim]
    dim %= len(move.out.size)
    start = first_of(start, end, step, size)
    count = part.size[dim]
    place = move.indices[dim]
    if count == 0:
        move.done(move.load(base, move.indices))
        return
    inside = move.between(place, start, start + (count - 1) * step + 1, size)
    if step > 1:
        inside = move.o.both((inside, move.o.eq(move.o.index((place - start) % step), 0)))
    indices = [*move.indices[:dim], (place - start) // step, *move.indices[dim + 1 :]]
    value = move.load(part, indices, inside)
    move.done(value if inside is None else move.o.select(inside, value, move.load(base, move.indices)))


def first_of(start: Extent | None, end: Extent | None, step: int, size: Extent) -> Extent:
    """Where a slice of `size` elements starts."""
    if isinstance(size, int) and not isinstance(start, Index) and not isinstance(end, Index):
        return slice(start, end, step).indices(size)[0]
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        start = size + start
    if not never_negative(constant(0) + start) or not never_negative(constant(0) + size - start):
        raise NotCovered
    return start


def lower_select_scatter(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    move = Move(low, node)
    base, part = move.source(given["self"]), move.source(given["src"])
    dim = given["dim"] % len(move.out.size)
    at, size = given["index"], move.out.size[dim]
    if isinstance(at, int):
        at = at % size if isinstance(size, int) else size + at if at < 0 else at
    elif not never_negative(at):
        raise NotCovered
    here = move.o.eq(move.o.index(move.indices[dim]), at)
    value = move.load(part, [i for d, i in enumerate(move.indices) if d != dim])
    move.done(move.o.select(here, value, move.load(base, move.indices)))


def lower_flip(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    move = Move(low, node)
    read = move.source(node.args[0])
    flipped = {d % max(1, len(read.size)) for d in arguments(node)["dims"]}
    move.done(move.load(read, [read.size[d] - 1 - i if d in flipped else i for d, i in enumerate(move.indices)]))


def lower_roll(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    shifts, dims = given["shifts"], given["dims"]
    move = Move(low, node)
    read = move.source(node.args[0])
    indices = list(move.indices)
    shifts = [shifts] if isinstance(shifts, (int, Index)) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        raise NotCovered
    if move.out.numel == 0:
        return
    for shift, d in zip(shifts, dims, strict=True):
        d %= len(indices)
        size = read.size[d]
        forward = -shift % size if isinstance(shift, int) and isinstance(size, int) else atom(derived("mod", 0 - shift, size))
        indices[d] = (indices[d] + forward) % size
    move.done(move.load(read, indices))


def lower_repeat(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    move = Move(low, node)
    read = move.source(node.args[0])
    if move.out.numel == 0:
        return
    inner = move.indices[len(move.indices) - len(read.size) :]
    move.done(move.load(read, [i % n for i, n in zip(inner, read.size, strict=True)]))


def lower_triangle(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    diagonal = arguments(node)["diagonal"]
    move = Move(low, node)
    o, (at_row, at_column) = move.o, move.indices[-2:]
    right = o.index(at_column) - o.index(at_row)
    keep = right <= diagonal if row.detail == "lower" else right >= diagonal
    move.done(o.select(keep, move.load(move.source(node.args[0]), move.indices), 0))
