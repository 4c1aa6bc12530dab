"""Pooling: each result is the maximum or mean over a window of the last two dimensions; each gradient a sum over the windows around an element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.fx

from dynacompile.ir.index import Extent, Index, strided
from dynacompile.ir.loops import Buffer
from dynacompile.ir.symbols import extent
from dynacompile.lower.context import Lowering, arguments
from dynacompile.lower.extern import used_items
from dynacompile.lower.pointwise import require_element
from dynacompile.lower.reduction import Loops, from_zero
from dynacompile.lower.values import Expander, Value
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.table import Row

MOST = 25  # elements of a window that is written out
FEW = 9  # windows around an element


class Window:
    """The windows that a result's points are of, over the rows and columns of `read`. out: the result, and of a backward its gradient."""

    def __init__(self, low: Lowering, node: torch.fx.Node, read: Buffer, out: torch.Tensor):
        given = arguments(node)
        self.low, self.read = low, read
        require_element(low, read.name, out.device)
        self.kernel = pair(given["kernel_size"])
        self.stride = pair(given["stride"]) if given["stride"] else self.kernel
        self.padding = pair(given["padding"])
        self.dilation = pair(given.get("dilation", 1))
        self.rows, self.columns = self.read.size[-2:]
        self.results = tuple(extent(n) for n in out.shape[-2:])
        self.ceil_mode = bool(given.get("ceil_mode"))
        numbers = (*self.kernel, *self.stride, *self.padding, *self.dilation)
        if not all(type(n) is int for n in numbers) or not out.dtype.is_floating_point or math.prod(self.kernel) > MOST:
            raise NotCovered

    def is_symbolic(self, dim: int) -> bool:
        return not isinstance((self.rows, self.columns)[dim], int) or not isinstance(self.results[dim], int)

    @property
    def overlaps_apart(self) -> bool:
        """Whether windows overlap, and begin several elements apart."""
        return any(1 < s < k for s, k in zip(self.stride, self.kernel, strict=True))

    @property
    def is_by_channels(self) -> bool:
        """Whether the channels of an element lie side by side."""
        return len(self.read.size) > 2 and self.read.stride[-3] == 1 and self.read.stride[-1] != 1

    def end(self, dim: int) -> int:
        """The last element of a window, from its first."""
        return (self.kernel[dim] - 1) * self.dilation[dim]

    @property
    def reaches_beyond(self) -> bool:
        """Whether a window ends past the padding, or may, where sizes are symbols."""
        if any(map(self.is_symbolic, (0, 1))):
            return self.ceil_mode
        ends = [(n - 1) * s - p + k for n, s, p, k in zip(self.results, self.stride, self.padding, self.kernel, strict=True)]
        return any(e > n + p for e, n, p in zip(ends, (self.rows, self.columns), self.padding, strict=True))

    def place(self, dim: int, at: Index, k: int) -> Index:
        return at * self.stride[dim] + (k * self.dilation[dim] - self.padding[dim])

    def inside(self, o: Expander, dim: int, at: Index, k: int, count: Extent) -> Value | None:
        """Whether element k of the window lies in memory; count: results along the dimension."""
        place, first = self.place(dim, at, k), k * self.dilation[dim] - self.padding[dim]
        size = (self.rows, self.columns)[dim]
        if not self.is_symbolic(dim):
            beyond = (count - 1) * self.stride[dim] + first >= size
        else:  # the last window ends within the padding, unless sizes are rounded up
            beyond = self.ceil_mode or self.padding[dim] > self.end(dim) - k * self.dilation[dim]
        tests = []
        if first < 0:
            tests.append(o.apply("le", 0, o.index(place)))
        if beyond:
            tests.append(o.apply("lt", o.index(place), size))
        return o.both(tests)

    def elements(self, o: Expander, out: Buffer, other: float) -> list[tuple[Value, Value | None, Index]]:
        """(value, whether it is inside, its place in the plane) of each element, row by row; `other` outside."""
        indices = list(self.low.axes(out.size)[1])
        *lead, i, j = indices
        found = []
        for ki in range(self.kernel[0]):
            for kj in range(self.kernel[1]):
                mask = o.both((self.inside(o, 0, i, ki, out.size[-2]), self.inside(o, 1, j, kj, out.size[-1])))
                row, column = self.place(0, i, ki), self.place(1, j, kj)
                value = self.low.load(o, self.read, strided([*lead, row, column], self.read.stride, self.read.offset), mask, other)
                found.append((value, mask, row * self.columns + column))
        return found


