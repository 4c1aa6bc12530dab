"""One scan of few long rows as three nests: what chunks of a row come to, the scan of that, and the scan of each chunk beside what is before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Extent, Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, Nest, Op, Scan
from dynacompile.ops.scalars import PLACES
from dynacompile.schedule.domain import linear, merge_axes, normalize
from dynacompile.schedule.simplify import number
from dynacompile.schedule.split import cut, identity

REDUCED = ("sum", "prod", "max", "min")
VALUE = {"argmax": "max", "argmin": "min"}


def splits(nest: Nest) -> bool:
    """Whether the nest is one scan that three nests can do."""
    scans = [op for op in nest.body if op.name == "scan"]
    return len(scans) == 1 and len(scans[0].args) == 1 and not nest.is_reduction and not nest.adds and len(nest.stores()) == 1


def split_scan(nest: Nest, count: int, buffers: dict[str, Buffer]) -> list[Nest]:
    """Cuts the r axes into about `count` chunks; adds the buffers between the nests."""
    return Splitting(nest, count, buffers).nests()


@dataclass(frozen=True)
class Chunked:
    """A body over a chunk, up to the value that is scanned. ids: by the old ids. guard: whether a point is one of the row's."""

    body: Body
    ids: list[int]
    value: int
    guard: int | None


