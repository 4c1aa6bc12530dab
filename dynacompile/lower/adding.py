"""Sums of elements whose places are themselves tensor elements: index_add, scatter_add, index_put that accumulates, gradients of embeddings.

The result starts as a copy of what is added to. Then one nest adds: dimensions that name elements of their own are x axes, those along which places may be
the same are r axes, in eager's order. So threads of a CPU share out the result's elements, and sums are the same for any number of threads. A GPU adds
by atomic operations, in any order, as eager's `index_add` and `scatter_add` do there; where deterministic algorithms are asked for, ATen's kernels run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.ir.index import Extent, Index, Var, atom, hint, strided
from dynacompile.ir.loops import Access, Axis, Buffer, Nest
from dynacompile.lower.context import Lowering, arguments, geometry, origin
from dynacompile.lower.indexing import FEWEST, INTEGERS, check_places, indirect, place, positive
from dynacompile.lower.pointwise import require_element
from dynacompile.lower.reduction import Loops
from dynacompile.lower.values import Expander, Value
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import compute_dtype
from dynacompile.ops.table import Row
from dynacompile.private import of_torch

aten = torch.ops.aten
SUMMED = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
"""ATen's kernels round sums of halves in ways of their own, so those stay calls."""
ATOMIC = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})  # of which GPUs have atomic sums
CHUNKS = 8  # parts of a long list of places, each with sums of its own, where nothing else can run in parallel
SHORTEST = 4096  # places in such a part
COPIES = 4  # places for each element of the parts' sums, so that those cost little


