"""Reads at positions that are themselves tensor elements."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.fx

from dynacompile.ir.index import Extent, Index, Var, atom, hint
from dynacompile.ir.loops import Buffer, Extern, Nest, Ref
from dynacompile.lower.context import Lowering, arguments, origin
from dynacompile.lower.movement import Move
from dynacompile.lower.values import Value
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.table import Row
from dynacompile.private import of_torch

aten = torch.ops.aten
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
FEWEST = 1024  # points below which ATen's op costs less than the kernels that take its place on CPUs, a check of the places among them


def indirect(value: Value, size: Extent) -> Index:
    """The value of the body as an index into a dimension of `size` elements."""
    return atom(Var(f"%{value.id}", size))


class Reads(Move):
    """A nest that reads at places. On CPUs eager raises for a place outside: there a step before checks the places, and the nest needs what it gives, so that
    nothing is read before. On GPUs it is a device assertion, and we rely on it."""

    def __init__(self, low: Lowering, node: torch.fx.Node):
        super().__init__(low, node)
        self.raises = raises(self.out.device)
        self.count = 1
        for n in self.out.size:
            self.count *= hint(n)
        if self.raises and (self.count < FEWEST or not all(map(positive, self.out.size))):
            raise NotCovered

    def place(self, arg: object, indices: list[Index], size: Extent, dim: int, op: of_torch.OpOverload, wraps: bool = False) -> Index:
        """The element of an index tensor as a place in a dimension of `size` elements, of which negative ones count from the end where it wraps. op: see
        `check_places`."""
        low, o, buffer = self.low, self.o, self.source(arg)
        if buffer.dtype not in INTEGERS or (self.raises and not positive(size)):
            raise NotCovered
        at = o.cast(low.load(o, buffer, place(buffer.stride, buffer.offset, indices)), torch.int64)
        at = o.select(at < 0, at + size, at) if wraps else at
        if self.raises:
            at = at + low.load(o, low.buffers[check_places(low, self.node, arg, size, dim, op)], Index())
        return indirect(at, size)


def raises(device: torch.device) -> bool:
    """Whether eager raises there for a position beyond the end."""
    return device.type == "cpu"


def positive(n: Extent) -> bool:
    if type(n) is not Index:
        return hint(n) > 0
    lowest, _ = n.bounds()
    return lowest is not None and lowest > 0


def check_places(low: Lowering, node: torch.fx.Node, places: object, size: Extent, dim: int, op: of_torch.OpOverload) -> str:
    """Raises what eager raises where a place of the tensor `places` lies outside of a dimension of `size` elements: the least and the greatest place are looked
    up by `op`, in zeros. Gives the buffer of what is found: who adds that to a place runs after the check. dim: which dimension the error names; of
    `aten.index`, the how many-th index tensor it is. Places that were checked before are not checked again."""
    key = (places, size, dim, op)
    step, found = low.checked.get(key, (-1, None))
    if found is not None and low.steps[step : step + 1] == [found]:
        return found.name
    bounds = bounds_of(low, node, low.buffer_of(places))
    before = (1,) * dim
    shape = (2,) if op is aten.index.Tensor else (*before, 2)
    name = low.fresh(f"{node.name}_checked")
    low.buffers[name] = replace(bounds, name=name, size=shape, stride=(*(2 for _ in shape[1:]), 1), kind="extern")
    zeros = low.add_view(low.fresh(f"{node.name}_zeros"), bounds, (*before, size), (0,) * (dim + 1), 2)
    where = shape if op is aten.gather.default else (2,)
    both = low.add_view(low.fresh(f"{node.name}_places"), bounds, where, (*(2 for _ in where[1:]), 1), 0)
    args: tuple = (Ref(zeros.name), dim, Ref(both.name))
    if op is aten.index.Tensor:
        first = low.add_view(low.fresh(f"{node.name}_first"), bounds, (2,), (0,), 2)
        args = (Ref(zeros.name), (*(Ref(first.name) for _ in before), Ref(both.name)))
    check = Extern(name, op, args, {}, (name,), origins=(origin(node),))
    low.checked[key] = (len(low.steps), check)
    low.steps.append(check)
    return name


def bounds_of(low: Lowering, node: torch.fx.Node, buffer: Buffer) -> Buffer:
    """The least and the greatest element, and a zero."""
    bounds = low.add_temp(low.fresh(f"{node.name}_bounds"), torch.int64, buffer.device, (3,))
    kept = [(n, s) for n, s in zip(buffer.size, buffer.stride, strict=True) if s != 0 and n != 1]
    axes, indices = low.axes(tuple(n for n, _ in kept), "r")
    o = low.expander(torch.int64)
    at = o.cast(low.load(o, buffer, place(tuple(s for _, s in kept), buffer.offset, list(indices))), torch.int64)
    found = [o.body.emit("reduce", (at.id,), torch.int64, kind) if axes else at.id for kind in ("min", "max")]
    for position, one in enumerate((*found, o.constant(0).id)):
        o.body.store(one, bounds.name, Index() + position)
    low.steps.append(Nest(bounds.name, axes, tuple(o.body.ops), (origin(node),)))
    return bounds


def place(stride: tuple[Extent, ...], offset: Extent, indices: list[Index]) -> Index:
    total = Index() + offset
    for i, s in zip(indices, stride, strict=True):
        total = total + i * s
    return total


def lower_index_select(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    reads = Reads(low, node)
    table = reads.source(given["self"])
    if not table.size:
        raise NotCovered
    dim = given["dim"] % len(table.size)
    where = [reads.indices[dim]] if low.buffer_of(given["index"]).size else []
    alone = dim == 1  # has an error of its own, and eager's op copies memory of the dimension's size before it looks
    if reads.raises and alone and hint(table.size[dim]) > reads.count:
        raise NotCovered
    at = reads.place(given["index"], where, table.size[dim], 1 if alone else 0, aten.index_select.default)
    reads.done(reads.load(table, [*reads.indices[:dim], at, *reads.indices[dim + 1 :]]))


def lower_gather(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    reads = Reads(low, node)
    table = reads.source(given["self"])
    if not table.size:
        raise NotCovered
    dim = given["dim"] % len(table.size)
    at = reads.place(given["index"], reads.indices, table.size[dim], dim, aten.gather.default)
    reads.done(reads.load(table, [at if d == dim else i for d, i in enumerate(reads.indices)]))


def lower_embedding(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    weight, positions = node.args[:2]
    reads = Reads(low, node)
    table = reads.source(weight)
    at = reads.place(positions, reads.indices[:-1], table.size[0], 0, aten.index_select.default)
    reads.done(reads.load(table, [at, reads.indices[-1]]))


def lower_index(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """x[i, :, j]: the index tensors broadcast together; their dimensions stand where the first is, if they are adjacent, else in front."""
    given = arguments(node)["indices"]
    if any(g is not None and low.buffer_of(g).dtype not in INTEGERS for g in given):
        raise NotCovered
    reads = Reads(low, node)
    table = reads.source(node.args[0])
    where = [d for d, g in enumerate(given) if g is not None]
    if not where or not table.size:
        raise NotCovered
    rank = max(len(low.buffer_of(given[d]).size) for d in where)
    adjacent = where == list(range(where[0], where[-1] + 1))
    front = where[0] if adjacent else 0
    shared = reads.indices[front : front + rank]
    rest = iter(reads.indices[:front] + reads.indices[front + rank :])
    indices: list[Index] = []
    for d, n in enumerate(table.size):
        g = given[d] if d < len(given) else None
        if g is None:
            indices.append(next(rest))
            continue
        size = low.buffer_of(g).size
        own = [Index() if m == 1 else i for m, i in zip(size, shared[rank - len(size) :], strict=True)]
        indices.append(reads.place(g, own, n, where.index(d), aten.index.Tensor, wraps=True))
    reads.done(reads.load(table, indices))
