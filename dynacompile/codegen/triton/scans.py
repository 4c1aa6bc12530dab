"""Scans in Triton: of a block along r, and, in a loop over blocks, of what the blocks before it left.

An element of a scan has parts, as many as the scan's state: the value alone, or with it its position (argmax), the scale that a sum of exponentials is kept
by (logaddexp), or whether the sum has started anew. A device function of `scan_functions` combines two elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.ir.loops import Nest, Op, Scan
from dynacompile.ops.scalars import PLACES

if TYPE_CHECKING:
    from dynacompile.codegen.triton.indexing import Dim
    from dynacompile.codegen.triton.tiles import Tiling

EXTREMA = {"max": "argmax", "min": "argmin"}
WHOLE = {"scan_sum": "tl.cumsum", "scan_prod": "tl.cumprod"}


@dataclass(frozen=True)
class Part:
    """One part of an element. text: of an element of the block; start: of what comes before the first, a literal; dtype: a Triton expression."""

    name: str
    text: str
    start: str
    dtype: str


class Emitted(Protocol):
    """The values of a kernel that is being written, as scans see them; `values.Values` says what each of these is."""

    nest: Nest
    tiling: Tiling
    joined: dict[int, int]
    dims: dict[str, Dim]
    shapes: dict[int, frozenset[str]]
    fast: bool

    def name(self, i: int) -> str: ...
    def fresh_part(self, i: int, part: str) -> str: ...
    def shape(self, dims: frozenset[str]) -> str: ...
    def tile(self, i: int, text: str) -> str: ...
    def whole_shape(self) -> str: ...
    def note_indirect(self, i: int) -> list[str]: ...
    def argument(self, i: int, literal: bool = False) -> str: ...


class Scanned:
    """One scan that is being written. combine: the device function. finish: lines that make the result of the parts."""

    def __init__(self, values: Emitted, i: int, op: Op):
        self.values, self.attr = values, op.attr
        source = values.nest.body[op.args[0]]
        kind = scalars.value(source.dtype)
        name, start = values.name(i), start_of(self.attr.kind, source.dtype)
        text = values.tile(op.args[0], values.argument(op.args[0]))
        if self.attr.reverse and "r" in values.tiling.masked:
            text = f"tl.where(rmask, {text}, {start})"
        self.combine = f"scan_{self.attr.kind}"
        self.parts = [Part(name, text, start, kind)]
        self.finish: list[str] = []
        if len(op.args) > 1:
            self.combine = "scan_sum_anew"
            self.parts.append(Part(values.fresh_part(i, "anew"), f"{values.tile(op.args[1], values.argument(op.args[1]))}.to(tl.int32)", "0", "tl.int32"))
        elif self.attr.kind in PLACES or i in values.joined.values():
            self.with_places(i, name, text, start, kind)
        elif self.attr.kind == "logaddexp":
            top, scale = values.fresh_part(i, "top"), values.fresh_part(i, "scale")
            self.parts = [Part(top, text, start, kind), Part(scale, f"tl.full({values.whole_shape()}, 1.0, {kind})", "0.0", kind)]
            logarithm = scalars.row("log", source.dtype, values.fast)[0].format(scale)
            self.finish = [f"{name} = {top} + {logarithm}"]

    def with_places(self, i: int, name: str, text: str, start: str, kind: str) -> None:
        values, places = self.values, self.attr.kind in PLACES
        other = next((j for j, first in values.joined.items() if first == i), None)
        at = name if places else values.name(other) if other is not None else ""
        value = name if not places else values.name(other) if other is not None else values.fresh_part(i, "best")
        place, width = values.fresh_part(i, "at"), "tl.int64" if values.tiling.wide else "tl.int32"
        self.combine = f"scan_{self.attr.kind if places else EXTREMA[self.attr.kind]}"
        self.parts = [Part(value, text, start, kind), Part(place, f"tl.broadcast_to(r, {values.whole_shape()})", "0", width)]
        self.finish = [f"{at} = {place}.to(tl.int64)"]
        if other is not None:
            values.shapes[other] = values.shapes[i]
            self.finish += values.note_indirect(other)

    def block(self) -> list[str]:
        """The scan of a block by itself."""
        names, texts = ", ".join(p.name for p in self.parts), ", ".join(p.text for p in self.parts)
        reverse = ", reverse=True" if self.attr.reverse else ""
        if self.combine in WHOLE:
            return [f"{names} = {WHOLE[self.combine]}({texts}, 1{reverse})"]
        return [f"{names} = tl.associative_scan({texts if len(self.parts) == 1 else f'({texts})'}, 1, {self.combine}{reverse})"]

    def carried(self) -> tuple[list[str], list[str]]:
        """Lines before a loop over blocks, and in it."""
        rows = self.values.shape(frozenset(("x",)))
        names, left = ", ".join(p.name for p in self.parts), ", ".join(f"{p.name}_left" for p in self.parts)
        edge = "0" if self.attr.reverse else "RBLOCK - 1"
        before = [f"{p.name}_left = tl.full({rows}, {p.start}, {p.dtype})" for p in self.parts]
        inside = [*self.block(), f"{names} = {self.combine}({left}, {names})"]
        inside += [f"{p.name}_left = tl.sum(tl.where(r_base == {edge}, {p.name}, 0), 1)[:, None]" for p in self.parts]
        return before, inside


def scan(values: Emitted, i: int, op: Op) -> list[str]:
    """Lines of a scan along r that one block takes in."""
    if i in values.joined:
        return []
    values.shapes[i] = frozenset(values.dims)
    found = Scanned(values, i, op)
    return [*found.block(), *found.finish, *values.note_indirect(i)]


def scan_in_loop(values: Emitted, i: int, op: Op) -> tuple[list[str], list[str]]:
    """Lines before a loop over blocks of r, and in it."""
    if i in values.joined:
        return [], []
    values.shapes[i] = frozenset(values.dims)
    found = Scanned(values, i, op)
    before, inside = found.carried()
    return before, [*inside, *found.finish, *values.note_indirect(i)]


def start_of(kind: str, dtype: torch.dtype) -> str:
    """The literal that a scan may start from."""
    if kind in ("sum", "prod"):
        return scalars.literal(int(kind == "prod"), dtype)
    low = kind in ("max", "argmax", "logaddexp")
    if dtype.is_floating_point:
        return scalars.literal(float("-inf") if low else float("inf"), dtype)
    limits = torch.iinfo(dtype)
    return str(limits.min if low else limits.max)


def joined_scans(nest: Nest) -> dict[int, int]:
    """Running extrema and the scans of their places: of each two the later one, and the earlier one, which makes both."""
    found: dict[int, int] = {}
    first: dict[tuple, int] = {}
    for i, op in enumerate(nest.body):
        if op.name != "scan" or op.attr.kind not in (*PLACES, *EXTREMA):
            continue
        key = (op.args, op.attr.reverse, EXTREMA.get(op.attr.kind, op.attr.kind))
        if key in first and first[key] not in found.values():
            found[i] = first[key]
        first.setdefault(key, i)
    return found


def is_reverse(attr: object) -> bool:
    return isinstance(attr, Scan) and attr.reverse
