"""Reductions along the lanes: for each point, passes over its row."""

from __future__ import annotations

from dynacompile.codegen.cpp.accumulate import Accumulators
from dynacompile.codegen.cpp.frame import Frame, decode
from dynacompile.codegen.cpp.plan import COSTLY, MOST_CHUNKS, padded, roots
from dynacompile.codegen.cpp.render import value_type
from dynacompile.ir.index import hint

BLOCK = 64  # steps over short rows whose floats are summed one by one: more are sums of such sums
HEAVY = 6  # costly work per element above which one set of accumulators keeps the units busy


class Row:
    def __init__(self, frame: Frame):
        self.frame, self.plan, self.out, self.values = frame, frame.plan, frame.out, frame.values
        self.body = frame.body
        self.ready: set[int] = set()  # kept values computed so far

    def emit(self) -> None:
        plan = self.plan
        passes = [self.roots(k) for k in range(plan.passes)]
        for k, starts in enumerate(passes):
            self.structs(k, Accumulators(self.frame, [i for i in starts if self.body[i].name == "reduce"]))
        assert plan.lane is not None
        scratch = self.frame.scratch([(self.kept_type(i), f"{self.values.names[i]}_row") for i in sorted(plan.kept)], padded(plan.lane.size), plan.steps)
        with self.frame.tasks(scratch):
            for k, starts in enumerate(passes):
                self.emit_pass(k, starts)
            stores = [i for i, op in enumerate(self.body) if op.name == "store" and plan.level[i] == "x"]
            self.frame.statements(self.frame.scalars(stores, set()))

    def roots(self, k: int) -> list[int]:
        return roots(self.plan.nest, self.plan.level, self.plan.when, self.plan.passes, k)

    def kept_type(self, i: int) -> str:
        kind = value_type(self.body[i].dtype)
        return "i32" if kind == "bool" else kind

    def structs(self, k: int, acc: Accumulators) -> None:
        """Part: results of a stretch of the row; Lanes: the same, one per lane."""
        if not acc.reduces:
            return
        out = self.out
        out.open(f"struct Part{k}")
        for i in acc.reduces:
            out.line(f"{acc.best(i, False) if acc.is_place(i) else value_type(acc.dtype(i))} {acc.name(i)};")
        self.merge(f"Part{k}", acc)
        out.close(";")
        out.open(f"struct Lanes{k}")
        for i in acc.reduces:
            if acc.is_place(i):
                out.line(f"{acc.best(i, True)} {acc.name(i)} = {{all<W>({acc.start(i)}), all<W>({acc.last_place()})}};")
            else:
                out.line(f"decltype(all<W>({acc.start(i)})) {acc.name(i)} = all<W>({acc.start(i)});")
        self.merge(f"Lanes{k}", acc)
        fields = ", ".join(f"across_best({acc.name(i)})" if acc.is_place(i) else f"{acc.across(i)}({acc.name(i)})" for i in acc.reduces)
        out.line(f"INLINE Part{k} part() const {{ return {{{fields}}}; }}")
        out.close(";")

    def merge(self, struct: str, acc: Accumulators) -> None:
        self.out.open(f"INLINE void merge(const {struct}& other)")
        for i in acc.reduces:
            n = acc.name(i)
            self.out.line(f"{n}.merge(other.{n});" if acc.is_place(i) else f"{n} = {acc.combine(i, n, f'other.{n}')};")
        self.out.close()

    def emit_pass(self, k: int, starts: list[int]) -> None:
        plan, out, frame = self.plan, self.out, self.frame
        frame.statements(frame.scalars(starts, self.ready))
        steps, lane = frame.parts(starts, self.ready)
        acc = Accumulators(frame, [i for i in starts if self.body[i].name == "reduce"])
        if plan.walked and acc.reduces:
            self.walk(k, acc, steps, lane, plan.chunk)
        elif plan.chunks == 1 and plan.middle and acc.adds_floats() and not plan.kept and isinstance(plan.chunk_of, int) and plan.chunk_of >= 2 * BLOCK:
            self.walk(k, acc, steps, lane, BLOCK)
        elif plan.walked or plan.chunks == 1:
            self.stretch(k, acc, steps, lane, "0", str(plan.chunk_of))
            if acc.reduces:
                out.line(f"const Part{k} part{k} = fold(a{k});")
        else:
            if acc.reduces:
                out.line(f"Part{k} parts{k}[{plan.chunks if isinstance(plan.chunks, int) else MOST_CHUNKS}];")
            out.open(f"parallel<{'true' if plan.split else 'false'}>({plan.chunks}, [&](i64 c0, i64 c1)")
            out.open("for (i64 c = c0; c < c1; ++c)")
            out.line(f"const i64 b = c * {plan.step}, e = b + {plan.step} < {plan.chunk_of} ? b + {plan.step} : {plan.chunk_of};")
            self.stretch(k, acc, steps, lane, "b", "e")
            if acc.reduces:
                out.line(f"parts{k}[c] = fold(a{k});")
            out.close()
            out.close(");")
            if acc.reduces:
                out.line(f"merge_parts(parts{k}, {plan.chunks});")
                out.line(f"const Part{k}& part{k} = parts{k}[0];")
        for i in acc.reduces:
            out.line(f"const {value_type(self.body[i].dtype)} {self.values.names[i]} = {acc.result(i, f'part{k}')};")
        self.ready |= {i for i in lane if i in plan.kept}

    def walk(self, k: int, acc: Accumulators, steps: list[int], lane: list[int], unit: int) -> None:
        """As many chunks as there are, one after the other. Where the example has one, what sums the others is a function of its own, which takes no
        registers of what runs mostly."""
        plan, out = self.plan, self.out
        n = str(plan.chunk_of)
        out.open(f"const auto part_of{k} = [=](i64 b, i64 e) BODY")
        self.stretch(k, acc, steps, lane, "b", "e")
        out.line(f"return fold(a{k});")
        out.close(";")
        out.line(f"Part{k} part{k} = part_of{k}(0, {n} < {unit} ? {n} : {unit});")
        whole = f"part{k}" if hint(plan.chunk_of) > unit else "whole"
        chunks = f"for (i64 b = {unit}; b < {n}; b += {unit}) {whole}.merge(part_of{k}(b, b + {unit} < {n} ? b + {unit} : {n}));"
        if whole == "whole":
            chunks = f"if ({n} > {unit}) part{k} = [=](Part{k} whole) OUTLINED {{ {chunks} return whole; }}(part{k});"
        out.line(chunks)

    def stretch(self, k: int, acc: Accumulators, steps: list[int], lane: list[int], begin: str, end: str) -> None:
        """Accumulates elements begin..end of the lane axis, or, with other r axes, their steps begin..end."""
        plan, out, frame = self.plan, self.out, self.frame
        assert plan.lane is not None
        weight = sum(COSTLY.get(self.body[i].name, 0) for i in lane if i not in self.ready)
        sets = plan.choice.sets or (1 if weight > HEAVY or plan.lane.size < 64 else 4)
        if acc.reduces:
            out.line(f"Lanes{k} a{k}[{sets}];")
        if plan.middle:
            out.open(f"for (i64 s = {begin}; s < {end}; ++s)")
            decode(out, plan.middle, "s")
            frame.statements(steps)
            begin, end = "0", str(plan.lane.size)
        name = plan.lane.var.name
        if acc.reduces:
            on = "Ahead" if sets > 1 and not plan.split else "All"
            out.open(f"each_into<W, {on}>({begin}, {end}, a{k}, [&](i64 {name}, auto on, auto& a) BODY")
        else:
            out.open(f"{frame.each()}({begin}, {end}, [&](i64 {name}, auto on) BODY")
        self.lane_body(lane)
        self.take(acc)
        out.close(");")
        if plan.middle:
            out.close()

    def lane_body(self, lane: list[int]) -> None:
        plan, out, values = self.plan, self.out, self.values
        assert plan.lane is not None
        base = plan.lane.var.name if not plan.middle else f"s * {padded(plan.lane.size)} + {plan.lane.var.name}"
        for i in lane:
            if i in self.ready:
                out.line(f"const auto {values.names[i]} = get<W>({values.names[i]}_row + {base});")
                continue
            out.line(values.lanes(i))
            if i in plan.kept:
                out.line(f"put({values.names[i]}_row + {base}, {values.names[i]});")

    def take(self, acc: Accumulators) -> None:
        if any(acc.is_place(i) for i in acc.reduces):
            self.out.line(f"const auto place = {acc.position()};")
        for i in acc.reduces:
            field = f"a.{acc.name(i)}"
            if acc.is_place(i):
                self.out.line(f"{field}.take(on.pick({acc.entering(i)}, {field}.value), on.pick(place, {field}.at));")
            else:
                self.out.line(f"{field} = on.pick({acc.combine(i, field, acc.entering(i))}, {field});")
