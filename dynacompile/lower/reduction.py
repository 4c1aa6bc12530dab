"""Reductions: the result's points are x axes, the reduced dimensions r axes, both in the order of the input's dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx

from dynacompile.ir.index import Extent, Index, strided
from dynacompile.ir.loops import Axis, Buffer
from dynacompile.lower.context import Lowering, arguments
from dynacompile.lower.numbers import number
from dynacompile.lower.pointwise import require_element
from dynacompile.lower.values import Expander, Value, nearest
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import compute_dtype
from dynacompile.ops.table import Row
from dynacompile.private import of_torch

IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}
"""Results over no elements. Of other reductions fakes raise there what eager raises, as they do for extrema and their places."""
ROUNDING = 16.0
"""Roundings of a sum of squares that its correction may leave of it, where the numbers are equal: no more than differences in the last bit of one of 10^5."""
OVER_NONE = frozenset({torch.ops.aten.any.dims, torch.ops.aten.all.dims})
"""Operations that reduce nothing where the list of dimensions is empty; others reduce all."""


def dims_of(node: torch.fx.Node, rank: int) -> tuple[list[int], bool]:
    """The dimensions that a node reduces (ascending), and whether they stay with size 1."""
    given = arguments(node)
    dims = given.get("dim", given.get("dims"))
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        dims = () if node.target in OVER_NONE and dims is not None else range(rank)
    return sorted({d % rank for d in dims} if rank else set()), bool(given.get("keepdim", False))


class Loops:
    """Axes of a reduction of a shape over some dimensions."""

    def __init__(self, low: Lowering, size: Sequence[Extent], dims: Sequence[int], keepdim: bool):
        kept = tuple(1 if d in dims else n for d, n in enumerate(size))
        gone = tuple(n if d in dims else 1 for d, n in enumerate(size))
        x_axes, x_indices = low.axes(kept)
        r_axes, r_indices = low.axes(gone, "r")
        self.low = low
        self.kept, self.keepdim, self.dims = kept, keepdim, dims
        self.axes: tuple[Axis, ...] = x_axes + r_axes
        self.reduces = bool(r_axes)
        self.count: Extent = 1
        for n in gone:
            self.count = self.count * n
        self.input: list[Index] = [r_indices[d] if d in dims else x_indices[d] for d in range(len(size))]
        self.x_indices = list(x_indices)

    @property
    def output(self) -> list[Index]:
        """Indices of the result's dimensions."""
        return self.x_indices if self.keepdim else [i for d, i in enumerate(self.x_indices) if d not in self.dims]

    def reduced(self, o: Expander, kind: str, value: Value) -> Value:
        if not self.reduces:
            return o.constant(0, torch.int64) if kind in ("argmax", "argmin") else from_zero(value) if kind == "sum" else value
        dtype = torch.int64 if kind in ("argmax", "argmin") else value.dtype
        return Value(o, o.body.emit("reduce", (value.id,), dtype, kind), dtype)

    def load(self, o: Expander, buffer: Buffer) -> Value:
        return self.low.load(o, buffer, strided(self.input, buffer.stride, buffer.offset))

    def load_kept(self, o: Expander, buffer: Buffer) -> Value:
        """From a buffer of the result's shape with reduced dimensions of size 1."""
        return self.low.load(o, buffer, strided(self.x_indices, buffer.stride, buffer.offset))


def from_zero(value: Value) -> Value:
    """The sum of one element: it begins at 0, so that of -0 is 0."""
    return value + 0.0 if value.dtype.is_floating_point or value.dtype.is_complex else value


def emit_reduction(
    low: Lowering,
    node: torch.fx.Node,
    read: Buffer,
    into: Buffer,
    loops: Loops,
    kind: str,
    before: Callable[[Expander, Value], Value],
    after: Callable[[Expander, Value], Value] | None = None,
) -> None:
    """One nest: into = after(reduce(before(read)))."""
    if into.numel == 0:
        return
    o = low.expander(into.dtype)
    if loops.count == 0:
        value = o.constant(IDENTITY[kind])
        axes = tuple(a for a in loops.axes if a.role == "x")
    else:
        value = loops.reduced(o, kind, before(o, loops.load(o, read)))
        axes = loops.axes
    low.finish(o, after(o, value) if after else value, into, axes, loops.output, node)


