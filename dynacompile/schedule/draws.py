"""Random numbers of one block, which a point of a kernel makes together: eager's threads stride over the elements, so that the four words of a block are the
numbers of elements that lie as far apart as eager has threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.divisions import recombined
from dynacompile.ir.index import Index, Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, Nest, Op
from dynacompile.schedule.domain import with_indices

WORDS = 4
MOST_OPS = 64  # of a nest; four times as many are one kernel then


def with_whole_blocks(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """A pointwise nest of a GPU with a point for every block of words, where its points are numbered as eager's elements are."""
    stores, sizes = nest.stores(), [a.size for a in nest.axes]
    if nest.r_axes or any(isinstance(n, Index) for n in sizes) or not stores or buffers[stores[0].buffer].device.type != "cuda":
        return nest
    if nest.adds or any(a.summed for a in stores) or len(nest.body) > MOST_OPS or not any(op.name == "uniform" for op in nest.body):
        return nest
    points, threads = prod(sizes), threads_of(nest.body)
    if not 0 < threads < points:
        return nest
    rounds = -(-points // (threads * WORDS))
    outer, inner = Var("x0", rounds), Var("x1", threads)
    axes = tuple(Axis(v, "x") for v in (outer, inner) if v.size != 1)
    first = (atom(outer) * (threads * WORDS) if rounds > 1 else 0) + atom(inner)
    body = Body()
    late: list[tuple[int, Access]] = []
    one = flat(nest)
    for k in range(min(WORDS, -(-points // threads))):
        if not copy_at(one, first + k * threads, points, body, late):
            return nest
    for value, access in late:
        body.put(value, access)
    return with_indices(replace(nest, axes=axes, body=without_dead(body.ops)), recombined)


def flat(nest: Nest) -> Nest:
    """A nest over one axis, of the same points in the same order."""
    if len(nest.axes) == 1:
        return nest
    point = Var("x0", prod(a.size for a in nest.axes))
    variables: dict[Var, Index | int] = {}
    inside = 1
    for axis in reversed(nest.axes):
        variables[axis.var] = (atom(point) // inside) % axis.size
        inside *= axis.size
    return replace(with_indices(nest, lambda index: recombined(index.subs(variables))), axes=(Axis(point, "x"),))


def threads_of(body: Sequence[Op]) -> int:
    """The number of sequences that the points draw from in turn; 0 where they do otherwise."""
    found = set()
    for op in body:
        if op.name == "uniform" and body[op.args[3]].name == "index":
            sequence = body[op.args[1]].attr
            high = sequence.bounds()[1] if isinstance(sequence, Index) else None
            found.add(0 if high is None else high + 1)
    return found.pop() if len(found) == 1 else 0


def copy_at(nest: Nest, point: Index, points: int, body: Body, late: list[tuple[int, Access]]) -> bool:
    """Emits what the nest computes at a point of its axis, where there is one; stores wait. Whether its strided draws have places that are known."""
    mask = None
    high = point.bounds()[1]
    if high is None or high >= points:
        place, end = body.emit("index", (), torch.int64, point), body.emit("constant", (), torch.int64, points)
        mask = body.emit("lt", (place, end), torch.bool)

    def on_load(access: Access, dtype: torch.dtype) -> int | None:
        """What all points read is there for all of them."""
        whole = access.mask == mask and access.index.is_constant
        return body.emit("load", (), dtype, access.at(access.index, None)) if mask is not None and whole else None

    ids = body.splice(nest.body, {nest.axes[0].var: point}, mask, on_load, lambda value, access: late.append((value, access)))
    places = [body.ops[ids[op.args[3]]] for op in nest.body if op.name == "uniform" and nest.body[op.args[3]].name == "index"]
    return all(op.name == "index" and isinstance(op.attr, Index) and op.attr.is_constant for op in places)
