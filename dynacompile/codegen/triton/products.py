"""A product of matrices, and what is computed of its elements, as a Triton module: a function for the epilogue, one for a tile, and the kernel.

A candidate has a tile of MBLOCK x NBLOCK results, which are summed over KBLOCK at a time. TMA: operands come by the bulk copy engine, through tensor
descriptors, which also fill in zeros beyond the operands' ends; else by pointers, with masks. PROGRAMS: how many programs walk the tiles, one after
the other (0: one program for each tile). PARTS: in how many parts, side by side, a tile's epilogue is computed, which bounds the registers and the shared
memory that it takes. GROUP: rows of tiles that are walked together, so that operands are found in the L2 cache.

Triton's warp specialisation is not used: on an H200 it was no faster than software pipelining for any of the products that were measured, and with two
products at once Triton 3.6 made kernels of it that gave NaN.
"""

from __future__ import annotations

from collections.abc import Set
from math import prod
from textwrap import indent

import dynacompile.codegen.triton.scalars as scalars
from dynacompile.codegen.triton.emit import HEADER, LIBDEVICE, device_functions, user_line
from dynacompile.codegen.triton.indexing import Dim, needs_int64
from dynacompile.codegen.triton.matrices import Operand, axes_of, operands_of, pair_of, results_of
from dynacompile.codegen.triton.names import entry_of
from dynacompile.codegen.triton.tiles import Tiling, indices
from dynacompile.codegen.triton.values import Values
from dynacompile.errors import Unsupported
from dynacompile.ir.extents import ceil_div
from dynacompile.ir.loops import Nest
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource
from dynacompile.quoting import comment

PROCESSORS = 132  # of the largest present GPU
SHALLOW = 1024  # longest sum of a product that spends so little time in it that two programs on a processor, one in its epilogue, are faster
BLOCKS = ("MBLOCK", "NBLOCK", "KBLOCK", "GROUP", "PROGRAMS", "PARTS", "TMA")
# Of 16-bit operands: the blocks in the order of BLOCKS, warps, stages. Best guess first.
WIDE = (
    ((128, 256, 64, 8, 1, 2, 1), 8, 3),
    ((128, 256, 64, 8, 1, 4, 1), 8, 4),
    ((256, 128, 64, 8, 1, 2, 1), 8, 3),
    ((128, 128, 64, 8, 2, 2, 1), 4, 3),
    ((128, 256, 64, 8, 0, 1, 0), 8, 4),
    ((128, 128, 64, 8, 0, 1, 0), 8, 3),
    ((128, 128, 64, 8, 0, 2, 0), 4, 3),
    ((64, 128, 64, 8, 0, 1, 0), 4, 4),
)
TWO = (  # products at once; TMA 2: as one product of twice as many columns
    ((128, 128, 64, 8, 1, 2, 2), 8, 3),
    ((128, 128, 64, 8, 1, 4, 2), 8, 4),
    ((128, 128, 64, 8, 0, 1, 0), 8, 3),
    ((64, 128, 64, 8, 0, 1, 0), 4, 3),
)

Shape = tuple[tuple[int, ...], int, int]
TF32: tuple[Shape, ...] = (  # of float32, on the tensor cores
    ((128, 256, 32, 8, 1, 2, 1), 8, 3),
    ((128, 128, 32, 8, 1, 2, 1), 8, 4),
    ((128, 128, 32, 8, 2, 2, 1), 4, 3),
    ((128, 128, 32, 8, 0, 1, 0), 8, 3),
    ((64, 128, 32, 8, 0, 1, 0), 4, 4),
)
PLAIN: tuple[Shape, ...] = (  # of float32, by multiplications and additions
    ((128, 64, 16, 8, 0, 1, 0), 8, 3),
    ((64, 64, 16, 8, 0, 1, 0), 4, 3),
)
EIGHTHS: tuple[Shape, ...] = (  # of 8-bit numbers
    ((128, 128, 128, 8, 2, 2, 1), 4, 3),
    ((128, 256, 128, 8, 1, 2, 1), 8, 3),
    ((128, 128, 128, 8, 1, 2, 1), 8, 4),
    ((128, 128, 128, 8, 0, 1, 0), 8, 3),
    ((64, 128, 128, 8, 0, 1, 0), 4, 3),
)