def pair(given: object) -> tuple[int, int]:
    """A size of a window, as ATen takes it: one number, or one for each dimension."""
    if isinstance(given, (list, tuple)):
        return (given[0], given[0]) if len(given) == 1 else (given[0], given[1])
    return given, given  # type: ignore[return-value]


def lower_max_pool(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """max_pool2d_with_indices: the first of the greatest elements, or the last NaN, and its place in the plane."""
    values, places = node.meta["val"]
    window = Window(low, node, low.buffer_of(node.args[0]), values)
    used = used_items(node, 2)
    names = low.parts(node, 2)
    low.values[node] = names
    out = low.add(names[0], values)
    o = low.expander(values.dtype)
    best = None
    for value, _, _ in window.elements(o, out, -math.inf):
        best = value if best is None else o.max(best, value)
    assert best is not None
    low.finish_pointwise(o, best, out, node)
    at = low.add(names[1], places)
    if 1 in used:
        o = low.expander(values.dtype)
        low.finish_pointwise(o, first_of_the_greatest(o, window, out), at, node)


def first_of_the_greatest(o: Expander, window: Window, out: Buffer) -> Value:
    best = place = None
    for value, mask, at in window.elements(o, out, -math.inf):
        here = o.cast(o.index(at), torch.int64)
        if best is None or place is None:
            best, place = value, here
            known = mask  # whether a place of memory was seen
            continue
        better = o.apply("or", o.apply("lt", best, value), o.apply("isnan", value))
        if known is not None:
            better = o.apply("or", better, o.apply("not", known))
            known = None if mask is None else o.apply("or", known, mask)
        if mask is not None:
            better = o.apply("and", better, mask)
        best, place = o.max(best, value), o.select(better, here, place)
    assert place is not None
    return place


def lower_avg_pool(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """avg_pool2d. What divides is the number given, or that of the window's elements, without or with those of the padding."""
    given, val = arguments(node), node.meta["val"]
    window = Window(low, node, low.buffer_of(node.args[0]), val)
    out = low.add(node.name, val)
    low.values[node] = node.name
    o = low.expander(val.dtype)
    total = count = None
    for value, mask, _ in window.elements(o, out, 0.0):
        total = from_zero(value) if total is None else total + value
        one = o.constant(1.0) if mask is None else o.cast(mask, o.compute)
        count = one if count is None else count + one
    assert total is not None and count is not None
    if given["divisor_override"]:
        count = o.constant(float(given["divisor_override"]))
    elif given["count_include_pad"]:
        if window.reaches_beyond and any(window.padding):
            raise NotCovered  # windows that reach past the padding count a part of it
        if not window.reaches_beyond:
            count = o.constant(float(math.prod(window.kernel)))
    low.finish_pointwise(o, total / count, out, node)


class Around:
    """The windows around each element of a gradient: at most ceil(kernel / stride) along a dimension. grad: of the results."""

    def __init__(self, low: Lowering, node: torch.fx.Node):
        self.low, self.grad, self.val = low, low.buffer_of(node.args[0]), node.meta["val"]
        self.window = Window(low, node, low.buffer_of(node.args[1]), node.args[0].meta["val"])  # type: ignore[union-attr]
        require_element(low, self.grad.name, self.val.device)
        if self.window.dilation != (1, 1):
            raise NotCovered
        self.o = low.expander(self.val.dtype)
        self.out = low.add(node.name, self.val)
        self.indices = list(low.axes(self.out.size)[1])
        low.values[node] = node.name

    def along(self, dim: int) -> list[tuple[Index, list[Value]]]:
        """(number of a window, what must hold for it to be one), the first window first."""
        window, o, at = self.window, self.o, self.indices[dim - 2]
        kernel, stride, padding = window.kernel[dim], window.stride[dim], window.padding[dim]
        found = []
        for back in range(-(-kernel // stride) - 1, -1, -1):
            number = (at + padding) // stride - back
            tests = [o.apply("le", 0, o.index(number))] if back else []
            if not window.is_symbolic(dim):
                beyond = ((window.rows, window.columns)[dim] - 1 + padding) // stride - back >= window.results[dim]
            else:  # results end with the last window within the padding, or further on
                beyond = back * stride < window.end(dim) - padding
            if beyond:
                tests.append(o.apply("lt", o.index(number), window.results[dim]))
            if back * stride + stride > kernel:
                tests.append(o.apply("lt", o.index((at + padding) % stride), kernel - back * stride))
            found.append((number, tests))
        return found

    def total(self, entering: Callable[[list[Index], Value | None], Value]) -> Value:
        """The sum of what enters from each window: a function of its place among the results, and where it is one."""
        total = None
        for i, rows in self.along(0):
            for j, columns in self.along(1):
                value = entering([*self.indices[:-2], i, j], self.o.both((*rows, *columns)))
                total = value if total is None else total + value
        assert total is not None
        return total

    def load(self, buffer: Buffer, at: list[Index], mask: Value | None, other: float) -> Value:
        return self.low.load(self.o, buffer, strided(at, buffer.stride, buffer.offset), mask, other)


def lower_max_pool_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """The gradients of those windows around an element whose maximum it is. On CPUs, where windows overlap, ATen's walk over the windows is faster; so it is of
    channels last where an element is in more than FEW."""
    around = Around(low, node)
    window = around.window
    many = window.is_by_channels and math.prod(-(-k // s) for k, s in zip(window.kernel, window.stride, strict=True)) > FEW
    if around.val.device.type == "cpu" and (window.overlaps_apart or many):
        raise NotCovered
    places = low.buffer_of(arguments(node)["indices"])
    require_element(low, places.name, around.val.device)
    o, here = around.o, around.indices[-2] * window.columns + around.indices[-1]

    def entering(at: list[Index], mask: Value | None) -> Value:
        chosen = o.apply("eq", around.load(places, at, mask, -1), o.cast(o.index(here), torch.int64))
        return o.select(chosen, around.load(around.grad, at, mask, 0.0), 0.0)

    low.finish_pointwise(o, around.total(entering), around.out, node)


def lower_avg_pool_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """A share of each window's gradient, where all windows have as many elements. On CPUs ATen is faster in rows of a symbolic length where windows overlap."""
    given, around = arguments(node), Around(low, node)
    window = around.window
    if around.val.device.type == "cpu" and window.overlaps_apart and window.is_symbolic(1) and not window.is_by_channels:
        raise NotCovered
    if not given["divisor_override"] and (window.reaches_beyond or (any(window.padding) and not given["count_include_pad"])):
        raise NotCovered
    total = around.total(lambda at, mask: around.load(around.grad, at, mask, 0.0))
    low.finish_pointwise(around.o, total / float(given["divisor_override"] or math.prod(window.kernel)), around.out, node)


def lower_adaptive_avg_pool_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    grad, val = low.buffer_of(node.args[0]), node.meta["val"]
    require_element(low, grad.name, val.device)
    tall, wide = windows_alike(val.shape[-2:], grad.size[-2:], val.dtype)
    out = low.add(node.name, val)
    low.values[node] = node.name
    *lead, i, j = low.axes(out.size)[1]
    o = low.expander(val.dtype)
    value = low.load(o, grad, strided([*lead, i // tall, j // wide], grad.stride, grad.offset))
    low.finish_pointwise(o, value / float(tall * wide), out, node)


def lower_adaptive_max_pool(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """adaptive_max_pool2d where the windows are alike: of each the maximum and its place in the plane, the first of equal ones, or the last NaN's."""
    read, (values, places) = low.buffer_of(node.args[0]), node.meta["val"]
    require_element(low, read.name, values.device)
    tall, wide = windows_alike(read.size[-2:], values.shape[-2:], values.dtype)
    out_rows, out_columns = values.shape[-2:]
    rank = len(read.size)
    loops = Loops(low, (*read.size[:-2], out_rows, tall, out_columns, wide), (rank - 1, rank + 1), False)
    *lead, i, k, j, m = loops.input
    names = low.parts(node, 2)
    low.values[node] = names
    into, at = low.add(names[0], values), low.add(names[1], places)

    def load(o: Expander) -> Value:
        return low.load(o, read, strided([*lead, i * tall + k, j * wide + m], read.stride, read.offset))

    o = low.expander(values.dtype)
    low.finish(o, loops.reduced(o, "max", load(o)), into, loops.axes, loops.output, node)
    if 1 not in used_items(node, 2):
        return
    o = low.expander(values.dtype)
    value = load(o)
    last = loops.reduced(o, "max", o.select(o.apply("isnan", value), o.index(k * wide + m), -1))
    first = loops.reduced(o, "argmax", value)
    within = o.select(last >= 0, last, first)
    row_within = o.apply("floordiv", within, wide)
    corner = o.index(i * tall * read.size[-1] + j * wide)
    low.finish(o, corner + within + row_within * (read.size[-1] - wide), at, loops.axes, loops.output, node)


def lower_adaptive_max_pool_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """The gradient of the window around an element whose maximum it is."""
    grad, places, val = low.buffer_of(node.args[0]), low.buffer_of(arguments(node)["indices"]), node.meta["val"]
    for buffer in (grad, places):
        require_element(low, buffer.name, val.device)
    tall, wide = windows_alike(val.shape[-2:], grad.size[-2:], val.dtype)
    out = low.add(node.name, val)
    low.values[node] = node.name
    *lead, i, j = low.axes(out.size)[1]
    around = [*lead, i // tall, j // wide]
    o = low.expander(val.dtype)
    chosen = o.apply("eq", low.load(o, places, strided(around, places.stride, places.offset)), o.index(i * out.size[-1] + j))
    value = low.load(o, grad, strided(around, grad.stride, grad.offset))
    low.finish_pointwise(o, o.select(chosen, value, 0.0), out, node)


def windows_alike(sizes: Sequence[Extent], results: Sequence[Extent], dtype: torch.dtype) -> tuple[int, int]:
    """Rows and columns of the windows that cut a plane evenly into results. Raises NotCovered where they do not."""
    both = (*sizes, *results)
    if not dtype.is_floating_point or not all(type(n) is int for n in both) or 0 in both:
        raise NotCovered
    rows, columns, out_rows, out_columns = both
    if rows % out_rows or columns % out_columns:
        raise NotCovered
    return rows // out_rows, columns // out_columns  # type: ignore[operator,return-value]


def lower_adaptive_avg_pool(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """_adaptive_avg_pool2d where the windows are alike: a reduction over rows and columns within each."""
    read, val = low.buffer_of(node.args[0]), node.meta["val"]
    require_element(low, read.name, val.device)
    tall, wide = windows_alike(read.size[-2:], val.shape[-2:], val.dtype)
    out_rows, out_columns = val.shape[-2:]
    rank = len(read.size)
    loops = Loops(low, (*read.size[:-2], out_rows, tall, out_columns, wide), (rank - 1, rank + 1), False)
    *lead, i, k, j, m = loops.input
    into = low.add(node.name, val)
    low.values[node] = node.name
    o = low.expander(val.dtype)
    value = low.load(o, read, strided([*lead, i * tall + k, j * wide + m], read.stride, read.offset))
    total = loops.reduced(o, "sum", value)
    low.finish(o, total / (tall * wide), into, loops.axes, loops.output, node)