class Adding:
    """What is added to one result: the buffers, and the nest that is written. size: of the points. along: dimensions along which places may be equal."""

    def __init__(self, low: Lowering, node: torch.fx.Node, size: Sequence[Extent], along: Sequence[int], source: object):
        self.low, self.node, self.size, self.along = low, node, tuple(size), frozenset(along)
        val = node.meta["val"]
        points = 1
        for n in size:
            points *= hint(n)
        self.atomic = val.device.type != "cpu"
        if val.dtype not in (ATOMIC if self.atomic else SUMMED) or (self.atomic and torch.are_deterministic_algorithms_enabled()):
            raise NotCovered
        if points < FEWEST or val.dim() == 0 or not all(map(positive, (*size, *geometry(val)[0]))):
            raise NotCovered
        self.source = low.buffer_of(source)
        if self.source.dtype != val.dtype:
            raise NotCovered
        self.require(self.source)
        self.out: Buffer = low.add(node.name, val)
        self.parts: Buffer | None = None
        self.part = Index()
        self.start: Buffer | None = None
        self.axes, self.points = self.in_parts(points) or self.loops()
        self.o: Expander = low.expander(val.dtype)
        low.values[node] = node.name

    def loops(self) -> tuple[tuple[Axis, ...], list[Index]]:
        """The axes, and the index of each dimension of the points."""
        x, x_indices = self.low.axes(tuple(1 if d in self.along else n for d, n in enumerate(self.size)))
        r, r_indices = self.low.axes(tuple(n if d in self.along else 1 for d, n in enumerate(self.size)), "r")
        return (*x, *r), [r_indices[d] if d in self.along else x_indices[d] for d in range(len(self.size))]

    def in_parts(self, points: int) -> tuple[tuple[Axis, ...], list[Index]] | None:
        """The same where no dimension names elements of its own, and many points add to few elements: parts of the points have sums of their own, however
        many threads there are."""
        (first, *others) = sorted(self.along)
        long = self.size[first]
        if self.atomic or others or any(n != 1 for d, n in enumerate(self.size) if d != first) or self.out.is_symbolic or not isinstance(long, int):
            return None
        if points < CHUNKS * SHORTEST or points % CHUNKS or hint(self.out.numel) * CHUNKS * COPIES > points:
            return None
        self.parts = self.low.add_temp(self.low.fresh(f"{self.node.name}_parts"), self.out.dtype, self.out.device, (CHUNKS, *self.out.size))
        part, step = Axis(Var("x0", CHUNKS), "x"), Axis(Var("r0", long // CHUNKS), "r")
        self.part = atom(part.var) * self.parts.stride[0]
        indices = [Index()] * len(self.size)
        indices[first] = atom(part.var) * (long // CHUNKS) + atom(step.var)
        return (part, step), indices

    def require(self, buffer: Buffer) -> None:
        require_element(self.low, buffer.name, self.node.meta["val"].device)

    def starts_as(self, node: object | None) -> None:
        """The result before anything is added: the tensor `node`, or zeros. Sums of parts start with zeros."""
        self.start = None if node is None else self.low.buffer_of(node)
        if self.start is not None:
            self.require(self.start)
        into = self.parts or self.out
        o = self.low.expander(into.dtype)
        value = o.constant(0) if self.parts is not None or self.start is None else self.low.load(o, self.start, self.low.broadcast(self.start, into.size))
        self.low.finish_pointwise(o, value, into, self.node)

    def positions(self, buffer: Buffer, indices: Sequence[Index]) -> Value:
        """The int64 place that a tensor of places gives a point."""
        self.require(buffer)
        if buffer.dtype not in INTEGERS:
            raise NotCovered
        return self.o.cast(self.low.load(self.o, buffer, place(buffer.stride, buffer.offset, list(indices))), torch.int64)

    def value(self, indices: Sequence[Index] | None = None) -> Value:
        """The element that a point adds."""
        given = self.points if indices is None else list(indices)
        return self.o.cast(self.low.load(self.o, self.source, strided(given, self.source.stride, self.source.offset)), compute_dtype(self.out.dtype))

    def inside(self, at: Value, size: Extent) -> Value | None:
        """Where a place lies in a dimension; None on GPUs, whose kernels assert that it does."""
        return None if self.atomic else self.o.apply("le", 0, at) & self.o.apply("lt", at, size)

    def add(self, value: Value, indices: Sequence[Index], *when: Value | None) -> None:
        """Adds at an element of the result, where all that is given of `when` holds."""
        into = self.parts or self.out
        index = strided(list(indices), into.stride[len(into.size) - len(self.out.size) :], into.offset) + self.part
        mask = self.o.both(when)
        self.o.body.put(value.id, Access(into.name, index, None if mask is None else mask.id, added=True))
        self.low.steps.append(Nest(into.name, self.axes, tuple(self.o.body.ops), (origin(self.node),)))
        if self.parts is not None:
            self.combine(self.parts)

    def combine(self, parts: Buffer) -> None:
        """The parts' sums, and what the result starts as, become the result."""
        loops = Loops(self.low, parts.size, [0], False)
        o = self.low.expander(self.out.dtype)
        value = loops.reduced(o, "sum", loops.load(o, parts))
        if self.start is not None:
            value = self.low.load(o, self.start, strided(loops.output, self.start.stride, self.start.offset)) + value
        self.low.finish(o, value, self.out, loops.axes, loops.output, self.node)

    def check(self, places: object, size: Extent, dim: int, op: of_torch.OpOverload) -> None:
        """Raises what eager raises where a place lies outside, before anything is added. The nest itself adds nothing there. Nothing on GPUs."""
        if not self.atomic:
            check_places(self.low, self.node, places, size, dim, op)


def lower_index_add(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    size = low.buffer_of(given["source"]).size
    if not size:
        raise NotCovered
    dim = given["dim"] % len(size)
    adding = Adding(low, node, size, [dim], given["source"])
    index = low.buffer_of(given["index"])
    adding.starts_as(given["self"])
    scatters = len(size) > 1 and dim in (0, len(size) - 1) and given["alpha"] == 1  # what eager does then has an error of its own
    adding.check(given["index"], adding.out.size[dim], *((dim, aten.gather.default) if scatters else (0, aten.index_select.default)))
    at = adding.positions(index, [adding.points[dim]] if index.size else [])
    value = adding.value()
    if given["alpha"] != 1:
        value = value * given["alpha"]
    adding.add(value, with_place(adding.points, dim, indirect(at, adding.out.size[dim])), adding.inside(at, adding.out.size[dim]))


def lower_scatter_add(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    if row.detail == "reduce" and (given["reduce"] != "sum" or not given["include_self"]):
        raise NotCovered
    index = low.buffer_of(given["index"])
    if not index.size:
        raise NotCovered
    dim = given["dim"] % len(index.size)
    adding = Adding(low, node, index.size, [dim], given["src"])
    adding.starts_as(given["self"])
    adding.check(given["index"], adding.out.size[dim], dim, aten.gather.default)
    at = adding.positions(index, adding.points)
    value = adding.value()
    adding.add(value, with_place(adding.points, dim, indirect(at, adding.out.size[dim])), adding.inside(at, adding.out.size[dim]))


def lower_index_put(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """x[i, :, j] += values: the index tensors broadcast together; their dimensions stand where the first is, if they are adjacent, else in front."""
    given = arguments(node)
    places = given["indices"]
    into = low.buffer_of(given["self"])
    if not given["accumulate"] or any(g is not None and low.buffer_of(g).dtype not in INTEGERS for g in places):
        raise NotCovered
    where = [d for d, g in enumerate(places) if g is not None]
    if not where or not into.size:
        raise NotCovered
    shared = broadcast([low.buffer_of(places[d]).size for d in where])
    front = where[0] if where == list(range(where[0], where[-1] + 1)) else 0
    others = [n for d, n in enumerate(into.size) if d not in where]
    size = (*others[:front], *shared, *others[front:])
    along = range(front, front + len(shared))
    adding = Adding(low, node, size, along, given["values"])
    adding.starts_as(given["self"])
    for position, d in enumerate(where):
        adding.check(places[d], into.size[d], position, aten.index.Tensor)
    rest = iter(adding.points[:front] + adding.points[front + len(shared) :])
    indices: list[Index] = []
    when: list[Value | None] = []
    for d, n in enumerate(into.size):
        if d not in where:
            indices.append(next(rest))
            continue
        buffer = low.buffer_of(places[d])
        own = adding.points[front + len(shared) - len(buffer.size) : front + len(shared)]
        at = adding.positions(buffer, [Index() if m == 1 else i for m, i in zip(buffer.size, own, strict=True)])
        at = adding.o.select(at < 0, at + n, at)
        when.append(adding.inside(at, n))
        indices.append(indirect(at, n))
    source = adding.source
    points = adding.points[len(size) - len(source.size) :]
    adding.add(adding.value([Index() if m == 1 else i for m, i in zip(source.size, points, strict=True)]), indices, *when)


def lower_embedding_backward(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    grad, places = low.buffer_of(given["grad_output"]), low.buffer_of(given["indices"])
    if given["scale_grad_by_freq"]:
        raise NotCovered
    adding = Adding(low, node, grad.size, range(len(grad.size) - 1), given["grad_output"])
    adding.starts_as(None)
    rows = adding.out.size[0]
    at = adding.positions(places, adding.points[:-1])
    counts = adding.o.apply("ne", at, given["padding_idx"]) if given["padding_idx"] != -1 else None
    adding.add(adding.value(), [indirect(at, rows), adding.points[-1]], adding.inside(at, rows), counts)


def with_place(indices: Sequence[Index], dim: int, at: Index) -> list[Index]:
    return [*indices[:dim], at, *indices[dim + 1 :]]


def broadcast(sizes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
    """The size of index tensors together."""
    rank = max(map(len, sizes))
    together: list[Extent] = [1] * rank
    for size in sizes:
        for d, n in enumerate(size, rank - len(size)):
            together[d] = n if together[d] == 1 else together[d]
    return tuple(together)