def precision_of(nest: Nest) -> str:
    return next(op.attr.precision for op in nest.body if op.name == "product")


def tiling_of(kernel: Kernel, operands: list[Operand], products: list[tuple[int, int, int]]) -> Tiling:
    nest = kernel.nest
    axes = axes_of(nest)
    dims = (Dim("m", axes["m"]), Dim("n", axes["n"]))
    outer = (Dim("b", axes["b"]),) if axes["b"] else ()
    shapes = shapes_for(operands, len(products), precision_of(nest))
    ways = {0, *({1} if all(o.fits_descriptor for o in operands) else ()), *({2} if pair_of(operands, products) is not None else ())}
    candidates = choose_candidates(dims, operands, shapes, ways if 1 in ways else {0})
    sizes = {"m": dims[0].size, "n": dims[1].size, "k": operands[0].depth}
    masked = frozenset(name for name, size in sizes.items() if any(size % c.blocks[f"{name.upper()}BLOCK"] for c in candidates))
    wide = any(needs_int64(i) for i in indices(nest))
    grids = []
    for c in candidates:
        tiles = operands[0].count * prod(ceil_div(d.size, c.blocks[d.block]) for d in dims)
        grids.append((min(tiles, c.blocks["PROGRAMS"]) if c.blocks["PROGRAMS"] else tiles, 1, 1))
    return Tiling(dims, False, candidates, tuple(grids), masked, wide, outer=outer)


def shapes_for(operands: list[Operand], count: int, precision: str) -> tuple[Shape, ...]:
    """Blocks, warps and stages for operands of their dtype."""
    if operands[0].itemsize == 4:
        return PLAIN if precision == "ieee" else TF32
    if operands[0].itemsize == 1:
        return EIGHTHS
    return WIDE if count == 1 else TWO


