"""Reductions across the lanes: for each tile of an x axis, passes over r with accumulators in arrays."""

from __future__ import annotations

from dynacompile.codegen.cpp.accumulate import Accumulators
from dynacompile.codegen.cpp.frame import Frame, decode
from dynacompile.codegen.cpp.plan import COSTLY, closure, roots
from dynacompile.codegen.cpp.render import value_type
from dynacompile.codegen.cpp.scan import Scans, steps_loop
from dynacompile.errors import VerifyError
from dynacompile.ir.body import needs
from dynacompile.ir.loops import Access

CHEAP = ("load", "index", "constant", "reduce", "store")
BLOCK = 32  # steps whose floats an accumulator takes in one by one: the sums of more are added up with what their own roundings lose
ROWS = 4  # steps whose values are added up before an accumulator takes them in: it is loaded, stored and rounded once for so many steps
BLOCK_OF_ROWS = 64  # steps as BLOCK, where an accumulator takes them in so
FEW_OPS = 12  # ops in lanes that are written once for each of those
IN_REGISTERS = 128  # elements of accumulators over a tile; as a local that nothing else may alias, the compiler keeps so many in registers


class Column:
    def __init__(self, frame: Frame):
        self.frame, self.plan, self.out, self.values = frame, frame.plan, frame.out, frame.values
        self.body = frame.body
        self.ready: set[int] = set()  # r-level values kept so far
        self.columns: set[int] = set()  # x-level values that stand in arrays over the tile
        self.accumulators = [
            Accumulators(frame, [i for i in roots(self.plan.nest, self.plan.level, self.plan.when, self.plan.passes, k) if self.body[i].name == "reduce"])
            for k in range(self.plan.passes)
        ]
        self.scans = Scans(frame, [])  # of the pass that is being written
        self.pass_of = {i: k for k, acc in enumerate(self.accumulators) for i in acc.reduces}

    def emit(self) -> None:
        plan, out, frame = self.plan, self.out, self.frame
        for k, acc in enumerate(self.accumulators):
            self.struct(k, acc)
        wanted = [self.x_values(k) for k in range(plan.passes)]
        stores = [i for i, op in enumerate(self.body) if op.name == "store" and plan.level[i] == "x"]
        held = self.held(stores)
        scratch = frame.scratch([(self.kept_type(i), f"{self.values.names[i]}_tile") for i in sorted(plan.kept)], plan.tile, plan.steps)
        scratch += [f"alignas(64) {self.kept_type(i)} {self.values.names[i]}_x[{plan.tile}];" for i in sorted(held.union(*wanted))]
        with frame.tasks(scratch):
            for k in range(plan.passes):
                self.emit_pass(k, sorted(wanted[k] - self.columns))
            self.across_tile([], sorted(held - self.columns))
            self.across_tile(stores, ())
            if plan.split:
                for k, acc in enumerate(self.accumulators):
                    if acc.reduces and plan.chunks != 1:
                        out.line(f"free(parts{k});")

    def kept_type(self, i: int) -> str:
        kind = value_type(self.body[i].dtype)
        return "i32" if kind == "bool" else kind

    def field_type(self, acc: Accumulators, i: int) -> str:
        kind = value_type(acc.dtype(i))
        return "i32" if kind == "bool" else kind

    def x_values(self, k: int) -> set[int]:
        """x-level values in lanes that pass k uses, and that are worth an array."""
        starts = roots(self.plan.nest, self.plan.level, self.plan.when, self.plan.passes, k)
        needed = closure(self.plan.nest, starts, frozenset())
        users = [i for i in needed if self.plan.level[i] == "r" or i in starts]
        return {a for i in users for a in needs(self.body[i]) if self.plan.level[a] == "x" and self.plan.deep[a] and not self.is_cheap(a)}

    def held(self, stores: list[int]) -> set[int]:
        """The values of stores that several lanes make, those of one group: all are computed before the first is stored, which may be in place, and the
        group's next lanes would read it."""
        if self.plan.group == 1:
            return set()
        return {
            a
            for i in stores
            for a in needs(self.body[i])
            if self.plan.level[a] == "x" and self.plan.deep[a] and self.body[a].name not in ("reduce", "constant")
        }

    def is_cheap(self, i: int) -> bool:
        """Whether a value is as good computed again as read from an array; what is gathered by a division is not."""
        op = self.body[i]
        return op.name in CHEAP and not (op.name == "load" and self.values.stride(op.attr) is None)  # type: ignore[arg-type]

    def struct(self, k: int, acc: Accumulators) -> None:
        if not acc.reduces:
            return
        out, tile = self.out, self.plan.tile
        out.open(f"struct Part{k}")
        for i in acc.reduces:
            out.line(f"alignas(64) {self.field_type(acc, i)} {acc.name(i)}[{tile}];")
            if acc.is_place(i):
                out.line(f"alignas(64) {acc.place} {acc.name(i)}_at[{tile}];")
        out.open("void clear()")
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        for i in acc.reduces:
            out.line(f"put({acc.name(i)} + t, all<W>({acc.start(i)}));")
            if acc.is_place(i):
                out.line(f"put({acc.name(i)}_at + t, all<W>({acc.last_place()}));")
        out.close(");")
        out.close()
        out.open(f"void merge(const Part{k}& other)")
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        self.merge(acc, acc.reduces)
        out.close(");")
        out.close()
        out.close(";")
        if self.is_long(acc, 2 * BLOCK):
            self.total(k, acc)

    def is_long(self, acc: Accumulators, steps: int) -> bool:
        """Whether floats of so many steps, or more, may enter the same accumulators."""
        most = self.plan.step if self.plan.split else self.plan.steps
        return acc.adds_floats() and not (isinstance(most, int) and most < steps)

    def total(self, k: int, acc: Accumulators) -> None:
        """Part: of any number of parts, with what the additions of floats lose by rounding beside the sums."""
        out, tile = self.out, self.plan.tile
        sums = [acc.name(i) for i in acc.reduces if acc.is_float_sum(i)]
        others = [i for i in acc.reduces if not acc.is_float_sum(i)]
        out.open(f"struct Total{k} : Part{k}")
        for i in acc.reduces:
            if acc.is_float_sum(i):
                out.line(f"alignas(64) {self.field_type(acc, i)} {acc.name(i)}_lost[{tile}];")
        out.open("void clear()")
        out.line(f"Part{k}::clear();")
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        for i in acc.reduces:
            if acc.is_float_sum(i):
                out.line(f"put({acc.name(i)}_lost + t, all<W>({acc.start(i)}));")
        out.close(");")
        out.close()
        out.open(f"void take(const Part{k}& other)")
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        for n in sums:
            out.line(f"auto {n}_exact = exact(get<W>({n} + t), get<W>({n}_lost + t));")
            out.line(f"{n}_exact.add(get<W>(other.{n} + t));")
            out.line(f"put({n} + t, {n}_exact.sum);")
            out.line(f"put({n}_lost + t, {n}_exact.lost);")
        self.merge(acc, others)
        out.close(");")
        out.close()
        out.open("void settle()")
        out.open(f"each<W>(0, {tile}, [&](i64 t, auto) BODY")
        for n in sums:
            out.line(f"put({n} + t, exact(get<W>({n} + t), get<W>({n}_lost + t)).value());")
        out.close(");")
        out.close()
        out.close(";")

    def merge(self, acc: Accumulators, reduces: list[int]) -> None:
        """The accumulators take in those of `other`, in lanes at t."""
        for i in reduces:
            n = acc.name(i)
            if acc.is_place(i):
                self.take(acc, i, "", "t", f"get<W>(other.{n} + t)", f"get<W>(other.{n}_at + t)")
            else:
                self.out.line(f"put({n} + t, {acc.combine(i, f'get<W>({n} + t)', f'get<W>(other.{n} + t)')});")

    def take(self, acc: Accumulators, i: int, part: str, at: str, value: str, place: str) -> None:
        n = f"{part}{acc.name(i)}"
        self.out.open("")
        self.out.line(f"{acc.best(i, True)} best = {{get<W>({n} + {at}), get<W>({n}_at + {at})}};")
        self.out.line(f"best.take({value}, {place});")
        self.out.line(f"put({n} + {at}, best.value);")
        self.out.line(f"put({n}_at + {at}, best.at);")
        self.out.close()

    def emit_pass(self, k: int, fresh: list[int]) -> None:
        plan, out, frame = self.plan, self.out, self.frame
        if fresh:
            self.across_tile([], fresh)
        starts = roots(plan.nest, plan.level, plan.when, plan.passes, k)
        acc = self.accumulators[k]
        given = self.ready | self.columns
        frame.statements(frame.scalars(starts, given))
        steps, lane = frame.parts(starts, given)
        self.scans = Scans(frame, [i for i in lane if i not in given], k)
        if self.scans:
            for kind, name in self.scans.arrays():
                out.line(f"alignas(64) {kind} {name}[{plan.tile}];")
            self.scans.clear(plan.tile)
        walks = self.is_long(acc, 2 * self.block(acc, starts, steps, lane))
        if self.scans.reverse and acc.reduces:
            raise VerifyError("schedule", "a kernel for CPUs reduces what it scans from the end")
        if acc.reduces and plan.split and plan.chunks != 1:
            out.line(f"auto* parts{k} = (Part{k}*)aligned_alloc(64, {plan.chunks} * sizeof(Part{k}));")
        elif acc.reduces:
            out.line(f"{'Total' if walks else 'Part'}{k} part{k};")
            if not walks:
                out.line(f"part{k}.clear();")
        if plan.split and plan.chunks != 1:
            self.chunks(k, acc, starts, steps, lane, walks)
        elif walks:
            self.walk(k, acc, starts, steps, lane, "0", str(plan.steps), f"(Part{k}&)part{k}")
        else:
            self.stretch(k, acc, starts, steps, lane, f"part{k}.", "0", str(plan.steps))
        if plan.group > 1:
            self.combine_groups(k, acc)
        self.ready |= {i for i in lane if i in plan.kept}

    def combine_groups(self, k: int, acc: Accumulators) -> None:
        """The accumulators of each group of lanes become their combination."""
        out, group = self.out, self.plan.group
        if not acc.reduces:
            return
        out.open(f"for (i64 t = 0; t < t1 - t0; t += {group})")
        for i in acc.reduces:
            n, field = acc.name(i), f"part{k}.{acc.name(i)}"
            out.line(f"auto {n}_all = {field}[t];")
            out.line(f"for (i64 l = 1; l < {group}; ++l) {n}_all = {acc.combine(i, f'{n}_all', f'{field}[t + l]')};")
            out.line(f"for (i64 l = 0; l < {group}; ++l) {field}[t + l] = {n}_all;")
        out.close()

    def block(self, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int]) -> int:
        return BLOCK_OF_ROWS if self.takes_rows_at_once(acc, starts, steps, lane) else BLOCK

    def walk(self, k: int, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int], begin: str, end: str, single: str) -> None:
        """Sums of floats in as many blocks as there are, one after the other. Where a call has a single block, its sums are all there is, and go where `single`
        says: they need no additions that know what they lose."""
        out, unit = self.out, self.block(acc, starts, steps, lane)
        local = len(acc.reduces) * self.plan.tile <= IN_REGISTERS
        out.line(f"const bool single{k} = {begin} < {end} && {end} - {begin} <= {unit};")
        out.line(f"if (!single{k}) part{k}.clear();")
        out.open(f"for (i64 b{k} = {begin}; b{k} < {end}; b{k} += {unit})")
        if local:
            out.line(f"Part{k} block;")
        else:
            out.line(f"Part{k} own;")
            out.line(f"Part{k}& block = single{k} ? {single} : own;")
        out.line("block.clear();")
        self.stretch(k, acc, starts, steps, lane, "block.", f"b{k}", f"(b{k} + {unit} < {end} ? b{k} + {unit} : {end})")
        if local:
            out.line(f"if (single{k}) {single} = block;")
        out.line(f"{'else' if local else f'if (!single{k})'} part{k}.take(block);")
        out.close()
        out.line(f"if (!single{k}) part{k}.settle();")

    def chunks(self, k: int, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int], walks: bool) -> None:
        plan, out = self.plan, self.out
        apart = walks or len(acc.reduces) * plan.tile <= IN_REGISTERS
        out.open(f"{plan.parallel_chunks}[=](i64 c0, i64 c1)")  # copies, which stores can not change
        out.open("for (i64 c = c0; c < c1; ++c)")
        out.line(f"const i64 b = c * {plan.step}, e = b + {plan.step} < {plan.steps} ? b + {plan.step} : {plan.steps};")
        if acc.reduces:
            out.line(f"{'Total' if walks else 'Part'}{k} part{k};" if apart else f"Part{k}& part{k} = parts{k}[c];")
            if not walks:
                out.line(f"part{k}.clear();")
        if walks:
            self.walk(k, acc, starts, steps, lane, "b", "e", f"parts{k}[c]")
        else:
            self.stretch(k, acc, starts, steps, lane, f"part{k}.", "b", "e")
        if acc.reduces and apart:
            out.line(f"{f'if (!single{k}) ' if walks else ''}parts{k}[c] = part{k};")
        out.close()
        out.close(");")
        if acc.reduces:
            out.line(f"merge_parts(parts{k}, {plan.chunks});")
            out.line(f"Part{k}& part{k} = parts{k}[0];")

    def stretch(self, k: int, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int], part: str, begin: str, end: str) -> None:
        with self.frame.blocks([i for i in lane if i not in self.ready | self.columns], begin, end, self.scans.reverse) as (first, last):
            self.stretch_of_block(k, acc, starts, steps, lane, part, first, last)

    def stretch_of_block(self, k: int, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int], part: str, begin: str, end: str) -> None:
        plan, out, frame = self.plan, self.out, self.frame
        assert plan.lane is not None
        at = f"{plan.lane.var.name} - t0"
        several = self.takes_rows_at_once(acc, starts, steps, lane)
        if several:
            out.open("")
            out.line(f"i64 s = {begin};")
            out.open(f"for (; s + {ROWS} <= {end}; s += {ROWS})")
            self.rows(acc, starts, lane, part, at)
            out.close()
        out.open(f"for (; s < {end}; ++s)" if several else steps_loop(begin, end, self.scans.reverse))
        decode(out, plan.middle, "s")
        frame.statements(steps)
        needed = self.needed(acc, starts, lane)
        if needed is not None:
            out.line(f"if (!{self.values.use(needed)}) continue;")
        with frame.lane_loop():
            self.reduced(starts, lane, at)
            self.lane_body(lane, at)
            if any(acc.is_place(i) for i in acc.reduces):
                out.line(f"const auto place = {acc.position()};")
            for i in acc.reduces:
                n = f"{part}{acc.name(i)} + ({at})"
                if acc.is_place(i):
                    self.take(acc, i, part, f"({at})", acc.entering(i), "place")
                else:
                    out.line(f"put({n}, {acc.combine(i, f'get<W>({n})', acc.entering(i))});")
        out.close()
        if several:
            out.close()

    def takes_rows_at_once(self, acc: Accumulators, starts: list[int], steps: list[int], lane: list[int]) -> bool:
        """Whether what enters the accumulators is so cheap that it may be written once for each of ROWS steps."""
        plan = self.plan
        cheap = len(lane) <= FEW_OPS and not any(self.body[i].name in COSTLY or i in plan.kept for i in lane)
        sums = acc.reduces == starts and not any(acc.is_place(i) for i in starts)
        apart = len(plan.middle) == 1 and not steps and self.needed(acc, starts, lane) is None
        enough = not isinstance(plan.steps, int) or plan.steps >= 2 * ROWS
        return cheap and sums and apart and enough and (acc.adds_floats() or len(starts) * plan.tile > IN_REGISTERS)

    def rows(self, acc: Accumulators, starts: list[int], lane: list[int], part: str, at: str) -> None:
        """ROWS steps, in pairs, for each vector of the tile."""
        out = self.out
        with self.frame.lane_loop():
            self.reduced(starts, lane, at)
            for i in acc.reduces:
                out.line(f"auto {acc.name(i)}_sum = get<W>({part}{acc.name(i)} + ({at}));")
                out.line(f"decltype({acc.name(i)}_sum) {acc.name(i)}_pair[2];")
            for row in range(ROWS):
                out.open("")
                decode(out, self.plan.middle, f"s + {row}")
                self.lane_body(lane, at)
                for i in acc.reduces:
                    pair, value = f"{acc.name(i)}_pair[{row // 2}]", acc.entering(i)
                    out.line(f"{pair} = {acc.combine(i, pair, value) if row % 2 else value};")
                out.close()
            for i in acc.reduces:
                n = acc.name(i)
                out.line(f"put({part}{n} + ({at}), {acc.combine(i, f'{n}_sum', '(' + acc.combine(i, f'{n}_pair[0]', f'{n}_pair[1]') + ')')});")

    def needed(self, acc: Accumulators, starts: list[int], lane: list[int]) -> int | None:
        """A condition on whole steps without which a step adds nothing to any result, and stores nothing; None where there is none."""
        if any(i in self.plan.kept for i in lane) or self.scans:
            return None
        found: set[int] = set()
        for i in starts:
            access = self.body[i].attr
            if isinstance(access, Access):
                if access.mask is None or self.plan.deep[access.mask]:
                    return None
                found.add(access.mask)
        for i in acc.reduces:
            op = self.body[self.body[i].args[0]]
            if op.name != "where" or acc.is_place(i) or self.plan.deep[op.args[0]] or self.values.use(op.args[2]) != acc.start(i):
                return None
            found.add(op.args[0])
        return found.pop() if len(found) == 1 else None

    def reduced(self, starts: list[int], lane: list[int], at: str) -> None:
        """Results of earlier passes that the ops in lanes use."""
        used = {a for i in [*lane, *(s for s in starts if self.body[s].name == "reduce")] if i not in self.ready | self.columns for a in needs(self.body[i])}
        for i in sorted(a for a in used if self.body[a].name == "reduce"):
            k = self.pass_of[i]
            acc = self.accumulators[k]
            if acc.is_place(i):
                self.out.line(f"const auto {self.values.names[i]} = convert<i64>(get<W>(part{k}.{acc.name(i)}_at + ({at})));")
            else:
                self.out.line(f"const auto {self.values.names[i]} = get<W>(part{k}.{acc.name(i)} + ({at}));")

    def lane_body(self, lane: list[int], at: str) -> None:
        plan, out, values = self.plan, self.out, self.values
        for i in lane:
            n = values.names[i]
            if i in self.ready:
                out.line(f"const auto {n} = get<W>({n}_tile + s * {plan.tile} + ({at}));")
            elif i in self.columns:
                out.line(f"const auto {n} = get<W>({n}_x + ({at}));")
            else:
                for line in self.scans.across_lanes(i, at) if self.body[i].name == "scan" else values.lanes(i):
                    out.line(line)
                if i in plan.kept:
                    out.line(f"put({n}_tile + s * {plan.tile} + ({at}), {n});")

    def across_tile(self, stores: list[int], fresh: list[int] | tuple[int, ...]) -> None:
        """One walk over the tile for x-level stores, or for x-level values that a pass wants in arrays."""
        frame, out = self.frame, self.out
        assert self.plan.lane is not None
        starts = [*stores, *fresh]
        if not starts:
            return
        at = f"{self.plan.lane.var.name} - t0"
        scalars = frame.scalars(starts, self.columns)
        frame.statements(scalars)
        _, lane = frame.parts(starts, self.columns)
        if not lane:
            return
        with frame.lane_loop():
            self.reduced([], lane, at)
            self.lane_body(lane, at)
            for i in fresh:
                out.line(f"put({self.values.names[i]}_x + ({at}), {self.values.names[i]});")
        self.columns |= set(fresh)