def lower_reduction(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    read, val = low.buffer_of(node.args[0]), node.meta["val"]
    require_element(low, read.name, val.device)
    if row.detail in ("argmax", "argmin"):
        dims, keepdim = argument_dims(node, len(read.size))
    else:
        dims, keepdim = dims_of(node, len(read.size))
    loops = Loops(low, read.size, dims, keepdim)
    if row.detail == "mean" and loops.count == 0:
        raise NotCovered
    into = low.add(node.name, val)
    low.values[node] = node.name
    count = loops.count
    if row.detail == "mean":
        emit_reduction(low, node, read, into, loops, "sum", to_compute(val.dtype), lambda o, v: v / count)
    elif row.detail in ("sum", "prod"):
        emit_reduction(low, node, read, into, loops, row.detail, to_compute(val.dtype))
    elif row.detail in ("any", "all"):
        emit_reduction(low, node, read, into, loops, row.detail, lambda o, v: o.test(nearest(o, v, read)))
    else:
        emit_reduction(low, node, read, into, loops, extremum(row.detail, read.dtype), lambda o, v: nearest(o, v, read))


def to_compute(dtype: torch.dtype) -> Callable[[Expander, Value], Value]:
    return lambda o, v: o.cast(v, compute_dtype(dtype))


def extremum(kind: str, dtype: torch.dtype) -> str:
    return {"max": "any", "min": "all"}.get(kind, kind) if dtype == torch.bool else kind


def argument_dims(node: torch.fx.Node, rank: int) -> tuple[list[int], bool]:
    given = arguments(node)
    dim = given["dim"]
    return (list(range(rank)) if dim is None else [dim % rank] if rank else []), given["keepdim"]


def lower_extremum(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """max and min over one dimension: values and the position of the first one."""
    read, (values, positions) = low.buffer_of(node.args[0]), node.meta["val"]
    require_element(low, read.name, values.device)
    dims, keepdim = argument_dims(node, len(read.size))
    loops = Loops(low, read.size, dims, keepdim)
    names = low.parts(node, 2)
    emit_reduction(low, node, read, low.add(names[0], values), loops, extremum(row.detail, read.dtype), lambda o, v: v)
    emit_reduction(low, node, read, low.add(names[1], positions), loops, "arg" + row.detail, lambda o, v: nearest(o, v, read))
    low.values[node] = names


def lower_variance(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """Two passes: the mean c, then the sum of squares of x - c, corrected by the sum of x - c, which is 0 but for what c was rounded by.

    sum (x - mean)^2 = sum (x - c)^2 - (sum (x - c))^2 / n, the corrected two-pass algorithm (Chan, Golub and LeVeque 1983): without the
    second term the result is off by the square of c's own error, a large part of it where the mean is 10^5 deviations and more. Numbers of half
    precision have no such means: where their sums are exact, c is as good as the mean.
    """
    read = low.buffer_of(node.args[0])
    vals = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
    require_element(low, read.name, vals[0].device)
    dims, keepdim = dims_of(node, len(read.size))
    loops = Loops(low, read.size, dims, keepdim)
    if loops.count == 0:
        raise NotCovered
    correction = arguments(node)["correction"]
    spare = 1 if correction is None else correction
    exact = compute_dtype(read.dtype)
    deviation = row.detail.startswith("std")
    whole = Loops(low, read.size, dims, True)
    center = low.add_temp(low.fresh(f"{node.name}_center"), exact, read.device, loops.kept)
    drift = None
    if not sums_are_exact(dtype_before_casts(node.args[0]), loops.count):
        drift = low.add_temp(low.fresh(f"{node.name}_drift"), exact, read.device, loops.kept)

    def difference(o: Expander, v: Value) -> Value:
        return v - whole.load_kept(o, center)

    def squared(o: Expander, v: Value) -> Value:
        d = difference(o, v)
        return d * d

    def corrected(o: Expander, v: Value) -> Value:
        """Of infinite squares the correction may be infinite, too, and must not make a NaN. Of equal numbers nothing but rounding is left, and their
        deviation is 0, by which a gradient of it tells them."""
        if drift is None:
            return v
        off = whole.load_kept(o, drift)
        rest = v - o.min(off * per_element(o, off), torch.finfo(v.dtype).max)
        return o.select(rest < v * (ROUNDING * torch.finfo(v.dtype).eps), 0, rest)

    def per_element(o: Expander, v: Value) -> Value:
        return v * (1 / loops.count) if isinstance(loops.count, int) else v / loops.count

    def divided(o: Expander, v: Value) -> Value:
        if isinstance(loops.count, int) and isinstance(spare, (int, float)):
            return v / max(0.0, float(loops.count - spare))
        less = o.cast(number(o, spare) if isinstance(spare, torch.SymFloat) else spare, v.dtype)
        return v / o.max(o.constant(loops.count, v.dtype) - less, 0)

    def result(o: Expander, v: Value) -> Value:
        variance = divided(o, corrected(o, v))
        return o.sqrt(variance) if deviation else variance

    emit_reduction(low, node, read, center, whole, "sum", lambda o, v: v, lambda o, v: v / loops.count)
    if drift is not None:
        emit_reduction(low, node, read, drift, whole, "sum", difference)
    names = low.parts(node, len(vals))
    spread = low.add(names[0], vals[0])
    emit_reduction(low, node, read, spread, loops, "sum", squared, result)
    if len(vals) > 1:
        into = low.add(names[1], vals[1])
        if into.numel:
            o = low.expander(into.dtype)
            mean = whole.load_kept(o, center)
            if drift is not None:
                off = per_element(o, whole.load_kept(o, drift))
                deviations = o.cast(low.load(o, spread, strided(loops.output, spread.stride, spread.offset)), exact)
                size = o.abs(mean) if deviation else mean * mean
                mean = o.select(size > deviations, mean + off, mean)  # of numbers about 0, and infinite ones, the drift is rounding alone, or NaN
            low.finish(o, mean, into, [a for a in loops.axes if a.role == "x"], loops.output, node)
    low.values[node] = names if len(vals) > 1 else names[0]


def dtype_before_casts(arg: object) -> torch.dtype:
    """The narrowest dtype that a value had on its way here through casts alone."""
    assert isinstance(arg, torch.fx.Node)
    found = arg.meta["val"].dtype
    while arg.target is of_torch.aten_to_copy and isinstance(arg.args[0], torch.fx.Node):
        arg = arg.args[0]
        dtype = arg.meta["val"].dtype
        found = dtype if dtype.is_floating_point and dtype.itemsize < found.itemsize else found
    return found


def sums_are_exact(dtype: torch.dtype, count: Extent) -> bool:
    """Whether float32 holds every sum of so many numbers of the dtype and of one magnitude: a mean of theirs has one rounding, and a constant's none."""
    return dtype in (torch.float16, torch.bfloat16) and isinstance(count, int) and count * 2 <= torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
