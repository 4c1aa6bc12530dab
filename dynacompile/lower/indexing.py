"""Reads at positions that are themselves tensor elements."""

from __future__ import annotations

import torch
import torch.fx

from dynacompile.ir.index import Extent, Index, Var, atom
from dynacompile.lower.context import Lowering, arguments
from dynacompile.lower.movement import Move
from dynacompile.lower.values import Value
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.table import Row

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def indirect(value: Value, size: Extent) -> Index:
    """The value of the body as an index into a dimension of `size` elements."""
    return atom(Var(f"%{value.id}", size))


def load_position(move: Move, arg: object, indices: list[Index]) -> Value:
    """The int64 element of an index tensor.

    On the CPU eager raises for a position beyond the end, so there ATen's op is called; on CUDA it is a device assertion, and we rely on it.
    """
    buffer = move.source(arg)
    if buffer.dtype not in INTEGERS or raises(buffer.device):
        raise NotCovered
    value = move.low.load(move.o, buffer, place(buffer.stride, buffer.offset, indices))
    return move.o.cast(value, torch.int64)


def raises(device: torch.device) -> bool:
    """Whether eager raises there for a position beyond the end."""
    return device.type == "cpu"


def place(stride: tuple[Extent, ...], offset: Extent, indices: list[Index]) -> Index:
    total = Index() + offset
    for i, s in zip(indices, stride, strict=True):
        total = total + i * s
    return total


def lower_index_select(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    move = Move(low, node)
    read = move.source(given["self"])
    if not read.size:
        raise NotCovered
    dim = given["dim"] % len(read.size)
    at = load_position(move, given["index"], [move.indices[dim]] if low.buffer_of(given["index"]).size else [])
    move.done(move.load(read, [*move.indices[:dim], indirect(at, read.size[dim]), *move.indices[dim + 1 :]]))


def lower_gather(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    given = arguments(node)
    move = Move(low, node)
    read = move.source(given["self"])
    if not read.size:
        raise NotCovered
    dim = given["dim"] % len(read.size)
    at = load_position(move, given["index"], move.indices)
    move.done(move.load(read, [indirect(at, read.size[dim]) if d == dim else i for d, i in enumerate(move.indices)]))


def lower_embedding(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    weight, positions = node.args[:2]
    move = Move(low, node)
    at = load_position(move, positions, move.indices[:-1])
    read = move.source(weight)
    move.done(move.load(read, [indirect(at, read.size[0]), move.indices[-1]]))


def lower_index(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """x[i, :, j]: the index tensors broadcast together; their dimensions stand where the first is, if they are adjacent, else in front."""
    given = arguments(node)["indices"]
    if any(g is not None and low.buffer_of(g).dtype not in INTEGERS for g in given):
        raise NotCovered
    move = Move(low, node)
    read = move.source(node.args[0])
    where = [d for d, g in enumerate(given) if g is not None]
    if not where or not read.size:
        raise NotCovered
    rank = max(len(low.buffer_of(given[d]).size) for d in where)
    adjacent = where == list(range(where[0], where[-1] + 1))
    front = where[0] if adjacent else 0
    shared = move.indices[front : front + rank]
    rest = iter(move.indices[:front] + move.indices[front + rank :])
    indices: list[Index] = []
    for d, n in enumerate(read.size):
        g = given[d] if d < len(given) else None
        if g is None:
            indices.append(next(rest))
            continue
        size = low.buffer_of(g).size
        own = [Index() if m == 1 else i for m, i in zip(size, shared[rank - len(size) :], strict=True)]
        at = load_position(move, g, own)
        at = move.o.select(at < 0, at + n, at)
        indices.append(indirect(at, n))
    move.done(move.load(read, indices))
