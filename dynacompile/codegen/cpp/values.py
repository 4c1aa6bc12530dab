"""Statements that compute a kernel's values, as scalars or in lanes."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from dynacompile.codegen.cpp.plan import COSTLY, Plan
from dynacompile.codegen.cpp.render import literal, memory_type, scalar_op, value_type, vector_op
from dynacompile.ir.body import needs
from dynacompile.ir.index import Index, Symbol, Var, render
from dynacompile.ir.loops import Access, Op, Scan
from dynacompile.ir.schedule import Kernel
from dynacompile.ops.scalars import compute_dtype

FLOORS = ("floordiv1<i64>", "mod1<i64>")
# what a kernel's text may not name its pointers and values: C++ and what vec.h and vecmath.h define for emitted text
RESERVED = frozenset(
    """all and asm auto bool break case char class const continue default delete do double else enum export extern f16 f32 f64 bf16 false float for friend
    goto i16 i32 i64 i8 if inline int long mutable namespace new not on operator or private protected public register return short signed sizeof static
    struct switch template this true try typedef typename u8 union unsigned using virtual void volatile while xor W l t0 t1 s0 s1 task task0 task1 s c b e a
    place best chunk chunks columns rows square length tiles tasks together params load store fetch gather value memory each get put where max min abs exp
    log""".split()
)

BOUNDS = {"max": "at_least", "min": "at_most"}
FEW_FOR_A_PLACE = 12  # operations by which a place and its condition are as cheap computed for each lane as taken out of vectors
FEW_FOR_A_VALUE = 4  # the same of the value that goes there


def name_of(op: Op) -> str:
    """What a value's name begins with."""
    return str(op.attr) if op.name == "reduce" else f"running_{op.attr.kind}" if isinstance(op.attr, Scan) else op.name


