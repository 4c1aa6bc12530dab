"""Variances in one pass over memory: where a mean is cut into chunks, so are the differences from it and their squares, about each chunk's own mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Extent, Index, Var, atom, extent
from dynacompile.ir.loops import Access, Axis, Buffer, Nest
from dynacompile.schedule.domain import linear, merge_axes
from dynacompile.schedule.split import cut, partial_buffer, position_of_reduce


@dataclass(frozen=True)
class Mean:
    """A nest that stores the sum of `value` over all r axes divided by their elements, and was cut into about `count` chunks whose sums are in
    `partial`. drift: the chunks' sums of differences from their own means, once a nest wanted those."""

    nest: Nest
    buffer: str
    index: Index
    value: int
    count: int
    partial: str
    drift: str | None = None


def mean_of(nest: Nest, count: int, partial: str) -> Mean | None:
    at, store = position_of_reduce(nest), nest.body[-1]
    quotient = nest.body[store.args[0]]
    access = store.attr
    if nest.body[at].attr != "sum" or quotient.name != "truediv" or quotient.args[0] != at or (len(nest.r_axes) > 1 and cut(nest.r_axes, count)[3] is not None):
        return None
    if not isinstance(access, Access) or access.mask is not None or elements(nest, quotient.args[1]) != math.prod(a.size for a in nest.r_axes):
        return None
    return Mean(nest, access.buffer, access.index, nest.body[at].args[0], count, partial)


def elements(nest: Nest, i: int) -> Extent | None:
    """The number that a value is, where it is a constant, or a size as a float."""
    op = nest.body[i]
    if op.name == "cast":
        op = nest.body[op.args[0]]
    if op.name == "constant":
        return op.attr  # type: ignore[return-value]
    return op.attr if op.name == "index" and isinstance(op.attr, Index) and not op.attr.variables() else None


def is_squares_about(nest: Nest, mean: Mean) -> bool:
    """Whether the nest sums the squares of what `mean` averages less that mean."""
    square = nest.body[nest.body[position_of_reduce(nest)].args[0]]
    return square.name == "mul" and square.args[0] == square.args[1] and sums_differences(nest, mean, square.args[0])


def is_drift_from(nest: Nest, mean: Mean) -> bool:
    """Whether the nest sums what `mean` averages less that mean: nearly 0."""
    return sums_differences(nest, mean, nest.body[position_of_reduce(nest)].args[0])


def sums_differences(nest: Nest, mean: Mean, value: int) -> bool:
    """Whether the nest is a sum over the mean's space, and the value a difference from the mean."""
    difference = nest.body[value]
    if nest.axes != mean.nest.axes or nest.body[position_of_reduce(nest)].attr != "sum":
        return False
    if difference.name != "sub" or nest.body[difference.args[1]].attr != Access(mean.buffer, mean.index):
        return False
    return expression(nest, difference.args[0]) == expression(mean.nest, mean.value)


def expression(nest: Nest, i: int) -> tuple:
    """What a value is computed from."""
    op = nest.body[i]
    return op.name, op.dtype, op.attr, tuple(expression(nest, a) for a in op.args)


def split_variance(nest: Nest, mean: Mean, buffers: dict[str, Buffer]) -> tuple[Nest, Nest]:
    """Sums of squares about the mean m, from sums of squares about each chunk's own mean, so that one pass over memory makes both.

    With n elements, mean c, and sums d of x - c and q of its squares in each chunk, it is sum(q + 2 d (c - m) + n (c - m)^2) (Chan, Golub and
    LeVeque 1979, where d is 0; here it is what c was rounded by).
    """

    def squared(body: Body, difference: int, dtype: torch.dtype) -> int:
        return body.emit("mul", (difference, difference), dtype)

    def combined(body: Body, squares: int, number: int, shift: int, drift: int | None, dtype: torch.dtype) -> int:
        apart = body.emit("mul", (number, shift), dtype)
        if drift is not None:
            apart = body.emit("add", (apart, body.emit("add", (drift, drift), dtype)), dtype)
        return body.emit("add", (squares, body.emit("mul", (apart, shift), dtype)), dtype)

    first, second, _ = split_about_mean(nest, mean, buffers, squared, combined)
    return first, second