class Splitting:
    def __init__(self, nest: Nest, count: int, buffers: dict[str, Buffer]):
        self.nest, self.buffers = nest, buffers
        self.at = next(i for i, op in enumerate(nest.body) if op.name == "scan")
        self.scan: Op = nest.body[self.at]
        attr: Scan = self.scan.attr
        self.kind, self.reverse = VALUE.get(attr.kind, attr.kind), attr.reverse
        self.dtype = nest.body[self.scan.args[0]].dtype
        self.outer, self.inner, self.values, self.mask = cut(nest.r_axes, count)
        self.chunks: Extent = math.prod(a.size for a in self.outer)
        self.points: Extent = math.prod(a.size for a in nest.x_axes)
        self.row = linear(nest.x_axes)

    def nests(self) -> list[Nest]:
        totals = self.buffer("total", self.dtype)
        carried = self.buffer("before", self.dtype)
        found = [self.of_chunks(totals), self.along_chunks(totals, carried)]
        places = None
        if self.scan.attr.kind in PLACES:
            own, places = self.buffer("total_place", torch.int64), self.buffer("before_place", torch.int64)
            found += [self.places_of_chunks(own), self.places_along_chunks(totals, own, places)]
        return [*found, self.within_chunks(carried, places)]

    def buffer(self, suffix: str, dtype: torch.dtype) -> str:
        """A new temp with an element for each chunk of each row; its name."""
        name = f"{self.nest.name}_{suffix}"
        while name in self.buffers:
            name += "_"
        device = self.buffers[self.nest.stores()[0].buffer].device
        self.buffers[name] = Buffer(name, dtype, device, (self.chunks, self.points), (self.points, 1), "temp")
        return name

    def chunked(self) -> Chunked:
        body = Body()
        guard = None
        if self.mask is not None:
            limit = number(body, self.mask[1], torch.int64)
            guard = body.emit("lt", (body.emit("index", (), torch.int64, self.mask[0]), limit), torch.bool)
        ids = body.splice(self.nest.body[: self.at], self.values, guard)
        value = ids[self.scan.args[0]]
        if guard is not None:
            value = body.emit("where", (guard, value, self.start(body)), self.dtype)
        return Chunked(body, ids, value, guard)

    def start(self, body: Body) -> int:
        """What comes before the first point."""
        return body.emit("constant", (), self.dtype, -math.inf if self.kind == "logaddexp" else identity(self.kind, self.dtype))

    # the nests

    def of_chunks(self, totals: str) -> Nest:
        chunk = self.chunked()
        return self.over_chunks(totals, chunk.body, self.total(chunk.body, chunk.value))

    def over_chunks(self, name: str, body: Body, value: int) -> Nest:
        body.store(value, name, linear(self.outer) * self.points + self.row)
        return merge_axes(Nest(name, (*self.outer, *self.nest.x_axes, *self.inner), without_dead(body.ops), self.nest.origins))

    def total(self, body: Body, value: int) -> int:
        if self.kind in REDUCED:
            return body.emit("reduce", (value,), self.dtype, self.kind)
        top = body.emit("reduce", (value,), self.dtype, "max")
        infinite = body.emit("eq", (body.emit("abs", (top,), self.dtype), body.emit("constant", (), self.dtype, math.inf)), torch.bool)
        shift = body.emit("where", (infinite, body.emit("constant", (), self.dtype, 0), top), self.dtype)
        power = body.emit("exp", (body.emit("sub", (value, shift), self.dtype),), self.dtype)
        rest = body.emit("log", (body.emit("reduce", (power,), self.dtype, "sum"),), self.dtype)
        return body.emit("add", (shift, rest), self.dtype)

    def places_of_chunks(self, name: str) -> Nest:
        """Of each chunk the latest place of its extremum, or of NaN."""
        chunk = self.chunked()
        body = chunk.body
        best = body.emit("reduce", (chunk.value,), self.dtype, self.kind)
        wins = body.emit("eq", (chunk.value, best), torch.bool)
        if self.dtype.is_floating_point:
            wins = body.emit("or", (wins, body.emit("isnan", (chunk.value,), torch.bool)), torch.bool)
        if chunk.guard is not None:
            wins = body.emit("and", (wins, chunk.guard), torch.bool)
        place = body.emit("index", (), torch.int64, linear(self.nest.r_axes).subs(self.values))
        other = body.emit("constant", (), torch.int64, 2**62 if self.reverse else -1)
        chosen = body.emit("where", (wins, place, other), torch.int64)
        return self.over_chunks(name, body, body.emit("reduce", (chosen,), torch.int64, "min" if self.reverse else "max"))

    def along_chunks(self, totals: str, carried: str) -> Nest:
        body, at = Body(), atom(self.chunk_axis.var) * self.points + self.row
        value = body.emit("load", (), self.dtype, Access(totals, at))
        body.store(body.emit("scan", (value,), self.dtype, Scan(self.kind, self.reverse)), carried, at)
        return self.one_row(carried, body)

    def places_along_chunks(self, totals: str, own: str, places: str) -> Nest:
        body, at = Body(), atom(self.chunk_axis.var) * self.points + self.row
        value = body.emit("load", (), self.dtype, Access(totals, at))
        chunk = body.emit("scan", (value,), torch.int64, Scan(self.scan.attr.kind, self.reverse))
        winner = atom(Var(f"%{chunk}", self.chunks)) * self.points + self.row
        body.store(body.emit("load", (), torch.int64, Access(own, winner)), places, at)
        return self.one_row(places, body)

    @property
    def chunk_axis(self) -> Axis:
        return Axis(Var("r0", self.chunks), "r")

    def one_row(self, name: str, body: Body) -> Nest:
        return merge_axes(Nest(name, (*self.nest.x_axes, self.chunk_axis), tuple(body.ops), self.nest.origins))

    def within_chunks(self, carried: str, places: str | None) -> Nest:
        chunk = self.chunked()
        body = chunk.body
        position = linear(self.outer)
        here = body.emit("index", (), torch.int64, position)
        edge = number(body, self.chunks - 1 if self.reverse else 0, torch.int64)
        follows = body.emit("lt", (here, edge) if self.reverse else (edge, here), torch.bool)
        before = (position + (1 if self.reverse else -1)) * self.points + self.row
        start = body.ops[self.start(body)].attr
        carry = body.emit("load", (), self.dtype, Access(carried, before, follows, start))
        value = body.emit("scan", (chunk.value,), self.dtype, Scan(self.kind, self.reverse))
        if places is None:
            result = self.combined(body, carry, value)
        else:
            own = body.emit("scan", (chunk.value,), torch.int64, Scan(self.scan.attr.kind, self.reverse))
            result = self.place(body, self.later(body, carry, value), own, body.emit("load", (), torch.int64, Access(places, before, follows)))
        ops = self.nest.body[self.at + 1 :]
        body.splice(ops, self.values, chunk.guard, before=[*chunk.ids, result])
        return normalize(Nest(self.nest.name, (*self.nest.x_axes, *self.outer, *self.inner), without_dead(body.ops), self.nest.origins))

    def place(self, body: Body, later: int, own: int, carried: int) -> int:
        """The place in the row: of what is before this chunk, or of a place in it."""
        first = linear(self.nest.r_axes).subs(self.values) - linear(self.inner)  # chunks are stretches of the row
        here = body.emit("add", (own, body.emit("index", (), torch.int64, first)), torch.int64)
        return body.emit("where", (later, here, carried), torch.int64)

    def later(self, body: Body, before: int, value: int) -> int:
        """Whether the value here takes the place of what is before."""
        found = body.emit("le", (before, value) if self.kind == "max" else (value, before), torch.bool)
        if self.dtype.is_floating_point:
            found = body.emit("or", (found, body.emit("isnan", (value,), torch.bool)), torch.bool)
        return found

    def combined(self, body: Body, before: int, value: int) -> int:
        dtype = self.dtype
        match self.kind:
            case "sum" | "prod":
                return body.emit("add" if self.kind == "sum" else "mul", (before, value), dtype)
            case "logaddexp":
                apart = body.emit("abs", (body.emit("sub", (before, value), dtype),), dtype)
                same = body.emit("eq", (before, value), torch.bool)
                less = body.emit("where", (same, body.emit("constant", (), dtype, 0), body.emit("neg", (apart,), dtype)), dtype)
                rest = body.emit("log1p", (body.emit("exp", (less,), dtype),), dtype)
                return body.emit("add", (body.emit("max", (before, value), dtype), rest), dtype)
            case _:
                return body.emit("where", (self.later(body, before, value), value, before), dtype)
