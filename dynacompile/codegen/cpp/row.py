"""Reductions along the lanes: for each point, passes over its row."""

from __future__ import annotations

from dynacompile.codegen.cpp.accumulate import Accumulators
from dynacompile.codegen.cpp.frame import Frame, decode
from dynacompile.codegen.cpp.plan import COSTLY, MOST_CHUNKS, WIDEST, closure, padded, roots
from dynacompile.codegen.cpp.render import value_type
from dynacompile.codegen.cpp.scan import Scans, steps_loop
from dynacompile.codegen.cpp.values import FEW_FOR_A_PLACE
from dynacompile.errors import VerifyError
from dynacompile.ir.body import needs
from dynacompile.ir.index import Extent, hint

BLOCK = 16  # vectors whose floats an accumulator takes in one by one: the sums of more are added up with what their own roundings lose
NARROWEST = 4  # lanes of the smallest vectors of any target
MANY = 64  # short rows that are worth accumulators in turn
HEAVY = 6  # costly work per element above which one set of accumulators keeps the units busy


class Row:
    def __init__(self, frame: Frame):
        self.frame, self.plan, self.out, self.values = frame, frame.plan, frame.out, frame.values
        self.body = frame.body
        self.ready: set[int] = set()  # kept values computed so far
        self.scans = Scans(frame, [])  # of the pass that is being written

    def emit(self) -> None:
        plan = self.plan
        passes = [self.roots(k) for k in range(plan.passes)]
        for k, starts in enumerate(passes):
            self.structs(k, Accumulators(self.frame, [i for i in starts if self.body[i].name == "reduce"]))
        assert plan.lane is not None
        scratch = self.frame.scratch([(self.kept_type(i), f"{self.values.names[i]}_row") for i in sorted(plan.kept)], padded(plan.lane.size), plan.steps)
        with self.frame.tasks(scratch):
            self.fetch_next()
            for k, starts in enumerate(passes):
                self.emit_pass(k, starts)
            stores = [i for i, op in enumerate(self.body) if op.name == "store" and plan.level[i] == "x"]
            self.frame.statements(self.frame.scalars(stores, set()))

    def fetch_next(self) -> None:
        """Asks for the rows at places that the next point reads: nothing else tells where they are, and the processor runs ahead by less than a row's work."""
        plan, out, lane = self.plan, self.out, self.plan.lane
        if lane is None or len(plan.outer) != 1 or plan.middle or plan.listed or plan.tasks == 1:
            return
        asked: set[str] = set()
        for i, op in enumerate(self.body):
            if not self.at_place(i) or not self.values.consecutive(op.attr) or op.attr.mask is not None:  # type: ignore[arg-type,union-attr]
                continue
            needed = [j for j in closure(plan.nest, needs(op), frozenset()) if self.body[j].name != "constant"]
            address = self.values.address(op.attr)  # type: ignore[arg-type]
            if address in asked or len(needed) > FEW_FOR_A_PLACE or any(self.body[j].name == "reduce" or plan.level[j] == "r" for j in needed):
                continue
            asked.add(address)
            out.open(f"if (task + 1 < {'task1' if plan.wide else plan.tasks})")
            out.line(f"const i64 {plan.outer[0].var.name} = task + 1, {lane.var.name} = 0;")
            self.frame.statements(needed)
            out.line(f"fetch({address}, {lane.size});")
            out.close()

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
        if self.is_long(acc, 1):
            self.total(k, acc)

    def total(self, k: int, acc: Accumulators) -> None:
        """Total: results of any number of stretches, one per lane, with what the additions of floats lose by rounding beside the sums."""
        out = self.out
        out.open(f"struct Total{k} : Lanes{k}")
        for i in acc.reduces:
            if acc.is_float_sum(i):
                out.line(f"decltype(all<W>({acc.start(i)})) {acc.name(i)}_lost = all<W>({acc.start(i)});")
        out.open(f"INLINE void take(const Lanes{k}& other)")
        for i in acc.reduces:
            n = acc.name(i)
            if acc.is_float_sum(i):
                out.line(f"auto {n}_exact = exact({n}, {n}_lost);")
                out.line(f"{n}_exact.add(other.{n});")
                out.line(f"{n} = {n}_exact.sum, {n}_lost = {n}_exact.lost;")
            else:
                out.line(f"{n}.merge(other.{n});" if acc.is_place(i) else f"{n} = {acc.combine(i, n, f'other.{n}')};")
        out.close()
        out.open(f"INLINE Part{k} part()")
        for n in (acc.name(i) for i in acc.reduces if acc.is_float_sum(i)):
            out.line(f"{n} = exact({n}, {n}_lost).value();")
        out.line(f"return Lanes{k}::part();")
        out.close()
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
        self.scans = Scans(frame, [i for i in lane if i not in self.ready], k)
        self.scans.declare()
        if self.scans.reverse and acc.reduces:
            raise VerifyError("schedule", "a kernel for CPUs reduces what it scans from the end")
        if plan.split:
            if acc.reduces:
                out.line(f"Part{k} parts{k}[{plan.chunks if isinstance(plan.chunks, int) else MOST_CHUNKS}];")
            out.open(f"{plan.parallel_chunks}[&](i64 c0, i64 c1)")
            out.open("for (i64 c = c0; c < c1; ++c)")
            out.line(f"const i64 b = c * {plan.step}, e = b + {plan.step} < {plan.chunk_of} ? b + {plan.step} : {plan.chunk_of};")
            self.stretch(k, acc, steps, lane, f"parts{k}[c]", "b", "e", plan.step)
            out.close()
            out.close(");")
            if acc.reduces:
                out.line(f"merge_parts(parts{k}, {plan.chunks});")
                out.line(f"const Part{k}& part{k} = parts{k}[0];")
        elif (
            plan.walked
            and not self.scans
            and self.is_long(acc, self.sets(lane))
            and not plan.middle
            and hint(plan.chunk_of) <= BLOCK * WIDEST * self.sets(lane)
        ):
            self.short_stretch(k, acc, lane)
        else:
            self.stretch(k, acc, steps, lane, f"const Part{k} part{k}", "0", str(plan.chunk_of), plan.chunk_of)
        for i in acc.reduces:
            out.line(f"const {value_type(self.body[i].dtype)} {self.values.names[i]} = {acc.result(i, f'part{k}')};")
        self.ready |= {i for i in lane if i in plan.kept}

    def is_long(self, acc: Accumulators, sets: int) -> bool:
        """Whether more vectors of floats than a block has may enter one of so many accumulators, whatever the target."""
        plan = self.plan
        assert plan.lane is not None
        most, size = plan.step if plan.split else plan.chunk_of, plan.lane.size
        if not isinstance(most, int) or not isinstance(size, int):
            return acc.adds_floats()
        row = -(-(size if plan.middle else most) // (sets * NARROWEST))
        return acc.adds_floats() and (row * most if plan.middle else row) > BLOCK

    def sets(self, lane: list[int]) -> int:
        """How many accumulators take in vectors in turn."""
        assert self.plan.lane is not None
        return self.plan.choice.sets or (1 if self.weight(lane) > HEAVY or self.plan.lane.size < 64 else 4)

    def weight(self, lane: list[int]) -> int:
        return sum(COSTLY.get(self.body[i].name, 0) for i in lane if i not in self.ready)

    def short_stretch(self, k: int, acc: Accumulators, lane: list[int]) -> None:
        """A row that is one block in the example. What sums longer ones is a function of its own, which takes no registers of what runs mostly."""
        assert self.plan.lane is not None
        out, n = self.out, str(self.plan.chunk_of)
        out.open(f"const auto body{k} = [=](i64 {self.plan.lane.var.name}, auto on, auto& a) BODY")
        self.lane_body(lane)
        self.take(acc)
        out.close(";")
        kinds = f"Lanes{k}, {self.sets(lane)}, W, {self.loads(lane)}"
        longer = f"[=]() OUTLINED {{ return blocks<Total{k}, {kinds}, {BLOCK}>(0, {n}, body{k}); }}()"
        out.line(f"const Part{k} part{k} = {n} <= {BLOCK * self.sets(lane)} * W ? unbroken<{kinds}>(0, {n}, body{k}) : {longer};")

    def loads(self, lane: list[int]) -> str:
        return "Ahead" if self.sets(lane) > 1 and not self.plan.split and not any(self.at_place(i) for i in lane) else "All"

    def at_place(self, i: int) -> bool:
        """Whether op i reads where a value says, so that nothing is known of what is read next."""
        access = self.body[i].attr
        return self.body[i].name == "load" and any(v.name[0] == "%" for v in access.index.variables())  # type: ignore[union-attr]

    def stretch(self, k: int, acc: Accumulators, steps: list[int], lane: list[int], part: str, begin: str, end: str, most: Extent) -> None:
        """Accumulates elements begin..end of the lane axis, or, with other r axes, their steps begin..end, `most` of them, into `part`."""
        plan, out, frame = self.plan, self.out, self.frame
        assert plan.lane is not None
        name, size = plan.lane.var.name, plan.lane.size
        kinds = f"Lanes{k}, {self.sets(lane)}, W"
        if acc.reduces and not plan.middle:
            kinds += f", {self.loads(lane)}"
            bound = f", {most}, {'false' if plan.split else 'true'}" if isinstance(most, int) else ""
            form = f"blocks<Total{k}, {kinds}, {BLOCK}{bound}>" if self.is_long(acc, self.sets(lane)) else f"unbroken<{kinds}>"
            out.open(f"{part} = {form}({begin}, {end}, [&](i64 {name}, auto on, auto& a) BODY")
        elif acc.reduces:
            form = self.form_of_steps(k, acc, lane, begin, end, most)
            copies = "=" if "any_steps" in form and not self.scans else "&"
            out.open(f"{part} = {form}, [{copies}](i64 s, i64 from, i64 to, auto& sets) BODY")
            decode(out, plan.middle, "s")
            frame.statements(steps)
            out.open(f"each_into<W, {self.loads(lane)}>(from, to, sets, [&](i64 {name}, auto on, auto& a) BODY")
        else:
            if plan.middle:
                out.open(steps_loop(begin, end, self.scans.reverse))
                decode(out, plan.middle, "s")
                frame.statements(steps)
                begin, end = "0", str(size)
            out.open(f"{'each_back<W>' if self.scans.reverse else frame.each()}({begin}, {end}, [&](i64 {name}, auto on) BODY")
        self.lane_body(lane)
        self.take(acc)
        out.close(");")
        if plan.middle:
            out.close(");" if acc.reduces else "")

    def form_of_steps(self, k: int, acc: Accumulators, lane: list[int], begin: str, end: str, most: Extent) -> str:
        """The start of a call that accumulates steps of rows."""
        assert self.plan.lane is not None
        sets, size = self.sets(lane), self.plan.lane.size
        kinds = f"Lanes{k}, {sets}, W"
        if not self.is_long(acc, sets):
            return f"unbroken_steps<{kinds}>({begin}, {end}, {f'Length<{size}>()' if isinstance(size, int) else size}"
        if not isinstance(size, int) or not isinstance(most, int):
            return f"blocks_of_any_steps<Total{k}, {kinds}, {4 * BLOCK if sets == 1 else BLOCK}>({begin}, {end}, {size}"
        if sets == 1 and self.weight(lane) <= HEAVY and most >= MANY:
            return f"blocks_of_short_steps<Total{k}, Lanes{k}, W, {BLOCK}, {most}, {size}>({begin}, {end}"
        exact = "false" if self.plan.split else "true"  # the last chunk of several may be shorter
        return f"blocks_of_steps<Total{k}, {kinds}, {BLOCK}, {most}, {exact}, {size}>({begin}, {end}"

    def lane_body(self, lane: list[int]) -> None:
        plan, out, values = self.plan, self.out, self.values
        assert plan.lane is not None
        base = plan.lane.var.name if not plan.middle else f"s * {padded(plan.lane.size)} + {plan.lane.var.name}"
        for i in lane:
            if i in self.ready:
                out.line(f"const auto {values.names[i]} = get<W>({values.names[i]}_row + {base});")
                continue
            for line in [self.scans.along_lanes(i)] if self.body[i].name == "scan" else values.lanes(i):
                out.line(line)
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
