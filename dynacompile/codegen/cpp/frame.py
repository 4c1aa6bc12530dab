"""What all shapes of kernels share: the loop over tasks, the split of ops into scopes, the loop over lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from dynacompile.codegen.cpp.plan import Plan, closure
from dynacompile.codegen.cpp.values import Text, Values
from dynacompile.ir.body import needs
from dynacompile.ir.divisions import index_of
from dynacompile.ir.index import Extent, Index, Var, extent
from dynacompile.ir.loops import Axis

REGISTERS = 256  # elements of a tile whose sums the compiler may keep in registers, where the tile's size is known to it


def decode(out: Text, axes: Sequence[Axis], flat: str) -> None:
    """The axes' variables from their flattened position."""
    for k, axis in enumerate(axes):
        inner = prod(a.size for a in axes[k + 1 :])
        text = flat if inner == 1 else f"{flat} / {inner}"
        out.line(f"const i64 {axis.var.name} = {text if k == 0 else f'{text} % {axis.size}'};")


class Frame:
    """The text of one kernel under construction, with the values that stand outside the innermost loops so far."""

    def __init__(self, plan: Plan, values: Values, out: Text):
        self.plan, self.values, self.out = plan, values, out
        self.body = plan.nest.body
        self.defined: set[int] = set()  # scalars of the task, in scope till its end

    @contextmanager
    def tasks(self, scratch: Iterable[str] = ()) -> Iterator[None]:
        """The loop over points and tiles: the outer x variables, and t0, t1 of the tile, or s0, s1 of the strip, are in scope. scratch: declarations per
        thread. Of a list, the loop is over those tasks of a member that a thread has, task0 to task1."""
        plan, out = self.plan, self.out
        count = plan.tasks
        threads = plan.listed or (plan.wide and not plan.split and count != 1)
        loop = "for (i64 task = task0; task < task1; ++task)"
        if plan.whole_tasks:
            out.open("const auto tasks = [=](i64 task0, i64 task1, bool together)")
        elif count == 1 or plan.listed:
            out.open("")
        elif threads:
            inlined = " BODY" if plan.shape == "row" and plan.walked else ""  # what it captures then stays in registers
            out.open(f"{plan.parallel}{count}, [=](i64 task0, i64 task1){inlined}")
        for line in scratch:
            out.line(line)
        if plan.joined and threads:
            out.line(f"const i64 t0 = task0 * {plan.tile}, t1 = task1 * {plan.tile} < {plan.lane_size} ? task1 * {plan.tile} : {plan.lane_size};")
            yield
            out.close(");")
            return
        counters = self.counters("task0" if threads or plan.whole_tasks else "0") if type(count) is Index else []
        if count != 1:
            out.open(loop if threads or plan.whole_tasks else f"for (i64 task = 0; task < {count}; ++task)")
        self.task_variables(count)
        if self.has_lengths:
            out.open("const auto columns = [&](auto length) BODY")
        yield
        if self.has_lengths:
            out.close(";")
            out.line(f"if (t1 - t0 == {plan.tile}) columns(Length<{plan.tile}>());")
            out.line("else columns(t1 - t0);")
        for line in counters:
            out.line(line)
        if count != 1:
            out.close()
        if plan.whole_tasks:
            out.close(";")
            out.line(f"if (are_enough({count})) parallel<true>({count}, [=](i64 task0, i64 task1) {{ tasks(task0, task1, false); }});")
            out.line(f"else tasks(0, {count}, true);")
        elif count == 1 or plan.listed:
            out.close()
        elif threads:
            out.close(");")

    @staticmethod
    def scratch(arrays: Sequence[tuple[str, str]], length: int | str, count: Extent) -> list[str]:
        """Declarations of arrays (type, name) of length * count elements: on the stack where that is a number."""
        if isinstance(length, int) and isinstance(count, int):
            return [f"alignas(64) {kind} {name}[{length * count}];" for kind, name in arrays]
        memory = [f"const Scratch<{kind}> {name}_memory({length} * {count});" for kind, name in arrays]
        return memory + [f"{kind}* const {name} = {name}_memory.data;" for kind, name in arrays]

    def counters(self, start: str) -> list[str]:
        """Declares counters of the task's axes and tile, which cost no division where their sizes are no numbers; the lines that count on."""
        digits: list[tuple[str, Extent]] = [(f"{a.var.name}_at", a.size) for a in self.plan.outer]
        digits += [("tile", self.plan.tiles)] if self.plan.tiles != 1 else []
        inner: Extent = 1
        lines: list[str] = []
        for k in range(len(digits) - 1, -1, -1):
            name, size = digits[k]
            text = start if start == "0" or inner == 1 else f"{start} / {extent(inner)}"
            self.out.line(f"i64 {name} = {text if k == 0 or start == '0' else f'{text} % {size}'};")
            lines.append(f"++{name};" if k == 0 else f"if (++{name} == {size}) {name} = 0; else continue;")
            inner = inner * size
        return lines

    def task_variables(self, count: Extent) -> None:
        plan, out = self.plan, self.out
        flat = "0" if count == 1 else "task"
        tile = f"task % {plan.tiles}"
        if type(count) is Index:
            tile = "tile"
            for a in plan.outer:
                out.line(f"const i64 {a.var.name} = {a.var.name}_at;")
        else:
            decode(out, plan.outer, flat if plan.tiles == 1 else f"task / {plan.tiles}")
        if plan.lane is None or plan.shape == "row":
            return
        (size, each), at = plan.shared, "s" if plan.strips else "t"
        if plan.tiles == 1:
            out.line(f"constexpr i64 {at}0 = 0, {at}1 = {size};")
        else:
            out.line(f"const i64 {at}0 = {tile} * {each}, {at}1 = {at}0 + {each} < {size} ? {at}0 + {each} : {size};")

    @property
    def has_lengths(self) -> bool:
        """Whether code is made for full tiles and again for others: small tiles of a symbolic size."""
        plan = self.plan
        small = plan.lane is not None and not isinstance(plan.lane.size, int) and plan.tile <= REGISTERS
        return plan.shape == "column" and small and plan.choice.unroll == 1 and not plan.joined

    def each(self) -> str:
        """The loop over lanes of the header, for this choice of unrolling."""
        return "each<W>" if self.plan.choice.unroll == 1 else f"each_of<{self.plan.choice.unroll}, W>"

    @contextmanager
    def lane_loop(self) -> Iterator[None]:
        """The loop over the lanes of a tile."""
        assert self.plan.lane is not None
        each = "each_from<W>(t0, length" if self.has_lengths else f"{self.each()}(t0, t1"
        self.out.open(f"{each}, [&](i64 {self.plan.lane.var.name}, auto on) BODY")
        yield
        self.out.close(");")

    @contextmanager
    def blocks(self, ids: Iterable[int], begin: str, end: str, reverse: bool = False) -> Iterator[tuple[str, str]]:
        """The loop over blocks of steps, where any of the ops `ids` is crossed: what is loaded is transposed before a block's steps, what is stored after
        them. Gives the first step and the end of those that are to be written inside. reverse: the last block first. Of a strip, the loop is over tiles,
        with code for whole blocks, whose sizes are constants in it, and again for others."""
        plan, out, values = self.plan, self.out, self.values
        crossed = [i for i in ids if i in plan.crossed]
        if not crossed:
            yield begin, end
            return
        if plan.strips:
            out.open(f"for (i64 t0 = 0; t0 < {plan.lane_size}; t0 += {plan.tile})")
            out.line(f"const i64 t1 = t0 + {plan.tile} < {plan.lane_size} ? t0 + {plan.tile} : {plan.lane_size};")
            out.open("const auto square = [&](auto rows, auto columns) BODY")
            out.line("const i64 s1 = s0 + rows, t1 = t0 + columns;")
        elif reverse:
            out.open(f"for (i64 s0 = {begin} + ({end} - 1 - {begin}) / {plan.block} * {plan.block}; s0 >= {begin}; s0 -= {plan.block})")
        else:
            out.open(f"for (i64 s0 = {begin}; s0 < {end}; s0 += {plan.block})")
        if not plan.strips:
            out.line(f"const i64 s1 = s0 + {plan.block} < {end} ? s0 + {plan.block} : {end};")
        for i in crossed:
            out.line(values.block(i))
            if self.body[i].name == "load":
                out.line(values.block_in(i))
        yield "s0", "s1"
        for i in crossed:
            if self.body[i].name == "store":
                out.line(values.block_out(i))
        if plan.strips:
            out.close(";")
            out.line(f"if (s1 - s0 == {plan.block} && t1 - t0 == {plan.tile}) square(Length<{plan.block}>(), Length<{plan.tile}>());")
            out.line("else square(s1 - s0, t1 - t0);")
        out.close()

    def parts(self, starts: list[int], given: set[int]) -> tuple[list[int], list[int]]:
        """The r-level scalars and the ops in lanes that `starts` need."""
        needed = [i for i in closure(self.plan.nest, starts, given) if self.body[i].name not in ("constant", "reduce")]
        lane = [i for i in needed if self.plan.deep[i] or self.inside(i)]
        used = self.used_in_vectors(starts)
        return [i for i in needed if i not in lane and self.plan.level[i] == "r"], [i for i in lane if i in used]

    def used_in_vectors(self, starts: list[int]) -> set[int]:
        """`starts` and what they need, without what stores and loads at places compute for each lane by themselves."""
        found: set[int] = set()
        pending = list(starts)
        while pending:
            i = pending.pop()
            if i not in found:
                found.add(i)
                pending += self.values.from_vectors(i) if i in self.values.by_lane else needs(self.body[i])
        return found

    def inside(self, i: int) -> bool:
        """Whether op i, without lanes itself, still belongs in the lane loop: a store there of a value that is the same in all lanes."""
        return self.body[i].name == "store" and self.plan.shape != "pointwise" and self.plan.level[i] == "r"

    def scalars(self, starts: list[int], given: set[int]) -> list[int]:
        """The x-level scalars that `starts` need, not yet defined; they are, from now on."""
        needed = closure(self.plan.nest, starts, given)
        fresh = [i for i in needed if i not in self.defined and self.body[i].name not in ("constant", "reduce")]
        found = [i for i in fresh if not self.plan.deep[i] and self.plan.level[i] == "x"]
        self.defined |= {i for i in found if self.body[i].name != "store"}
        return found

    def depending(self, ids: Iterable[int], variables: set[Var]) -> set[int]:
        """Those of `ids`, in order, that depend on the variables."""
        found: set[int] = set()
        for i in ids:
            index = index_of(self.body[i])
            own = index is not None and any(v in variables for v in index.variables())
            if own or any(a in found for a in needs(self.body[i])):
                found.add(i)
        return found

    def statements(self, ids: Iterable[int]) -> None:
        for i in ids:
            self.out.line(self.values.scalar(i))

    def lane_statements(self, ids: Iterable[int]) -> None:
        for i in ids:
            for line in self.values.lanes(i):
                self.out.line(line)
