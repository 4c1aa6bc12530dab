"""Ops that change geometry only: the result is a buffer over the same memory, with the geometry of the fake."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.ir.index import Extent
from dynacompile.ir.index import extent as simplest
from dynacompile.ir.symbols import extent
from dynacompile.lower.context import Lowering, geometry
from dynacompile.lower.pointwise import copy_reshaped
from dynacompile.ops.table import Row


def lower_view(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    source = node.args[0]
    buffer, val = low.buffer_of(source), node.meta["val"]
    origin = source.meta["val"]  # type: ignore[union-attr]
    if isinstance(val, (tuple, list)):
        names = low.parts(node, len(val))
        for name, part in zip(names, val, strict=True):
            low.add_view(name, buffer, *geometry(part), simplest(buffer.offset + moved(part, origin)))
        low.values[node] = names
        return
    size, stride = geometry(val)
    if row.detail == "reshape":
        wanted = reshaped_strides(buffer.size, buffer.stride, size)
        if wanted is None and node.target is torch.ops.aten.view.default and (buffer.size, buffer.stride) == geometry(origin):
            wanted = stride  # torch knows more of its symbols than we do
        is_empty = 0 in (*buffer.size, *size)
        if wanted is None or (not is_empty and any(n != 1 and a != b for n, a, b in zip(size, wanted, stride, strict=True))):
            copy_reshaped(low, node, buffer.name)
            return
        low.add_view(node.name, buffer, size, stride, buffer.offset)
    elif node.target is torch.ops.aten.as_strided.default:
        offset = node.args[3] if len(node.args) > 3 else None
        low.add_view(node.name, buffer, size, stride, buffer.offset if offset is None else simplest(moved(val, origin) + buffer.offset))
    else:
        low.add_view(node.name, buffer, size, stride, simplest(buffer.offset + moved(val, origin)))
    low.values[node] = node.name


def moved(view: torch.Tensor, of: torch.Tensor) -> Extent:
    """From the first element of a fake to that of a view of it."""
    return extent(view.storage_offset()) - extent(of.storage_offset())


def reshaped_strides(size: Sequence[Extent], stride: Sequence[Extent], wanted: Sequence[Extent]) -> tuple[Extent, ...] | None:
    """Strides that give `wanted` sizes over the same elements in the same order without moving any, else None."""
    old = [(n, s) for n, s in zip(size, stride, strict=True) if n != 1]
    if any(n == 0 for n in (*size, *wanted)):  # a guard may tell it of one alone
        return tuple(1 for _ in wanted)
    merged: list[tuple[Extent, Extent]] = []
    for n, s in old:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    out: list[Extent] = []
    left, step = merged.pop() if merged else (1, 1)
    for n in reversed(wanted):
        if n == 1:
            out.append(step)
            continue
        if left == 1:
            if not merged:
                return None
            left, step = merged.pop()
        if left % n:
            return None
        out.append(step)
        left, step = simplest(left // n), step * n
    return tuple(reversed(out)) if left == 1 and not merged else None
