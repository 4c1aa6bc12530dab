"""Variances in one pass over memory: where a mean is cut into chunks, so are the squares about it, about each chunk's own mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Index, Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, Nest
from dynacompile.schedule.domain import linear, merge_axes
from dynacompile.schedule.split import cut, partial_buffer, position_of_reduce


@dataclass(frozen=True)
class Mean:
    """A nest that stores the sum of `value` over all r axes divided by `number`, and was cut into `count` full chunks whose sums are in `partial`."""

    nest: Nest
    buffer: str
    index: Index
    value: int
    number: float
    count: int
    partial: str


def mean_of(nest: Nest, count: int, partial: str) -> Mean | None:
    at, store = position_of_reduce(nest), nest.body[-1]
    quotient = nest.body[store.args[0]]
    access = store.attr
    if nest.body[at].attr != "sum" or quotient.name != "truediv" or quotient.args[0] != at or cut(nest.r_axes, count)[3] is not None:
        return None
    number = nest.body[quotient.args[1]]
    if number.name != "constant" or not isinstance(access, Access) or access.mask is not None or number.attr != math.prod(a.size for a in nest.r_axes):
        return None
    return Mean(nest, access.buffer, access.index, nest.body[at].args[0], float(number.attr), count, partial)  # type: ignore[arg-type]


def squares_about(nest: Nest, mean: Mean) -> Mean | None:
    """mean, where the nest sums the squares of what `mean` averages less that mean."""
    at = position_of_reduce(nest)
    square = nest.body[nest.body[at].args[0]]
    if nest.axes != mean.nest.axes or nest.body[at].attr != "sum" or square.name != "mul" or square.args[0] != square.args[1]:
        return None
    difference = nest.body[square.args[0]]
    if difference.name != "sub" or nest.body[difference.args[1]].attr != Access(mean.buffer, mean.index):
        return None
    return mean if expression(nest, difference.args[0]) == expression(mean.nest, mean.value) else None


def expression(nest: Nest, i: int) -> tuple:
    """What a value is computed from."""
    op = nest.body[i]
    return op.name, op.dtype, op.attr, tuple(expression(nest, a) for a in op.args)


def split_variance(nest: Nest, mean: Mean, buffers: dict[str, Buffer]) -> tuple[Nest, Nest]:
    """Sums of squares about the mean, from sums of squares about each chunk's own mean, so that one pass over memory makes both.

    With n elements, sum s and squares q about s / n in each chunk, it is sum(q + n * (s / n - mean)^2) (Chan, Golub and LeVeque 1979).
    """
    outer, inner, values, _ = cut(nest.r_axes, mean.count)
    total, x = math.prod(a.size for a in outer), math.prod(a.size for a in nest.x_axes)
    own = mean.number / total
    at, result = position_of_reduce(nest), linear(nest.x_axes)
    dtype = nest.body[at].dtype
    name = partial_buffer(nest, dtype, total, x, buffers)

    body = Body()
    value = body.splice(mean.nest.body[: mean.value + 1], values)[mean.value]
    center = body.emit("truediv", (body.emit("reduce", (value,), dtype, "sum"), body.emit("constant", (), dtype, own)), dtype)
    difference = body.emit("sub", (value, center), dtype)
    squares = body.emit("reduce", (body.emit("mul", (difference, difference), dtype),), dtype, "sum")
    body.store(squares, name, linear(outer) * x + result)
    first = Nest(name, (*outer, *nest.x_axes, *inner), without_dead(body.ops), nest.origins)

    chunk = Axis(Var("r0", total), "r")
    rest = Body()
    place = atom(chunk.var) * x + result
    number = rest.emit("constant", (), dtype, own)
    center = rest.emit("truediv", (rest.emit("load", (), dtype, Access(mean.partial, place)), number), dtype)
    difference = rest.emit("sub", (center, rest.emit("load", (), dtype, Access(mean.buffer, mean.index))), dtype)
    shift = rest.emit("mul", (number, rest.emit("mul", (difference, difference), dtype)), dtype)
    squares = rest.emit("add", (rest.emit("load", (), dtype, Access(name, place)), shift), dtype)
    whole = rest.emit("reduce", (squares,), dtype, "sum")
    ids = rest.splice(nest.body[:at], {})
    rest.splice(nest.body[at + 1 :], {}, before=[*ids, whole])
    second = Nest(nest.name, (*nest.x_axes, chunk), without_dead(rest.ops), nest.origins)
    return merge_axes(first), merge_axes(second)
