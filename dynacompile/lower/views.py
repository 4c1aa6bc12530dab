"""Ops that change geometry only: the result is a buffer over the same memory, with the geometry of the fake."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

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
            low.add_view(name, buffer, *geometry(part), buffer.offset + part.storage_offset() - origin.storage_offset())
        low.values[node] = names
        return
    size, stride = geometry(val)
    if row.detail == "reshape":
        wanted = reshaped_strides(buffer.size, buffer.stride, size)
        if wanted is None or any(n > 1 and a != b for n, a, b in zip(size, wanted, stride, strict=True)):
            copy_reshaped(low, node, buffer.name)
            return
        low.add_view(node.name, buffer, size, stride, buffer.offset)
    elif node.target is torch.ops.aten.as_strided.default:
        offset = node.args[3] if len(node.args) > 3 else None
        low.add_view(node.name, buffer, size, stride, buffer.offset if offset is None else val.storage_offset() - origin.storage_offset() + buffer.offset)
    else:
        low.add_view(node.name, buffer, size, stride, buffer.offset + val.storage_offset() - origin.storage_offset())
    low.values[node] = node.name


def reshaped_strides(size: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that give `wanted` sizes over the same elements in the same order without moving any, else None."""
    old = [(n, s) for n, s in zip(size, stride, strict=True) if n != 1]
    if any(n == 0 for n in size):
        return tuple(1 for _ in wanted)
    merged: list[tuple[int, int]] = []
    for n, s in old:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    out: list[int] = []
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
        left //= n
        step *= n
    return tuple(reversed(out)) if left == 1 and not merged else None
