"""The accumulators of one pass: fields, starts, and how values and partial results enter them."""

from __future__ import annotations

from math import prod

import torch

from dynacompile.codegen.cpp.frame import Frame
from dynacompile.codegen.cpp.render import COMBINE, highest, literal, lowest, reduction_kind, value_type
from dynacompile.ir.index import Extent
from dynacompile.ir.loops import Nest
from dynacompile.ops.scalars import PLACES


class Accumulators:
    """The reduces of one pass. In lanes a field is a vector; in a part a scalar (row) or an array over the tile (column)."""

    def __init__(self, frame: Frame, reduces: list[int]):
        self.frame, self.reduces = frame, reduces
        self.body, self.values = frame.body, frame.values
        flat = prod(a.size for a in frame.plan.nest.r_axes)
        self.place = "i32" if isinstance(flat, int) and flat < 2**31 else "i64"

    def name(self, i: int) -> str:
        return self.values.names[i]

    def operand(self, i: int) -> tuple[int, torch.dtype]:
        value = self.body[i].args[0]
        return value, self.body[value].dtype

    def dtype(self, i: int) -> torch.dtype:
        """Of the accumulated value: of argmax the operand's."""
        op = self.body[i]
        return self.operand(i)[1] if op.attr in PLACES else op.dtype

    def is_place(self, i: int) -> bool:
        return self.body[i].attr in PLACES

    def is_float_sum(self, i: int) -> bool:
        return self.body[i].attr == "sum" and self.body[i].dtype.is_floating_point

    def adds_floats(self) -> bool:
        return any(self.is_float_sum(i) for i in self.reduces)

    def best(self, i: int, lanes: bool) -> str:
        kind, place = value_type(self.dtype(i)), self.place
        if kind == "bool":
            kind = "i32"  # compared as a mask's negation
        flag = "true" if self.body[i].attr == "argmax" else "false"
        return f"Best<{flag}, vec<{kind}, W>, vec<{place}, W>>" if lanes else f"Best<{flag}, {kind}, {place}>"

    def start(self, i: int) -> str:
        dtype = self.dtype(i)
        if self.is_place(i):
            wide = torch.int32 if dtype == torch.bool else dtype
            return literal(lowest(wide) if self.body[i].attr == "argmax" else highest(wide), wide)
        return literal(COMBINE[reduction_kind(str(self.body[i].attr), dtype)][0](dtype), dtype)

    def last_place(self) -> str:
        return literal(2**31 - 1, torch.int32) if self.place == "i32" else literal(2**63 - 1, torch.int64)

    def combine(self, i: int, a: str, b: str) -> str:
        return COMBINE[reduction_kind(str(self.body[i].attr), self.dtype(i))][1].format(a, b)

    def across(self, i: int) -> str:
        return f"across_{reduction_kind(str(self.body[i].attr), self.dtype(i))}"

    def entering(self, i: int) -> str:
        """The operand in lanes, in the accumulator's type."""
        value, dtype = self.operand(i)
        text = self.values.full(value)
        target = self.dtype(i)
        if self.is_place(i):
            return f"-{text}" if dtype == torch.bool else text
        if dtype == target:
            return text
        return f"{'convert_bool' if dtype == torch.bool else 'convert'}<{value_type(target)}>({text})"

    def position(self) -> str:
        """The flattened position over the r axes, in lanes."""
        nest, lane = self.frame.plan.nest, self.frame.plan.lane
        terms: list[str] = []
        stride: Extent = 0
        for axis, inner in zip(nest.r_axes, inner_sizes(nest), strict=True):
            terms.append(axis.var.name if inner == 1 else f"{axis.var.name} * {inner}")
            if axis == lane:
                stride = inner
        base = f"({self.place})({' + '.join(terms)})"
        return f"iota<W>({base}, ({self.place}){stride})" if stride else f"all<W>({base})"

    def result(self, i: int, part: str) -> str:
        """The scalar result of op i from a part of a row."""
        field = f"{part}.{self.name(i)}"
        return f"{field}.at" if self.is_place(i) else field


def inner_sizes(nest: Nest) -> list[Extent]:
    return [prod(a.size for a in nest.r_axes[k + 1 :]) for k in range(len(nest.r_axes))]
