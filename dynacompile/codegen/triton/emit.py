"""A fused nest as a Triton module: tile indices, then the body in SSA order, or one loop over r per pass."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.codegen.triton.names import entry_of
from dynacompile.codegen.triton.scans import is_reverse, scan_in_loop
from dynacompile.codegen.triton.tiles import Tiling, choose_tiling
from dynacompile.codegen.triton.values import Values
from dynacompile.errors import Unsupported, VerifyError
from dynacompile.ir.index import Index, atom, hint
from dynacompile.ir.loops import Access, Axis, Nest, Op
from dynacompile.ir.schedule import Kernel, KernelSource
from dynacompile.quoting import comment

HEADER = "import triton\nimport triton.language as tl\n"
LIST_TABLES = ("list_blocks", "list_numbers", "list_pointers")
NEAR = 1 << 12  # places from the end of a row at which padding may begin
LIBDEVICE = "from triton.language.extra import libdevice\n"


def emit_nest(kernel: Kernel) -> KernelSource:
    """As `emit_kernel`, of a kernel without products."""
    if any(a.size == 0 for a in kernel.nest.axes):
        raise Unsupported("triton-empty", f"{kernel.name} has no points: the scheduler drops empty nests")
    for param in kernel.params:
        scalars.pointer(param.dtype)
    form = replace(kernel, nest=in_any_order(kernel.nest)) if kernel.nest.adds else kernel
    tiling = of_member(choose_tiling(form)) if kernel.is_list else choose_tiling(form)
    emitter = Emitter(form, tiling)
    text = emitter.module()
    row = emitter.dims["r"].size if tiling.whole else None
    return KernelSource(kernel, "triton", text, emitter.entry, candidates=tiling.candidates, grids=tiling.grids, wide=tiling.wide, row=row)


def in_any_order(nest: Nest) -> Nest:
    """A nest that adds to memory, all of whose points run side by side: the order of its sums is lost. Axes along which most is read element after
    element come last."""
    if nest.is_reduction or any(nest.folded):
        raise VerifyError("schedule", f"{nest.name} adds to memory and reduces, which no kernel of a GPU does")

    def widest(axis: Axis) -> int:
        strides = [access.index.stride(axis.var) for access in nest.loads()]
        return max((hint(s) for s in strides if s is not None), default=0)

    return replace(nest, axes=tuple(replace(a, role="x") for a in sorted(nest.axes, key=widest, reverse=True)))


def of_member(tiling: Tiling) -> Tiling:
    """The tiling of a member of a list: one candidate, since how many programs each member has is in a table; one form, for all members."""
    flat = len(tiling.dims) == 1 and tiling.dims[0].name in tiling.masked
    peeled = tiling.dims[0].name if flat else tiling.peeled  # blocks that lie within a member access memory in full width
    return replace(tiling, candidates=tiling.candidates[:1], grids=tiling.grids[:1], whole=False, peeled=peeled)


def user_line(nest: Nest) -> Iterator[str]:
    """The user's lines that the kernel computes, in order, for its comment."""
    for origin in nest.origins:
        if origin.site is not None:
            code = linecache.getline(origin.site.file, origin.site.line).strip()
            yield f"{Path(origin.site.file).name}:{origin.site.line}" + (f"  {code}" if code else "")