class Text:
    """Lines with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self, after: str = "") -> None:
        self.depth -= 1
        self.line("}" + after)


class Values:
    """The values of one kernel: their names, and the statement that computes each."""

    def __init__(self, kernel: Kernel, plan: Plan):
        self.plan, self.body = plan, plan.nest.body
        taken = {a.var.name for a in plan.nest.axes} | {s.name for s in kernel.symbols}
        self.params = {p.name: (p.name + "_" if p.name in RESERVED or p.name in taken else p.name, p.dtype) for p in kernel.params}
        taken |= {name for name, _ in self.params.values()}
        self.names = [self.unused(f"{name_of(op)}_{i}", taken) for i, op in enumerate(self.body)]
        self.by_lane = {i: own for i in range(len(self.body)) if (own := self.of_each_lane(i)) is not None}

    @staticmethod
    def unused(name: str, taken: set[str]) -> str:
        while name in taken:
            name += "_"
        return name

    def use(self, i: int) -> str:
        op = self.body[i]
        return literal(op.attr, op.dtype) if op.name == "constant" else self.names[i]

    def index(self, index: Index, lane: str | None = None) -> str:
        """C++ text of an index. lane: the name of the lane's number, where the index is wanted for one lane of a vector."""

        def name(v: Var) -> str:
            if v.name[0] == "%":
                i = int(v.name[1:])
                return f"(i64){self.use(i)}" + (f"[{lane}]" if self.plan.deep[i] and lane else "")
            if lane and self.plan.lane is not None and v == self.plan.lane.var:
                return f"({v.name} + {lane})"
            return v.name

        return render(index, name, FLOORS)

    def address(self, access: Access) -> str:
        return f"{self.params[access.buffer][0]} + {self.index(access.index)}"

    def element(self, access: Access, lane: str | None = None) -> str:
        return f"{self.params[access.buffer][0]}[{self.index(access.index, lane)}]"

    def stride(self, access: Access) -> int | None:
        """The distance of what neighbouring lanes access, in elements; None where it is not the same for all, or too far for 32 bits."""
        lane = self.plan.lane
        if lane is None or any(v.name[0] == "%" and self.plan.deep[int(v.name[1:])] for v in access.index.variables()):
            return None
        stride = access.index.stride(lane.var)
        return stride if isinstance(stride, int) and abs(stride) < 2**26 else None

    def consecutive(self, access: Access) -> bool:
        """Whether neighbouring lanes access neighbouring elements."""
        return self.stride(access) == 1

    def scalar(self, i: int) -> str:
        """The statement for op i without lanes."""
        op = self.body[i]
        if op.name == "store":
            return self.scalar_store(op)
        match op.attr:
            case Access() as a:
                text = self.scalar_load(op, a)
            case Index() as index:
                text = self.index(index)
            case Symbol() as given:
                text = given.name
            case None if (bound := self.bound(op)) is not None:
                text = f"{BOUNDS[op.name]}({self.use(bound[0])}, {bound[1]})"
            case _:
                text = scalar_op(op, [self.use(a) for a in op.args], [self.body[a].dtype for a in op.args])
        return f"const {value_type(op.dtype)} {self.names[i]} = {text};"

    def scalar_load(self, op: Op, access: Access) -> str:
        text = f"value({self.element(access)})"
        if compute_dtype(self.params[access.buffer][1]) != op.dtype:
            text = f"convert<{value_type(op.dtype)}>({text})"
        return text if access.mask is None else f"{self.use(access.mask)} ? {text} : {literal(access.other, op.dtype)}"

    def scalar_store(self, op: Op) -> str:
        access: Access = op.attr  # type: ignore[assignment]
        when = f"if ({self.use(access.mask)}) " if access.mask is not None else ""
        if access.added:
            return f"{when}{self.element(access)} += {self.use(op.args[0])};"
        return f"{when}{self.element(access)} = memory<{memory_type(self.params[access.buffer][1])}>({self.use(op.args[0])});"

    def lanes(self, i: int) -> list[str]:
        """The statements for op i in lanes."""
        op = self.body[i]
        if i in self.by_lane:
            return self.each_lane(i)
        if op.name == "store":
            return [f"store({self.in_block(i)}, {self.full(op.args[0])}, on);" if i in self.plan.crossed else self.lane_store(op)]
        match op.attr:
            case Access() as a if i in self.plan.crossed:
                text = self.converted(f"load<W>({self.in_block(i)}, on)", op, a)
            case Access() as a:
                text = self.converted(self.lane_load(a), op, a)
            case Index() as index:
                text = self.lane_index(op, index)
            case None if (bound := self.bound(op)) is not None:
                x, number = bound
                text = f"{BOUNDS[op.name]}({self.full(x)}, {number})"
            case _:
                text = vector_op(op, [self.use(a) for a in op.args], [self.body[a].dtype for a in op.args], [self.plan.deep[a] for a in op.args])
        return [f"const auto {self.names[i]} = {text};"]

    def bound(self, op: Op) -> tuple[int, str] | None:
        """The other operand and the number, where one operand of a min or max of floats is a number."""
        if op.name not in BOUNDS or not op.dtype.is_floating_point:
            return None
        for x, c in (op.args, op.args[::-1]):
            constant = self.body[c]
            if constant.name == "constant" and constant.attr == constant.attr:  # no NaN
                return x, self.use(c)
        return None

    def converted(self, text: str, op: Op, access: Access) -> str:
        return text if compute_dtype(self.params[access.buffer][1]) == op.dtype else f"convert<{value_type(op.dtype)}>({text})"

    def lane_load(self, access: Access) -> str:
        dtype = self.params[access.buffer][1]
        if self.consecutive(access):
            if access.mask is None:
                text = f"load<W>({self.address(access)}, on)"
            elif not self.plan.deep[access.mask]:  # one decision for all lanes
                text = f"({self.use(access.mask)} ? load<W>({self.address(access)}, on) : all<W>({literal(access.other, compute_dtype(dtype))}))"
            else:
                text = f"load_if<W>({self.full(access.mask)}, {self.address(access)}, {literal(access.other, compute_dtype(dtype))}, on)"
        elif access.mask is None and dtype != torch.bool and (stride := self.stride(access)):
            text = f"gather_strided<W>({self.address(access)}, {stride}, on)"
        else:
            one = f"value({self.element(access, 'l')})"
            if access.mask is not None:
                one = f"{self.one(access.mask)} ? {one} : {literal(access.other, compute_dtype(dtype))}"
            text = f"gather{'_bool' if dtype == torch.bool else ''}<W>([&](int l) {{ return {one}; }}, on)"
        return text

    def of_each_lane(self, i: int) -> frozenset[int] | None:
        """Of a store or a load at places that are not consecutive, the ops that it computes for each lane by itself: a scalar that is loaded costs less than
        one that is taken out of a vector. None for others, and for loads of which that are none."""
        op = self.body[i]
        if op.name not in ("load", "store") or not isinstance(op.attr, Access) or i in self.plan.crossed or self.consecutive(op.attr):
            return None
        place = self.cheap_for_a_lane(needs(replace(op, args=())), FEW_FOR_A_PLACE)
        if op.name == "store":
            value = self.cheap_for_a_lane(list(op.args), FEW_FOR_A_VALUE)
            return frozenset(j for part in (place, value) if not self.may_be_written(part, i) for j in part)
        through = {int(v.name[1:]) for v in op.attr.index.variables() if v.name[0] == "%"}
        return place if place & through else None

    def may_be_written(self, ops: frozenset[int], before: int) -> bool:
        """Whether one of `ops` loads what a store before the op `before` may have written in place (`schedule/memory.py`); of lanes that are groups, the op
        itself in a lane before."""
        written = {op.attr.index for op in self.body[: before + (self.plan.group > 1)] if op.name == "store" and isinstance(op.attr, Access)}
        return any(isinstance(access := self.body[j].attr, Access) and access.index in written for j in ops)

    def cheap_for_a_lane(self, roots: list[int], most: int) -> frozenset[int]:
        """What `roots` need in lanes; nothing where that is costly, or more than `most` operations."""
        plan, found, pending = self.plan, set[int](), list(roots)
        while pending:
            i = pending.pop()
            op = self.body[i]
            if i in found or op.name == "constant" or not plan.deep[i]:
                continue
            above = plan.shape == "column" and plan.level[i] == "x"  # may stand in an array over the tile
            if op.name in COSTLY or op.name in ("reduce", "scan") or i in plan.kept or i in plan.crossed or above:
                return frozenset()
            found.add(i)
            pending += needs(op)
        return frozenset(found) if len(found) <= most else frozenset()

    def each_lane(self, i: int) -> list[str]:
        """The statements of such a store or load, with what it computes for each lane l."""
        lane, op, own = self.plan.lane, self.body[i], self.by_lane[i]
        assert lane is not None
        one = copy.copy(self)
        one.names = list(self.names)
        for j in self.from_vectors(i):
            one.names[j] = f"({self.names[j]}[l] != 0)" if self.body[j].dtype == torch.bool else f"{self.names[j]}[l]"
        last = one.scalar_store(op) if op.name == "store" else f"return {one.scalar_load(op, op.attr)};"  # type: ignore[arg-type]
        begin = "" if op.name == "store" else f"const auto {self.names[i]} = gather_{'bool_' if op.dtype == torch.bool else ''}"
        lines = [*(one.scalar(j) for j in sorted(own)), last]
        return [f"{begin}each_lane<W>({lane.var.name}, [&](i64 {lane.var.name}, int l) BODY {{", *(f"  {line}" for line in lines), "}, on);"]

    def from_vectors(self, i: int) -> set[int]:
        """The values in lanes of which such a store or load takes out each lane's."""
        own = self.by_lane[i]
        return {a for j in (*own, i) for a in needs(self.body[j]) if a not in own and self.plan.deep[a] and self.body[a].name != "constant"}

    def block(self, i: int) -> str:
        """The declaration of the block that a crossed op goes through: steps by lanes."""
        access: Access = self.body[i].attr  # type: ignore[assignment]
        return f"alignas(64) {memory_type(self.params[access.buffer][1])} {self.names[i]}_block[{self.plan.block * self.plan.tile}];"

    def corner(self, i: int) -> tuple[str, str]:
        """Of a crossed op: the address of a block's first element, and how far lanes are apart in memory."""
        access: Access = self.body[i].attr  # type: ignore[assignment]
        lane, (across,) = self.plan.lane, self.plan.middle
        assert lane is not None
        starts = {lane.var: "t0", across.var: "s0"}
        at = render(access.index, lambda v: starts.get(v, v.name), FLOORS)
        return f"{self.params[access.buffer][0]} + {at}", str(access.index.stride(lane.var))

    def block_in(self, i: int) -> str:
        corner, apart = self.corner(i)
        return f"{self.turn}({self.names[i]}_block, {self.plan.tile}, {corner}, {apart}, s1 - s0, t1 - t0);"

    def block_out(self, i: int) -> str:
        corner, apart = self.corner(i)
        return f"{self.turn}({corner}, {apart}, {self.names[i]}_block, {self.plan.tile}, t1 - t0, s1 - s0);"

    @property
    def turn(self) -> str:
        """The function that transposes a block."""
        return f"transposed_whole<W, {self.plan.block}, {self.plan.tile}>" if self.plan.strips else "transposed<W>"

    def in_block(self, i: int) -> str:
        """Where in the block lies what a crossed op accesses."""
        lane, (across,) = self.plan.lane, self.plan.middle
        assert lane is not None
        return f"{self.names[i]}_block + ({across.var.name} - s0) * {self.plan.tile} + ({lane.var.name} - t0)"

    def lane_index(self, op: Op, index: Index) -> str:
        kind = value_type(op.dtype)
        lane = self.plan.lane
        assert lane is not None
        through = any(v.name[0] == "%" and self.plan.deep[int(v.name[1:])] for v in index.variables())
        stride = index.stride(lane.var)
        if stride is None or through:
            return f"gather<W>([&](int l) {{ return ({kind})({self.index(index, 'l')}); }}, on)"
        return f"iota<W>(({kind})({self.index(index)}), ({kind}){stride})"

    def lane_store(self, op: Op) -> str:
        """Of neighbouring elements."""
        access: Access = op.attr  # type: ignore[assignment]
        value = self.full(op.args[0])
        if access.added:
            one_decision = access.mask is None or not self.plan.deep[access.mask]
            value = f"{self.lane_load(replace(access, mask=None) if one_decision else access)} + {value}"
        if access.mask is None:
            return f"store({self.address(access)}, {value}, on);"
        if not self.plan.deep[access.mask]:
            return f"if ({self.use(access.mask)}) store({self.address(access)}, {value}, on);"
        return f"store_if({self.full(access.mask)}, {self.address(access)}, {value}, on);"

    def full(self, i: int) -> str:
        """Value i in lanes."""
        return self.use(i) if self.plan.deep[i] else f"all<W>({self.use(i)})"

    def one(self, i: int) -> str:
        """Value i in lane l."""
        return f"{self.use(i)}[l]" if self.plan.deep[i] else self.use(i)
