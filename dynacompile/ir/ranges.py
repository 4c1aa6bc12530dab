"""Between which numbers the values of a body lie, at every point of its nest. Places that are computed, as of the pixels that an interpolation reads, are so
known to lie in their dimension, and to fit in 32 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.loops import Nest, Op

Range = tuple[Any, Any]  # the lowest and the highest, both possible; of floats: never NaN
SPARE = 4  # steps of the last place by which a float's range is wider than its ends: products and sums may be rounded once or twice
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FITS = (-(2**31), 2**31 - 1)


def ranges(body: Sequence[Op], memory: Mapping[str, Range]) -> list[Range | None]:
    """One for each op; None where nothing is known: bools, and floats that memory holds. memory: of the elements of buffers, where they are known."""
    found: list[Range | None] = []
    for op in body:
        if op.name == "load" and op.attr.mask is None and op.attr.buffer in memory:  # type: ignore[union-attr]
            found.append(memory[op.attr.buffer])  # type: ignore[union-attr]
        else:
            found.append(range_of(op, [found[a] for a in op.args]) or anything(op.dtype))
    return found


def written(nest: Nest, memory: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of the whole numbers that a nest writes, by buffer. memory: as above."""
    stores = [op for op in nest.body if op.name == "store" and op.dtype in WHOLE]
    if not stores:
        return {}
    known = ranges(nest.body, memory)
    found: dict[str, Range | None] = {}
    for op in stores:
        access: Any = op.attr
        own, before = known[op.args[0]], found.get(access.buffer, known[op.args[0]])
        sums = access.added or access.summed
        found[access.buffer] = None if sums or own is None or before is None else (min(own[0], before[0]), max(own[1], before[1]))
    return {name: r for name, r in found.items() if r is not None and r != anything(stores[0].dtype)}


def anything(dtype: torch.dtype) -> Range | None:
    return (torch.iinfo(dtype).min, torch.iinfo(dtype).max) if dtype in WHOLE else None


def range_of(op: Op, args: Sequence[Range | None]) -> Range | None:
    if op.name == "constant":
        value: Any = op.attr
        return None if op.dtype == torch.bool or not math.isfinite(value) else kept_in(value, value, op.dtype)
    if op.name == "index":
        return of_index(op)
    if op.name == "where":
        args = args[1:]
    if op.dtype == torch.bool or op.name not in RULES or any(a is None for a in args):
        return None
    low, high = RULES[op.name](*args)
    return kept_in(low, high, op.dtype)


def of_index(op: Op) -> Range | None:
    index: Any = op.attr
    if any(v.name[0] == "%" for v in index.variables()):  # checked where it is used as a place, not here
        return None
    low, high = index.bounds()
    return None if low is None or high is None else kept_in(low, high, op.dtype)


def kept_in(low: Any, high: Any, dtype: torch.dtype) -> Range | None:
    """The range of results, which whole numbers leave by wrapping around and floats by becoming infinite."""
    if dtype in WHOLE:
        low, high = math.trunc(low), math.trunc(high)
        least, most = anything(dtype)  # type: ignore[misc]
        return (low, high) if least <= low and high <= most else None
    spare, tiny = SPARE * torch.finfo(dtype).eps, torch.finfo(dtype).tiny  # what is smaller may be taken for 0
    low, high = float(low) - abs(low) * spare - (tiny if low else 0), float(high) + abs(high) * spare + (tiny if high else 0)
    return (low, high) if max(-low, high) < torch.finfo(dtype).max else None


def products(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


RULES: dict[str, Any] = {
    "cast": lambda a: a,
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": products,
    "neg": lambda a: (-a[1], -a[0]),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "floor": lambda a: (math.floor(a[0]), math.floor(a[1])),
    "ceil": lambda a: (math.ceil(a[0]), math.ceil(a[1])),
    "trunc": lambda a: (math.trunc(a[0]), math.trunc(a[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}
"""What the range of a result is, by those of its operands. Each rule holds for every operand in its range."""


def compared(name: str, a: Range, b: Range) -> bool | None:
    """How a comparison of any two numbers of these ranges ends, where all end alike."""
    match name:
        case "lt":
            return True if a[1] < b[0] else False if a[0] >= b[1] else None
        case "le":
            return True if a[1] <= b[0] else False if a[0] > b[1] else None
        case "eq" | "ne":
            return (name == "ne") if a[1] < b[0] or b[1] < a[0] else None
    return None


def narrow(body: Sequence[Op], memory: Mapping[str, Range]) -> frozenset[int]:
    """The int64 values that can be computed in 32 bits: they fit, and so does all that they are computed of."""
    if not any(op.dtype == torch.int64 and op.name in RULES for op in body):
        return frozenset()
    known, found = ranges(body, memory), set()
    for i, op in enumerate(body):
        if op.dtype != torch.int64 or op.name not in (*RULES, "constant", "index") or not fits(known[i]):
            continue
        args = op.args[1:] if op.name == "where" else op.args
        if op.name == "cast" and body[args[0]].dtype != torch.int64:
            found.add(i)
        elif all(a in found for a in args):
            found.add(i)
    return frozenset(found)


def fits(known: Range | None) -> bool:
    return known is not None and FITS[0] <= known[0] and known[1] <= FITS[1]