def choose_candidates(dims: tuple[Dim, Dim], operands: list[Operand], shapes: tuple[Shape, ...], ways: Set[int]) -> tuple[Candidate, ...]:
    """Those that the operands allow, large tiles only where there are enough of them. ways: values that TMA may have."""
    found = []
    for shape, warps, stages in shapes:
        blocks = dict(zip(BLOCKS, shape, strict=True))
        if blocks["TMA"] not in ways:
            continue
        tiles = operands[0].count * prod(-(-d.size // blocks[d.block]) for d in dims)
        if blocks["PROGRAMS"]:
            blocks["PROGRAMS"] *= PROCESSORS
            if tiles <= blocks["PROGRAMS"]:  # nothing to walk
                continue
        found.append((tiles, Candidate(blocks, warps, stages)))
    enough = [c for tiles, c in found if tiles >= PROCESSORS // 2] or [c for _, c in found][-2:]
    two = [c for c in enough if operands[0].depth <= SHALLOW and c.blocks["PROGRAMS"] == 2 * PROCESSORS > 0]
    return (*two, *(c for c in enough if c not in two))


def emit_product(kernel: Kernel) -> KernelSource:
    """Triton source of a kernel with products."""
    if kernel.symbols:
        raise Unsupported("triton-product", f"{kernel.name} has sizes that differ from call to call")
    operands, products = operands_of(kernel)
    tiling = tiling_of(kernel, operands, products)
    emitter = ProductEmitter(kernel, tiling, operands, products)
    return KernelSource(kernel, "triton", emitter.module(), emitter.entry, candidates=tiling.candidates, grids=tiling.grids, wide=tiling.wide)


class ProductEmitter:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling, operands: list[Operand], products: list[tuple[int, int, int]]):
        self.kernel, self.nest, self.tiling, self.operands, self.products = kernel, kernel.nest, tiling, operands, products
        self.entry = entry_of(kernel)
        self.values = Values(kernel, tiling)
        self.m, self.n = tiling.dims
        self.b = tiling.outer[0] if tiling.outer else None
        self.place_names = [*(["b"] if self.b else []), "m_start", "n_start"]
        self.wide = ".to(tl.int64)" if tiling.wide else ""
        self.sums = [f"sum{k or ''}" for k in range(len(products))]
        copied = any(c.blocks["TMA"] for c in tiling.candidates)
        self.pair = pair_of(operands, products) if any(c.blocks["TMA"] == 2 for c in tiling.candidates) else None
        self.results = results_of(kernel, tiling) if copied else {}
        self.descriptors = {i: f"{self.values.pointers[r.param].removesuffix('_ptr')}_desc" for i, r in self.results.items()}
        self.pointers = [self.values.pointers[p.name] for p in kernel.params if p.mode != "scratch"]

    def module(self) -> str:
        copied = any(c.blocks["TMA"] for c in self.tiling.candidates)
        tiles = [self.tile("pointers"), *([self.tile("copies")] if copied else []), *([self.paired()] if self.pair else [])]
        texts = [self.epilogue(), self.finish(), *tiles, self.kernel_text(copied)]
        code = "\n\n\n".join(texts)
        functions = device_functions(code)
        told = "".join(f"# {comment(line)}\n" for line in dict.fromkeys(user_line(self.nest)))
        imports = HEADER + (LIBDEVICE if "libdevice." in code + functions else "")
        return f"{imports}{functions}\n\n{told}{code}\n"

    def epilogue(self) -> str:
        """What is computed of a block of results, and stored."""
        values = self.values
        inside = {a for i, _, _ in self.products for a in self.nest.body[i].args}
        for name, (i, _, _) in zip(self.sums, self.products, strict=True):
            values.names[i], values.shapes[i] = name, frozenset(("m", "n"))
        body: list[str] = []
        for i, op in enumerate(self.nest.body):
            if op.name == "product" or i in inside:
                continue
            lines = values.op(i, op)
            if i in self.results:
                value, pointer = values.argument(op.args[0]), values.pointers[op.attr.buffer]
                stored = self.results[i].stored(self.descriptors[i], pointer, values.tile(op.args[0], value))
                lines = ["if TMA:", f"    {stored}", "else:", *(f"    {line}" for line in lines)]
            body += lines
        lines = [f"{name} = {text}" for name, text in sorted(values.indexer.definitions.get("b", {}).items())]
        lines = [f"b = b{self.wide}", *lines] if self.b and self.wide else lines
        for d, spread in ((self.m, "[:, None]"), (self.n, "[None, :]")):
            lines.append(f"{d.name} = ({d.name}_start{self.wide} + tl.arange(0, {d.block})){spread}")
            if d.name in self.tiling.masked:
                lines.append(f"{d.name}mask = {d.name} < {d.size}")
            lines += [f"{name} = {text}" for name, text in sorted(values.indexer.definitions.get(d.name, {}).items())]
        lines += [f"{name} = tl.full((), {text}, {scalars.value(dtype)})" for (text, dtype), name in values.constants.items()]
        parameters = ", ".join([*self.sums, *self.place_names, *self.passed, "MBLOCK: tl.constexpr", "NBLOCK: tl.constexpr", *self.way(": tl.constexpr")])
        return function(f"{self.entry}_epilogue", parameters, [*lines, *body])

    def tile(self, way: str) -> str:
        """The sums of one tile: operands through pointers, or copied through descriptors."""
        names = [f"{o.name}_{'ptr' if way == 'pointers' else 'desc'}" for o in self.operands]
        lines = [f"{name} = tl.zeros((MBLOCK, NBLOCK), tl.float32)" for name in self.sums]
        step: list[str] = []
        ends: list[str] = []
        for o in self.operands:
            if way == "pointers":
                before, text, after = o.loaded(self.wide, self.tiling.masked)
                lines, ends = lines + before, ends + after
            else:
                text = o.copied()
            step.append(f"{o.name} = {text}")
        for name, (_, a, b) in zip(self.sums, self.products, strict=True):
            step.append(f"{name} = {self.adder()}({self.operands[a].name}, {self.operands[b].name}, {name})")
        loop = [f"for k in tl.range(0, {self.operands[0].depth}, KBLOCK):", *(f"    {line}" for line in [*step, *ends])]
        parameters = ", ".join([*self.place_names, *names, "MBLOCK: tl.constexpr", "NBLOCK: tl.constexpr", "KBLOCK: tl.constexpr"])
        return function(f"{self.entry}_{way}", parameters, [*lines, *loop, f"return {', '.join(self.sums)}"])

    def paired(self) -> str:
        """The sums of one tile of two products, as one product."""
        assert self.pair is not None
        o = self.pair.shared
        lines = ["both = tl.zeros((MBLOCK, 2 * NBLOCK), tl.float32)", f"for k in tl.range(0, {o.depth}, KBLOCK):"]
        lines += [f"    {o.name} = {o.copied()}", "    pair = pair_desc.load([0, n_start, k]).reshape(2 * NBLOCK, KBLOCK).T"]
        lines += [f"    both = {self.adder()}({o.name}, pair, both)", "return halves(both, MBLOCK, 2 * NBLOCK)"]
        blocks = [f"{name}: tl.constexpr" for name in ("MBLOCK", "NBLOCK", "KBLOCK")]
        return function(f"{self.entry}_pair", ", ".join([*self.place_names, f"{o.name}_desc", "pair_desc", *blocks]), lines)

    def walk_pairs(self) -> list[str]:
        """The kernel's tiles, where both products are one; by pointers, where no descriptor can be of both matrices. The order of the matrices in memory is
        chosen by values, since Triton 3.6 refuses a branch within a loop that it joins with the one inside, and keeps memory for each of two loops."""
        assert self.pair is not None
        first, second = self.sums
        given = ", ".join([*self.place_names, f"{self.pair.shared.name}_desc", "pair_desc", "MBLOCK, NBLOCK, KBLOCK"])
        inside = [*self.place("number"), f"front, back = {self.entry}_pair({given})", "done += PROGRAMS", *self.place("done")]
        inside += [f"{first} = tl.where(swapped, back, front)", f"{second} = tl.where(swapped, front, back)", *self.finished()]
        loop = "for number in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):"
        paired = ["done = tl.program_id(0) - PROGRAMS", loop, *(f"    {line}" for line in inside)]
        apart = [*self.place("number"), *self.summed(False), *self.finished()]
        plain = ["for number in tl.range(tl.program_id(0), rows * columns, PROGRAMS):", *(f"    {line}" for line in apart)]
        return ["if fits:", *(f"    {line}" for line in paired), "else:", *(f"    {line}" for line in plain)]

    @property
    def passed(self) -> list[str]:
        """What an epilogue is given beside its sums and its place: all pointers, and the descriptors of what it stores."""
        return [*self.pointers, *self.descriptors.values()]

    def way(self, suffix: str = "") -> list[str]:
        """Whether results are stored through descriptors, where a candidate does that."""
        return [f"TMA{suffix}"] if self.results else []

    def adder(self) -> str:
        """The function that adds a product of two blocks."""
        precision, itemsize = precision_of(self.nest), self.operands[0].itemsize
        if itemsize == 1:
            return "add_product_fast" if precision == "fast" else "add_product_whole"
        return f"add_product_{precision}" if itemsize == 4 else "add_product"

    def kernel_text(self, copied: bool) -> str:
        params = ", ".join([*self.pointers, *(f"{b}: tl.constexpr" for b in BLOCKS)])
        head = [f"rows = tl.cdiv({self.m.size}, MBLOCK)", f"columns = tl.cdiv({self.n.size}, NBLOCK)"]
        if copied:
            made = self.operand_descriptors()
            made += [f"{self.descriptors[i]} = {r.descriptor(self.values.pointers[r.param])}" for i, r in self.results.items()]
            head += ["if TMA:", *(f"    {line}" for line in made)]
            if self.results:
                head += ["else:", *(f"    {self.descriptors[i]} = {self.values.pointers[r.param]}" for i, r in self.results.items())]
        once = [*self.place("tl.program_id(0)"), *self.summed(copied), *self.finished()]
        tiles = f"{self.b.size} * rows * columns" if self.b else "rows * columns"
        walk = f"tl.range(tl.program_id(0), {tiles}, PROGRAMS, flatten=True)"
        again = ["done = tl.program_id(0) - PROGRAMS", f"for number in {walk}:"]
        inside = [*self.place("number"), *self.summed(copied), "done += PROGRAMS  # not `number`, which the next tile's loads need", *self.place("done")]
        again += [f"    {line}" for line in [*inside, *self.finished()]]
        body = ["if PROGRAMS == 0:", *(f"    {line}" for line in once), "else:", *(f"    {line}" for line in again)]
        if self.pair is not None:
            body = ["if TMA == 2:", *(f"    {line}" for line in self.walk_pairs()), "else:", *(f"    {line}" for line in body)]
        body = [*head, *body]
        return function(self.entry, params, body)

    def operand_descriptors(self) -> list[str]:
        made = {o.name: f"{o.name}_desc = {o.descriptor(self.values.pointers[o.param])}" for o in self.operands}
        if self.pair is None:
            return [*made.values()]
        both = [made.pop(o.name) for o in (self.pair.first, self.pair.second)]
        pair = self.pair.lines(self.values.pointers)
        return [*made.values(), "if TMA == 2:", *(f"    {line}" for line in pair), "else:", *(f"    {line}" for line in both)]

    def place(self, number: str) -> list[str]:
        """Where a tile starts."""
        batch = []
        if self.b:
            batch, number = [f"b = {number} // (rows * columns)", f"tile = {number} % (rows * columns)"], "tile"
        return [
            *batch,
            f"first = {number} // (GROUP * columns) * GROUP",
            "height = tl.minimum(rows - first, GROUP)",
            f"m_start = (first + {number} % (GROUP * columns) % height) * MBLOCK",
            f"n_start = ({number} % (GROUP * columns) // height) * NBLOCK",
        ]

    def summed(self, copied: bool) -> list[str]:
        blocks = "MBLOCK, NBLOCK, KBLOCK"
        pointers = ", ".join(self.values.pointers[o.param] for o in self.operands)
        place = ", ".join(self.place_names)
        plain = f"{', '.join(self.sums)} = {self.entry}_pointers({place}, {pointers}, {blocks})"
        if not copied:
            return [plain]
        names = ", ".join(f"{o.name}_desc" for o in self.operands)
        return ["if TMA:", f"    {', '.join(self.sums)} = {self.entry}_copies({place}, {names}, {blocks})", "else:", f"    {plain}"]

    def finish(self) -> str:
        """The epilogue of a tile, in PARTS parts."""
        sums, place = self.sums, self.place_names[:-1]

        def call(of: list[str], start: str, width: str) -> str:
            return f"{self.entry}_epilogue({', '.join([*of, *place, start, *self.passed, 'MBLOCK', width, *self.way()])})"

        def cut(width: str) -> tuple[list[str], list[str], list[str]]:
            left, right = [f"{s}_left" for s in sums], [f"{s}_right" for s in sums]
            return [f"{a}, {b} = halves({s}, MBLOCK, {width})" for s, a, b in zip(sums, left, right, strict=True)], left, right

        def rest(of: list[str], start: str) -> str:
            return f"{self.entry}_finish({', '.join([*of, *place, start, *self.passed, 'MBLOCK', 'NBLOCK // 2', 'PARTS // 2', *self.way()])})"

        lines, left, right = cut("NBLOCK")
        two = [*lines, rest(left, "n_start"), rest(right, "n_start + NBLOCK // 2")]
        body = ["if PARTS == 1:", f"    {call(sums, 'n_start', 'NBLOCK')}", "else:", *(f"    {line}" for line in two)]
        blocks = [f"{name}: tl.constexpr" for name in ("MBLOCK", "NBLOCK", "PARTS", *self.way())]
        return function(f"{self.entry}_finish", ", ".join([*sums, *self.place_names, *self.passed, *blocks]), body)

    def finished(self) -> list[str]:
        return [f"{self.entry}_finish({', '.join([*self.sums, *self.place_names, *self.passed, 'MBLOCK', 'NBLOCK', 'PARTS', *self.way()])})"]


def function(name: str, parameters: str, lines: list[str]) -> str:
    return f"@triton.jit\ndef {name}({parameters}):\n{indent(chr(10).join(lines), '    ')}"