def split_drift(nest: Nest, mean: Mean, buffers: dict[str, Buffer]) -> tuple[Nest, Nest, str]:
    """Sums of differences from the mean m, from those from each chunk's own mean: sum(d + n (c - m)); and the buffer of the d."""

    def itself(body: Body, difference: int, dtype: torch.dtype) -> int:
        return difference

    def combined(body: Body, drift: int, number: int, shift: int, _: int | None, dtype: torch.dtype) -> int:
        return body.emit("add", (drift, body.emit("mul", (number, shift), dtype)), dtype)

    return split_about_mean(nest, mean, buffers, itself, combined)


def split_about_mean(
    nest: Nest,
    mean: Mean,
    buffers: dict[str, Buffer],
    of_difference: Callable[[Body, int, torch.dtype], int],
    combined: Callable[[Body, int, int, int, int | None, torch.dtype], int],
) -> tuple[Nest, Nest, str]:
    """Chunks' sums of of_difference(x - the chunk's mean), the sum of combined(that, elements, chunk's mean - mean, drift) over the chunks, and the
    buffer between them."""
    outer, inner, values, last = cut(nest.r_axes, mean.count)
    total, x = extent(math.prod(a.size for a in outer)), math.prod(a.size for a in nest.x_axes)
    own: Extent = math.prod(a.size for a in inner)  # of a full chunk; a number where one is not full
    at, result = position_of_reduce(nest), linear(nest.x_axes)
    dtype = nest.body[at].dtype
    name = partial_buffer(nest, dtype, total, x, buffers)

    body = Body()
    guard = None if last is None else body.emit("lt", (integer(body, last[0]), integer(body, last[1])), torch.bool)

    def inside(value: int) -> int:
        return value if guard is None else body.emit("where", (guard, value, body.emit("constant", (), dtype, 0)), dtype)

    value = inside(body.splice(mean.nest.body[: mean.value + 1], values, guard)[mean.value])
    number = length_of(body, outer[0].var, own, last, dtype)
    center = body.emit("truediv", (body.emit("reduce", (value,), dtype, "sum"), number), dtype)
    difference = body.emit("sub", (value, center), dtype)
    sums = body.emit("reduce", (inside(of_difference(body, difference, dtype)),), dtype, "sum")
    body.store(sums, name, linear(outer) * x + result)
    first = Nest(name, (*outer, *nest.x_axes, *inner), without_dead(body.ops), nest.origins)

    chunk = Axis(Var("r0", total), "r")
    rest = Body()
    place = atom(chunk.var) * x + result

    def of_chunk(buffer: str) -> int:
        return rest.emit("load", (), dtype, Access(buffer, place))

    number = length_of(rest, chunk.var, own, last, dtype)
    center = rest.emit("truediv", (of_chunk(mean.partial), number), dtype)
    shift = rest.emit("sub", (center, rest.emit("load", (), dtype, Access(mean.buffer, mean.index))), dtype)
    drift = None if mean.drift is None else of_chunk(mean.drift)
    whole = rest.emit("reduce", (combined(rest, of_chunk(name), number, shift, drift, dtype),), dtype, "sum")
    ids = rest.splice(nest.body[:at], {})
    rest.splice(nest.body[at + 1 :], {}, before=[*ids, whole])
    second = Nest(nest.name, (*nest.x_axes, chunk), without_dead(rest.ops), nest.origins)
    return merge_axes(first), merge_axes(second), name


def integer(body: Body, value: Extent) -> int:
    return body.emit("constant" if isinstance(value, int) else "index", (), torch.int64, value)


def length_of(body: Body, chunk: Var, own: Extent, last: tuple[Index, Extent] | None, dtype: torch.dtype) -> int:
    """The elements of chunk number `chunk`: all that it holds, less in the last one."""
    if last is None:
        return body.emit("constant", (), dtype, own) if isinstance(own, int) else body.emit("cast", (integer(body, own),), dtype)
    left = integer(body, last[1] - atom(chunk) * own)
    return body.emit("cast", (body.emit("min", (left, integer(body, own)), torch.int64),), dtype)
