"""The scans of one pass: what their states are, and how these take in values. A scan along the lanes has one state, one across them a state for each lane."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynacompile.codegen.cpp.accumulate import inner_sizes
from dynacompile.codegen.cpp.frame import Frame
from dynacompile.codegen.cpp.render import highest, literal, lowest, value_type
from dynacompile.errors import VerifyError
from dynacompile.ir.loops import Scan
from dynacompile.ops.scalars import PLACES

HEADER = '#include "scans.h"'
WIDE = {"sum": torch.float64, "prod": torch.float64, "logaddexp": torch.float64}  # what float32 is summed up in, as in ATen


@dataclass(frozen=True)
class State:
    """A part of a scan's state. start: of its scan, a literal."""

    name: str
    kind: str
    start: str


class Scans:
    """The scans among some ops, of one pass, which has a number."""

    def __init__(self, frame: Frame, ids: list[int], number: int = 0):
        self.frame, self.body, self.values, self.number = frame, frame.body, frame.values, number
        self.ids = [i for i in ids if self.body[i].name == "scan"]
        ways = {self.body[i].attr.reverse for i in self.ids}  # type: ignore[union-attr]
        if len(ways) > 1:
            raise VerifyError("schedule", "a kernel for CPUs scans both ways in one pass")
        self.reverse = True in ways

    def __bool__(self) -> bool:
        return bool(self.ids)

    def states(self, i: int) -> list[State]:
        attr: Scan = self.body[i].attr  # type: ignore[assignment]
        dtype = self.body[self.body[i].args[0]].dtype
        name = f"{self.values.names[i]}_state{self.number or ''}"
        if attr.kind in PLACES:
            return [State(name, value_type(dtype), literal(self.start(attr.kind[3:], dtype), dtype)), State(f"{name}_at", "i64", "0l")]
        wide = WIDE.get(attr.kind, dtype) if dtype == torch.float32 else dtype
        if attr.kind == "logaddexp":
            return [State(name, value_type(dtype), literal(lowest(dtype), dtype)), State(f"{name}_scale", value_type(wide), literal(0, wide))]
        return [State(name, value_type(wide), literal(self.start(attr.kind, wide), wide))]

    @staticmethod
    def start(kind: str, dtype: torch.dtype) -> object:
        return {"sum": 0, "prod": 1}[kind] if kind in ("sum", "prod") else lowest(dtype) if kind == "max" else highest(dtype)

    def call(self, i: int, states: list[str], value: str, starts: str, place: str) -> str:
        """The call by which a state takes in a value, and which gives the result."""
        attr: Scan = self.body[i].attr  # type: ignore[assignment]
        given = ", ".join(states)
        match attr.kind:
            case "max" | "min":
                return f"run_extremum<{'true' if attr.kind == 'max' else 'false'}>({given}, {value})"
            case "argmax" | "argmin":
                return f"run_place<{'true' if attr.kind == 'argmax' else 'false'}>({given}, {value}, {place})"
            case "sum" if starts:
                return f"run_sum_anew({given}, {value}, {starts})"
            case kind:
                return f"run_{kind}({given}, {value})"

    def place(self, lane: str) -> str:
        """The flattened position over the r axes. lane: what is added to the variable of the axis in the lanes, where that is one of them."""
        nest, axis = self.frame.plan.nest, self.frame.plan.lane
        terms = []
        for a, inner in zip(nest.r_axes, inner_sizes(nest), strict=True):
            name = f"({a.var.name} + {lane})" if a == axis else a.var.name
            terms.append(name if inner == 1 else f"{name} * {inner}")
        return f"(i64)({' + '.join(terms)})"

    # along the lanes

    def declare(self) -> None:
        """The states of a row, before its elements."""
        for i in self.ids:
            for state in self.states(i):
                self.frame.out.line(f"{state.kind} {state.name} = {state.start};")

    def along_lanes(self, i: int) -> str:
        """The statement that takes in the elements in the lanes, one after the other."""
        op, values = self.body[i], self.values
        starts = f"{values.full(op.args[1])}[l] != 0" if len(op.args) > 1 else ""
        call = self.call(i, [s.name for s in self.states(i)], f"{values.full(op.args[0])}[l]", starts, self.place("l"))
        order = "in_reverse" if op.attr.reverse else "in_order"  # type: ignore[union-attr]
        return f"const auto {values.names[i]} = {order}<W, {value_type(op.dtype)}>(on, [&](int l) BODY {{ return {call}; }});"

    # across the lanes

    def arrays(self) -> list[tuple[str, str]]:
        """(type, name) of arrays over a tile's lanes."""
        return [(s.kind, s.name) for i in self.ids for s in self.states(i)]

    def clear(self, tile: int) -> None:
        out = self.frame.out
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        for i in self.ids:
            for s in self.states(i):
                out.line(f"put({s.name} + t, all<W>({s.start}));")
        out.close(");")

    def across_lanes(self, i: int, at: str) -> list[str]:
        """The statements that take in a step's elements, each in its lane."""
        op, values = self.body[i], self.values
        names = [s.name for s in self.states(i)]
        lines = [f"auto {n}_now = get<W>({n} + ({at}));" for n in names]
        starts = values.full(op.args[1]) if len(op.args) > 1 else ""
        call = self.call(i, [f"{n}_now" for n in names], values.full(op.args[0]), starts, f"all<W>({self.place('')})")
        return [*lines, f"const auto {values.names[i]} = {call};", *(f"put({n} + ({at}), {n}_now);" for n in names)]


def steps_loop(begin: str, end: str, reverse: bool) -> str:
    """The head of a loop over steps."""
    return f"for (i64 s = {end} - 1; s >= {begin}; --s)" if reverse else f"for (i64 s = {begin}; s < {end}; ++s)"