class Emitter:
    """The text of one kernel: the tile's indices, the order of its passes over r, and what surrounds them."""

    def __init__(self, kernel: Kernel, tiling: Tiling):
        self.kernel, self.nest, self.tiling = kernel, kernel.nest, tiling
        self.dims = {d.name: d for d in tiling.dims}
        self.entry = entry_of(kernel)
        self.values = Values(kernel, tiling)
        self.level, self.phase = self.values.level, self.values.phase

    # the module

    def module(self) -> str:
        code = self.code()
        pointers = LIST_TABLES if self.kernel.is_list else self.values.pointers.values()
        taken, blocks = [*pointers, *(s.name for s in self.kernel.symbols)], self.tiling.candidates[0].blocks
        constants = [*blocks]
        if self.tiling.whole:
            constants.append("SHORT")
            short = Emitter(self.kernel, replace(self.tiling, looped=False, whole=False)).code()
            code = f"    if SHORT:\n{indent(short, '    ')}\n    else:\n{indent(code, '    ')}"
        parameters = ", ".join([*taken, *(f"{name}: tl.constexpr" for name in constants)])
        functions = device_functions(code)
        told = "".join(f"# {comment(line)}\n" for line in dict.fromkeys(user_line(self.nest)))
        imports = HEADER + (LIBDEVICE if "libdevice." in code + functions else "")
        return f"{imports}{functions}\n\n{told}@triton.jit\ndef {self.entry}({parameters}):\n{code}\n"

    def code(self) -> str:
        """The function's body."""
        if self.tiling.rows:
            body = self.folded_long() if self.tiling.looped else self.folded()
        else:
            body = self.looped() if self.tiling.looped else self.straight()
        lines = [*self.head(), *(f"{name} = tl.full((), {text}, {scalars.value(dtype)})" for (text, dtype), name in self.values.constants.items()), *body]
        return "\n".join(f"    {line}" for line in lines)

    def head(self) -> list[str]:
        """Tile indices, masks, and the axes that they are taken apart into."""
        wide = ".to(tl.int64)" if self.tiling.wide else ""
        lines = self.member(wide) if self.kernel.is_list else []
        program = self.program() if not self.kernel.is_list else "pid"
        parallel = [d for d in self.tiling.dims if d.name != "r" and not self.tiling.rows]
        origin = {d.name: program for d in parallel}
        if len(parallel) == 2:
            lines += [f"pid = {program}"] if not self.kernel.is_list else []
            columns = self.columns()
            origin = {parallel[0].name: f"(pid // {columns})", parallel[1].name: f"(pid % {columns})"}
        for d in parallel:
            start, span = f"{origin[d.name]} * {d.block}", f"tl.arange(0, {d.block}){self.spread(d.name)}"
            if d == self.tiling.dims[-1] and self.values.indexer.lane is not None:
                first, base = self.values.indexer.lane
                lines += [f"{first} = {start}", f"{base} = {span}"]
                start, span = first, base
            lines.append(f"{d.name} = {start} + {span}")
            if d.name != self.tiling.peeled:
                lines += self.mask_line(d.name)
        if "r" in self.dims:
            span = f"tl.arange(0, RBLOCK){self.spread('r')}{wide}"
            parts = self.values.parts
            if parts.count > 1:
                lines += [f"{parts.text('r', p)} = {p} * RBLOCK + {span}" for p in range(parts.count)]
            else:
                lines.append(f"{'r_base' if self.tiling.looped else 'r'} = {span}")
            if not self.tiling.looped:
                lines += self.mask_line("r")
        if self.tiling.rows:
            lines.append(f"pid = {self.program()}")
        return lines + self.axis_lines([d.name for d in self.tiling.dims if d in parallel or (d.name == "r" and not self.tiling.looped)])

    def program(self) -> str:
        """The number of a program, of as many bits as what is computed of it."""
        return "tl.program_id(0)" + (".to(tl.int64)" if self.tiling.wide else "")

    def member(self, wide: str) -> list[str]:
        """What this program's member of the list is, its numbers, and its pointers."""
        blocks, numbers, pointers = LIST_TABLES
        own, params = self.kernel.own or (), self.kernel.params
        place = f"{blocks} + tl.program_id(0).to(tl.int64) * 2"
        lines = [f"member = tl.load({place}).to(tl.int64)", f"pid = tl.load({place} + 1){wide}"]
        kind = "tl.int64" if self.tiling.wide else "tl.int32"
        lines += [f"{s.name} = tl.load({numbers} + member * {len(own)} + {i}).to({kind})" for i, s in enumerate(own)]
        for i, p in enumerate(params):
            pointer = f"tl.load({pointers} + member * {len(params)} + {i}).to(tl.pointer_type({scalars.element(p.dtype)}))"
            lines.append(f"{self.values.pointers[p.name]} = tl.multiple_of({pointer}, 16)")
        return lines

    def mask_line(self, dim: str, whole: bool = False) -> list[str]:
        """The mask of a dimension; whole: of a block that lies within it, which leaves accesses their width."""
        if dim not in self.tiling.masked:
            return []
        return [f"{dim}mask = {self.always(dim) if whole else f'{dim} < {self.dims[dim].size}'}"]

    def always(self, dim: str) -> str:
        return f"tl.full({self.values.shape(frozenset((dim,)))}, True, tl.int1)"

    def axis_lines(self, dims: Iterable[str]) -> list[str]:
        """Definitions of axis variables; those along r for every part."""
        found = {d: sorted(self.values.indexer.definitions.pop(d, {}).items()) for d in dims}
        return [line for d, names in found.items() for name, text in names for line in self.values.parts.lines([f"{name} = {text}"])]

    def spread(self, dim: str) -> str:
        """The subscript that gives a linear range its place in the tile."""
        if len(self.tiling.dims) == 1:
            return ""
        return "[:, None]" if dim == self.tiling.dims[0].name else "[None, :]"

    # the body

    def straight(self) -> list[str]:
        """Every value once, in registers."""
        lines = [line for group in self.order() for line in self.values_of(group)]
        peeled = self.tiling.peeled
        if not peeled:
            return lines
        place = "pid % " + self.columns() if len(self.tiling.dims) == 2 else "pid" if self.kernel.is_list else self.program()
        whole, part = ([f"    {line}" for line in [*self.mask_line(peeled, w), *lines]] for w in (True, False))
        return [f"if ({place}) * XBLOCK + XBLOCK <= {self.dims[peeled].size}:", *whole, "else:", *part]

    def columns(self) -> str:
        """Blocks along the inner of two dimensions."""
        inner = self.tiling.dims[1]
        return f"tl.cdiv({inner.size}, {inner.block})"

    def order(self) -> list[list[int]]:
        """Ops by how many reductions must have ended before them, so that reductions that don't need each other go together. Stores come
        after all loads, since they may overwrite what is loaded."""
        body, late = self.nest.body, any(op.name == "load" and self.phase[i] for i, op in enumerate(self.nest.body))
        groups: list[list[int]] = []
        for k in range(max(self.phase, default=0) + 1):
            reduces = [i for i, op in enumerate(body) if op.name == "reduce" and self.phase[i] == k]
            groups += [reduces] if reduces else []
            groups += [[i] for i, op in enumerate(body) if op.name != "reduce" and self.phase[i] == k and not (late and op.name == "store")]
        return groups + [[i] for i, op in enumerate(body) if late and op.name == "store"]

    def values_of(self, group: list[int]) -> list[str]:
        ops = [(i, self.nest.body[i]) for i in group]
        return self.values.reduce(ops) if ops[0][1].name == "reduce" else self.values.varied(*ops[0])

    def folded(self) -> list[str]:
        """A loop over tiles of whole rows, which adds up sums per column; what does not vary over rows comes before it."""
        body, values = self.nest.body, self.values
        held = {p.name for p in self.kernel.params if p.mode == "in"}
        before: list[str] = []
        inside: list[str] = []
        after: list[str] = []
        for group in self.order():
            i, op = group[0], body[group[0]]
            access = op.attr
            if isinstance(access, Access) and access.summed:
                start, step, end = values.total(i, op)
                before, inside, after = before + start, inside + step, after + end
                continue
            lines = self.values_of(group)
            fixed = op.name not in ("store", "reduce") and "x" not in values.shapes[i] and not (isinstance(access, Access) and access.buffer not in held)
            (before if fixed else inside).extend(lines)
        steps = f"tl.range(0, {self.tiling.rows}, XBLOCK, num_stages=STAGES)"
        tile = [f"x = pid * {self.tiling.rows} + start + tl.arange(0, XBLOCK){self.spread('x')}", *self.axis_lines(["x"]), *inside]
        ends = [f"{name} = {text}" for name, text in sorted(values.blocks.definitions.pop("pid", {}).items())]
        return [*before, f"for start in {steps}:", *(f"    {line}" for line in tile), *ends, *after]

    def folded_long(self) -> list[str]:
        """As `folded`, of rows that registers do not hold: sums per column are in memory from one block of rows to the next."""
        tile = [f"x = pid * {self.tiling.rows} + row + tl.arange(0, XBLOCK){self.spread('x')}", *self.looped()]
        tile[1:1] = self.axis_lines(["x"])
        ends = [f"{name} = {text}" for name, text in sorted(self.values.blocks.definitions.pop("pid", {}).items())]
        barrier = "tl.debug_barrier()  # until every thread has written what the next block of rows adds to"
        return [*ends, f"for row in range(0, {self.tiling.rows}, XBLOCK):", *(f"    {line}" for line in [*tile, barrier])]

    def looped(self) -> list[str]:
        """One loop over r per pass; what a pass needs at level r it computes anew."""
        passes = max((self.sink_pass(i) for i in range(len(self.nest.body)) if self.is_sink(i)), default=0) + 1
        body = self.nest.body
        late = {p.name for p in self.kernel.params if p.mode == "inout"}
        lines: list[str] = []
        after: list[int] = []
        for k in range(passes + 1):
            for i, op in enumerate(body):
                if self.level[i] == "x" and self.phase[i] == k and op.name != "reduce":
                    if op.name == "store" and isinstance(op.attr, Access) and op.attr.buffer in late:
                        after.append(i)
                    else:
                        lines += self.values.op(i, op)
            if k < passes:
                lines += self.one_pass(k, last=k == passes - 1, several=passes > 1)
        return lines + [line for i in after for line in self.values.op(i, body[i])]

    def is_sink(self, i: int) -> bool:
        return self.nest.body[i].name == "reduce" or (self.nest.body[i].name == "store" and self.level[i] == "r")

    def sink_pass(self, i: int) -> int:
        """The pass that a reduce or an r-level store belongs to. A store waits for the last pass, since a value that a later pass
        computes anew may read the same memory."""
        if self.nest.body[i].name == "reduce":
            return self.phase[i] - 1
        return max(self.phase[j] - (op.name == "reduce") for j, op in enumerate(self.nest.body) if self.is_sink(j))

    def one_pass(self, k: int, last: bool, several: bool) -> list[str]:
        body = self.nest.body
        sinks = [i for i in range(len(body)) if self.is_sink(i) and self.sink_pass(i) == k]
        needed = self.closure(sinks)
        before: list[str] = []
        inside: list[str] = []
        whole: list[str] = []  # of blocks in which all conditions on their places hold
        after: list[str] = []
        held = self.conditions_held()
        self.values.evict = (', eviction_policy="evict_first"' if last else ', eviction_policy="evict_last"') if several else ""
        for i, op in enumerate(body):
            if i not in needed:
                continue
            if op.name == "reduce":
                start, step, end = self.values.accumulate(i, op)
                before, inside, whole, after = before + start, inside + step, whole + step, after + end
            elif op.name == "scan":
                start, step = scan_in_loop(self.values, i, op)
                before, inside, whole = before + start, inside + step, whole + step
            else:
                lines = self.values.op(i, op)
                inside += lines
                whole += [f"{self.values.name(i)} = {self.always('r')}"] if i in held else lines
        self.values.evict = ""
        ways = {is_reverse(body[i].attr) for i in needed if body[i].name == "scan"}
        if len(ways) > 1:
            raise VerifyError("schedule", f"{self.kernel.name} scans rows both ways in one pass, which needs rows that one block takes in")
        reverse = True in ways
        size, axes = self.dims["r"].size, self.axis_lines(["r"])
        if self.tiling.peeled != "r":
            loop = ["r = start + r_base", *self.mask_line("r"), *axes, *inside]
            return [*before, *blocks_of("0", size, loop, reverse), *after]
        stop = f"{min(held.values(), default=size)} // RBLOCK * RBLOCK"
        loop = ["r = start + r_base", *self.mask_line("r", whole=True), *axes, *whole]
        final = ["r = start + r_base", *self.mask_line("r"), *axes, *inside]
        passes = [blocks_of("0", stop, loop, reverse), blocks_of(stop, size, final, reverse) if held else [f"start = {stop}", *final]]
        return [*before, *(line for lines in (passes[::-1] if reverse else passes) for line in lines), *after]

    def conditions_held(self) -> dict[int, int]:
        """Of a peeled loop, conditions that a place along r is less than a number near its end, such as those of padding, and these numbers."""
        axes, body = self.nest.r_axes, self.nest.body
        size = self.dims["r"].size
        if self.tiling.peeled != "r" or len(axes) != 1 or not isinstance(size, int):
            return {}
        found: dict[int, int] = {}
        for i, op in enumerate(body):
            if op.name == "lt" and body[op.args[0]].name == "index" and body[op.args[1]].name == "constant":
                place, end = body[op.args[0]].attr, body[op.args[1]].attr
                if place == atom(axes[0].var) and type(end) is int and size - NEAR < end <= size:
                    found[i] = end
        return found

    def closure(self, sinks: list[int]) -> set[int]:
        """Level-r ops that the sinks need, themselves included."""
        needed: set[int] = set()
        stack = list(sinks)
        while stack:
            i = stack.pop()
            if i in needed:
                continue
            needed.add(i)
            if i not in self.values.online.values():
                stack += [j for j in operands(self.nest.body[i]) if self.level[j] == "r"]
        return needed


