"""One reduction as two: partial results of chunks of its r axes, then the reduction of those."""

from __future__ import annotations

import math

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.extents import ceil_div
from dynacompile.ir.index import Extent, Index, Var, atom, constant, hint
from dynacompile.ir.loops import Access, Axis, Buffer, Nest, Op
from dynacompile.schedule.domain import linear, merge_axes

EVEN = 16  # what the length of a chunk is a multiple of where the last one need not be full, so that chunks can be cut again


def split(nest: Nest, count: int, buffers: dict[str, Buffer]) -> tuple[Nest, Nest]:
    """Cuts the outermost r axes into about `count` chunks; adds the buffer of partial results."""
    outer, inner, values, mask = cut(nest.r_axes, count)
    total = math.prod(a.size for a in outer)
    x = math.prod(a.size for a in nest.x_axes)
    at = position_of_reduce(nest)
    reduce = nest.body[at]
    name = partial_buffer(nest, reduce.dtype, total, x, buffers)
    result = linear(nest.x_axes)

    body = Body()
    guard = None
    if mask is not None:
        place = body.emit("index", (), torch.int64, mask[0])
        limit = body.emit("constant" if isinstance(mask[1], int) else "index", (), torch.int64, mask[1])
        guard = body.emit("lt", (place, limit), torch.bool)
    cuts = {v for i in values.values() if isinstance(i, Index) for v in i.variables()}

    def on_load(access: Access, dtype: torch.dtype) -> int | None:
        inside = not cuts.isdisjoint(access.index.variables()) or any(v.name[0] == "%" for v in access.index.variables())
        return None if inside or access.mask != guard else body.emit("load", (), dtype, Access(access.buffer, access.index))

    ids = body.splice(nest.body[:at], values, guard, on_load)
    value = ids[reduce.args[0]]
    if guard is not None:
        value = body.emit("where", (guard, value, body.emit("constant", (), reduce.dtype, identity(str(reduce.attr), reduce.dtype))), reduce.dtype)
    body.store(body.emit("reduce", (value,), reduce.dtype, reduce.attr), name, linear(outer) * x + result)
    first = Nest(name, (*outer, *nest.x_axes, *inner), without_dead(body.ops), nest.origins)

    chunk = Axis(Var("r0", total), "r")
    rest = Body()
    second = Nest(nest.name, (*nest.x_axes, chunk), without_dead(finish(rest, nest, at, name, atom(chunk.var) * x + result)), nest.origins)
    return merge_axes(first), merge_axes(second)


def position_of_reduce(nest: Nest) -> int:
    return next(i for i, op in enumerate(nest.body) if op.name == "reduce")


def partial_buffer(nest: Nest, dtype: torch.dtype, chunks: Extent, x: Extent, buffers: dict[str, Buffer]) -> str:
    """A new temp for the results of chunks; its name."""
    name = f"{nest.name}_partial"
    while name in buffers:
        name += "_"
    buffers[name] = Buffer(name, dtype, buffers[nest.stores()[0].buffer].device, (chunks, x), (x, 1), "temp")
    return name


def finish(body: Body, nest: Nest, at: int, partial: str, index: Index) -> list[Op]:
    """The body of the nest with what it reduces replaced by loads of partial results."""
    reduce = nest.body[at]
    loaded = body.emit("load", (), reduce.dtype, Access(partial, index))
    swapped = body.emit("reduce", (loaded,), reduce.dtype, reduce.attr)
    ids = body.splice(nest.body[:at], {})
    body.splice(nest.body[at + 1 :], {}, before=[*ids, swapped])
    return body.ops


def cut(axes: tuple[Axis, ...], count: int) -> tuple[tuple[Axis, ...], tuple[Axis, ...], dict[Var, Index | int], tuple[Index, Extent] | None]:
    """(chunk axes, axes within a chunk, what the old r variables are, and where the last chunk is not full (index, size) with index < size required)."""
    outer: list[Axis] = []
    inner: list[Axis] = []
    values: dict[Var, Index | int] = {}
    mask = None
    for position, axis in enumerate(axes):
        last = position == len(axes) - 1
        if count >= axis.size and not last:
            whole = Axis(Var(f"c{position}", axis.size), "x")
            outer.append(whole)
            values[axis.var] = atom(whole.var)
            count = -(-count // max(1, hint(axis.size)))
        elif count > 1:
            length = max(1, hint(axis.size))
            size = -(-length // good_divisor(length, count))
            if size > EVEN and not (isinstance(axis.size, int) and length % size == 0):
                size = -(-size // EVEN) * EVEN
            parts = ceil_div(axis.size, size)
            chunk, rest = Axis(Var(f"c{position}", parts), "x"), Axis(Var(f"r{position}", size), "r")
            outer.append(chunk)
            inner.append(rest)
            values[axis.var] = atom(chunk.var) * size + (atom(rest.var) if size > 1 else constant(0))
            if parts * size != axis.size:
                mask = values[axis.var], axis.size
            count = 1
        else:
            inner.append(axis)
    return tuple(outer), tuple(inner), values, mask  # type: ignore[return-value]


def good_divisor(size: int, count: int) -> int:
    """A divisor of size near count, the nearest above first; count itself where there is none."""
    for n in (*range(count, 2 * count), *range(count - 1, count // 2, -1)):
        if size % n == 0 and n < size:
            return n
    return count


def identity(kind: str, dtype: torch.dtype) -> float | int | bool:
    """What a reduction of nothing gives."""
    if kind in ("max", "min"):
        if dtype.is_floating_point:
            return -math.inf if kind == "max" else math.inf
        limits = torch.iinfo(dtype)
        return limits.min if kind == "max" else limits.max
    return {"sum": 0, "prod": 1, "any": False, "all": True}[kind]
