"""Rewrites of a nest before it is planned: axes split so that divisions vanish, and integers narrowed where their range is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.bounds import never_negative
from dynacompile.ir.divisions import split_axes
from dynacompile.ir.index import LONGEST, Index
from dynacompile.ir.loops import Access, Nest, Op
from dynacompile.ir.normal import normal, renumbered

NARROW = (-(2**31), 2**31 - 1)
Range = tuple[int, int]


def prepare(nest: Nest) -> Nest:
    """The same loops and values, cheaper to index."""
    return normal(narrow(split_axes(nest)))


def narrow(nest: Nest) -> Nest:
    """int64 values that surely fit in int32 (indices and what is made of them) computed in int32: twice the lanes."""
    ranges: list[Range | None] = []
    limits = [a.size for a in nest.axes if isinstance(a.size, Index) and a.size.hint <= LONGEST]
    for op in nest.body:
        ranges.append(range_of(op, nest.body, ranges, limits))
    if not any(r is not None and op.dtype == torch.int64 and op.name != "constant" for r, op in zip(ranges, nest.body, strict=True)):
        return nest
    body = Body()
    ids: list[int] = []
    for op, r in zip(nest.body, ranges, strict=True):
        own = r is not None and op.dtype == torch.int64
        args = operands(op, own, nest.body, ranges, body, ids)
        if op.name == "store":
            access = renumbered(op.attr, ids)
            body.put(args[0], access)
            ids.append(-1)
            continue
        attr: object = op.attr
        if isinstance(attr, Access):
            attr = renumbered(attr, ids)
        elif isinstance(attr, Index):
            attr = renumbered(Access("", attr), ids).index
        ids.append(body.emit(op.name, args, torch.int32 if own else op.dtype, attr))
    return replace(nest, body=without_dead(body.ops))


def operands(op: Op, own: bool, ops: Sequence[Op], ranges: Sequence[Range | None], body: Body, ids: Sequence[int]) -> tuple[int, ...]:
    """The new ids of an op's operands: int32 for an op that is narrowed, or compares or casts narrowed values only; else widened back."""
    numbers = [a for a in op.args if ops[a].dtype == torch.int64]
    keep = own or (op.name in ("eq", "ne", "lt", "le", "cast") and all(ranges[a] is not None for a in numbers))
    args = []
    for a in op.args:
        new = ids[a]
        if not keep and ops[a].dtype == torch.int64 and body.ops[new].dtype == torch.int32:
            new = body.emit("cast", (new,), torch.int64)
        args.append(new)
    return tuple(args)


def range_of(op: Op, ops: Sequence[Op], ranges: Sequence[Range | None], limits: Sequence[Index]) -> Range | None:
    """The least and greatest value of an int64 op that can be computed in int32, else None. limits: sizes of loops, which are LONGEST at most."""
    if op.dtype != torch.int64:
        return None
    found: Range | None = None
    if op.name == "index":
        low, high = op.attr.bounds()  # type: ignore[union-attr]
        if high is None or high > NARROW[1]:
            high = LONGEST if any(never_negative(limit - op.attr) for limit in limits) else None  # type: ignore[operator]
        found = None if low is None or high is None or any(v.name[0] == "%" for v in op.attr.variables()) else (low, high)  # type: ignore[union-attr]
    elif op.name == "constant":
        found = (int(op.attr), int(op.attr))  # type: ignore[call-overload]
    elif op.name == "cast" and ops[op.args[0]].dtype in (torch.bool, torch.uint8, torch.int8, torch.int16):
        info = (0, 1) if ops[op.args[0]].dtype == torch.bool else (torch.iinfo(ops[op.args[0]].dtype).min, torch.iinfo(ops[op.args[0]].dtype).max)
        found = info
    elif op.name in COMBINE:
        known = [ranges[a] for a in op.args if ops[a].dtype == torch.int64]
        if all(r is not None for r in known):
            found = COMBINE[op.name](*known)
    return found if found is not None and NARROW[0] <= found[0] and found[1] <= NARROW[1] else None


def product(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


COMBINE: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": product,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0, max(abs(a[0]), abs(a[1]))),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}