def blocks_of(begin: str, end: object, lines: Iterable[str], reverse: bool) -> list[str]:
    """A loop over the blocks from `begin`, a multiple of the block, to `end`; reverse: the last one first."""
    if not reverse:
        return [f"for start in range({begin}, {end}, RBLOCK):", *(f"    {line}" for line in lines)]
    start = f"start = {begin} + ({end} - 1 - ({begin})) // RBLOCK * RBLOCK - turn"
    return [f"for turn in range(0, {end} - ({begin}), RBLOCK):", *(f"    {line}" for line in [start, *lines])]


def device_functions(code: str) -> str:
    """The device functions that `code` calls, and those that they call, each before its callers."""
    needed: set[str] = set()
    texts = [code]
    while texts:
        text = texts.pop()
        for name, definition in scalars.DEVICE_FUNCTIONS.items():
            if name not in needed and re.search(rf"\b{name}\(|, {name}[,)]", text):
                needed.add(name)
                texts.append(definition)
    return "".join("\n" + definition for name, definition in scalars.DEVICE_FUNCTIONS.items() if name in needed)


def operands(op: Op) -> Iterator[int]:
    """SSA ids that an op uses: arguments, mask, indirect indices."""
    yield from op.args
    index = op.attr.index if isinstance(op.attr, Access) else op.attr if isinstance(op.attr, Index) else None
    if index is not None:
        yield from (int(v.name[1:]) for v in index.variables() if v.name.startswith("%"))
    if isinstance(op.attr, Access) and op.attr.mask is not None:
        yield op.attr.mask
