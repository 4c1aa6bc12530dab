"""How a kernel's iteration space is cut into tiles, and the few candidates worth building, best guess first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from dynacompile.codegen.triton.indexing import LIMIT, Dim, needs_int64
from dynacompile.codegen.triton.parts import parts_of
from dynacompile.codegen.triton.reductions import online_pairs
from dynacompile.ir.extents import ceil_div
from dynacompile.ir.index import Extent, Index, Var, extent, hint
from dynacompile.ir.loops import Access, Axis, Nest, levels
from dynacompile.ir.schedule import Candidate, Kernel
from dynacompile.ops.scalars import PLACES

PROGRAMS = 132 * 4  # enough to fill the largest present GPU several times over
LANES = 32
BUSY = 132 * 16  # warps that keep the memory of the largest present GPU busy
PEELED = 1 << 16  # points of a kernel that is worth twice the code
FEW_PER_LINE = 2  # values of a line that are as well loaded for each of its elements
LINE = 2048  # points of a line that a program takes
REGISTERS = 128  # of a thread, for the values of a tile that live at once, in 4-byte words
PERSISTENT = 16384  # longest row kept in registers
SCANNED = 4096  # longest row that a scan holds in registers; of longer ones it carries what each block leaves into the next
FEW_ROWS = 4  # of a tile; a warp that has more spends its time on one after the other


@dataclass(frozen=True)
class Tiling:
    """dims: of the tile, outer to inner, all parallel but "r". looped: r is walked in steps of its block, else one block covers it.
    whole: looped, but for calls where one block does cover r, which is symbolic: those have a form of their own.

    masked: dimensions whose size some candidate's block does not divide. wide: indices need int64. One grid per candidate.
    rows: x points that a program walks in steps of its block, adding up sums per column; 0: a program has one tile. parts: blocks of a row.
    outer: dimensions along which a tile has one place, those of a product's batch.
    peeled: a masked dimension of an odd size, whose last block has code of its own, so that the others access memory in full width.
    """

    dims: tuple[Dim, ...]
    looped: bool
    candidates: tuple[Candidate, ...]
    grids: tuple[tuple[Extent, int, int], ...]
    masked: frozenset[str]
    wide: bool
    rows: int = 0
    parts: int = 1
    peeled: str = ""
    whole: bool = False
    outer: tuple[Dim, ...] = ()


def choose_tiling(kernel: Kernel) -> Tiling:
    nest = kernel.nest
    rows = prod(hint(a.size) for a in nest.folded) if nest.folded else 0
    looped = False
    if rows:
        dims: tuple[Dim, ...] = (Dim("x", nest.x_axes), Dim("r", nest.r_axes))
        looped, candidates = not isinstance(dims[1].size, int), folded_candidates(kernel, rows, dims[1])
    elif nest.r_axes:
        dims = (Dim("x", nest.x_axes), Dim("r", nest.r_axes))
        looped, candidates = reduction_candidates(kernel, *dims)
    else:
        dims = pointwise_dims(kernel)
        if len(dims) == 1:
            candidates = pointwise_candidates(kernel, dims[0])
        else:
            candidates = line_candidates(kernel) if walks_lines(kernel) else transpose_candidates(*dims)
    masked = frozenset(d.name for d in dims if any(d.size % c.blocks[d.block] for c in candidates))
    grids = tuple((extent(prod(ceil_div(d.size, rows or c.blocks[d.block]) for d in dims if d.name != "r")), 1, 1) for c in candidates)
    wide = any(d.hint > LIMIT for d in dims) or any(needs_int64(i) for i in indices(nest))
    width = candidates[0].blocks.get("RBLOCK", 1)
    parts = dims[-1].hint // width if nest.r_axes and not looped and dims[-1].hint > width else 1
    whole = looped and (rows > 0 or fits_whole(nest, dims[-1], candidates[0]))
    peeled = "" if whole else peeled_dim(kernel, dims, looped, masked)
    return Tiling(dims, looped, candidates, grids, masked, wide, rows, parts, peeled, whole)


def fits_whole(nest: Nest, r: Dim, first: Candidate) -> bool:
    """A symbolic r, where a block takes in the example's, and the registers all that is needed again."""
    needed = prod(first.blocks.values()) * reuse(nest)[1] // (LANES * first.warps)
    return not isinstance(r.size, int) and r.hint <= first.blocks[r.block] and needed <= REGISTERS


def peeled_dim(kernel: Kernel, dims: tuple[Dim, ...], looped: bool, masked: frozenset[str]) -> str:
    inner = dims[-1]
    alone = looped if inner.name == "r" else len(dims) == 1 or walks_lines(kernel)
    large = prod(d.hint for d in dims) >= PEELED
    worth = inner.size % (16 // smallest(kernel)) or (inner.name == "r" and looped and online_pairs(kernel.nest))  # the latter are bound by arithmetic
    ends = alone and large and inner.name in masked and worth
    return inner.name if ends and not (isinstance(inner.size, Index) and len(dims) == 2 and starts_anywhere(kernel, dims[0])) else ""


def starts_anywhere(kernel: Kernel, outer: Dim) -> bool:
    """Lines start at multiples of sizes that only a call knows. Where those allow accesses in full width, lines also end where such accesses do."""
    strides = [access.index.stride(a.var) for access in (*kernel.nest.loads(), *kernel.nest.stores()) for a in outer.axes]
    return any(s is None or isinstance(s, Index) for s in strides)


def misaligned(kernel: Kernel, outer: Dim) -> bool:
    """Lines do not start at multiples of 16 bytes, so that elements are accessed one by one, which costs less where a thread has more of them."""
    strides = [access.index.stride(a.var) for access in (*kernel.nest.loads(), *kernel.nest.stores()) for a in outer.axes]
    return any(isinstance(s, int) and s > 1 and s % (16 // smallest(kernel)) for s in strides)


def indices(nest: Nest) -> Iterable[Index]:
    for op in nest.body:
        if isinstance(op.attr, Access):
            yield op.attr.index
        elif isinstance(op.attr, Index):
            yield op.attr


def power(n: int) -> int:
    """The least power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def clamp(n: int, low: int, high: int) -> int:
    return max(low, min(n, high))


def pointwise_dims(kernel: Kernel) -> tuple[Dim, ...]:
    """One dimension over all axes; two where heavy accesses have their unit stride on different axes (a transpose), or where long lines
    have values of their own or lie apart in memory."""
    axes = kernel.nest.x_axes
    if len(axes) >= 2 and prod(hint(a.size) for a in axes) >= 4096:
        weights = unit_strides(kernel, axes)
        inner = axes[-1]
        other = max(axes[:-1], key=lambda a: (weights.get(a.var, 0), hint(a.size)))
        if weights.get(other.var, 0) and weights.get(inner.var, 0) and inner.size >= 8 and other.size >= 8:
            rest = tuple(a for a in axes[:-1] if a != other)
            return Dim("y", (*rest, other)), Dim("x", (inner,))
        if walks_lines(kernel):
            return Dim("y", axes[:-1]), Dim("x", (inner,))
    return (Dim("x", axes),)


def walks_lines(kernel: Kernel) -> bool:
    """Each program had better work on one line along the innermost axis: what varies from line to line only is then computed once, and no
    index is taken apart. Lines of an odd length are accessed in full width only as one: so they are, unless several values are theirs alone."""
    axes = kernel.nest.x_axes
    inner = axes[-1]
    length = hint(inner.size)
    if length <= LINE or -(-length // LINE) * LINE > 1.1 * length:
        return False
    weights = unit_strides(kernel, axes)
    if any(weights.get(a.var, 0) for a in axes[:-1]) or not weights.get(inner.var, 0):
        return False
    outer = {a.var for a in axes[:-1]}
    accesses = (*kernel.nest.loads(), *kernel.nest.stores())
    per_line = sum(not outer.isdisjoint(a.index.variables()) and inner.var not in a.index.variables() for a in accesses)
    worth = FEW_PER_LINE if isinstance(inner.size, int) and inner.size % (16 // smallest(kernel)) else 0
    along = [a.index.stride(axes[-2].var) for a in accesses if a.index.stride(inner.var) == 1]
    return per_line > worth or any(stride != inner.size for stride in along if stride)


def unit_strides(kernel: Kernel, axes: tuple[Axis, ...]) -> dict[Var, int]:
    """Bytes per point of the accesses that are contiguous along each axis and large enough to matter."""
    sizes = {p.name: p.dtype.itemsize for p in kernel.params}
    points = prod(hint(a.size) for a in axes)
    weights: dict[Var, int] = {}
    for access in (*kernel.nest.loads(), *kernel.nest.stores()):
        strides = {a.var: access.index.stride(a.var) for a in axes}
        touched = prod(hint(a.size) for a in axes if strides[a.var] != 0)
        if touched * 4 < points:  # broadcast: served by the caches
            continue
        for v, stride in strides.items():
            if stride == 1:
                weights[v] = weights.get(v, 0) + sizes[access.buffer]
    return weights


def pointwise_candidates(kernel: Kernel, x: Dim) -> tuple[Candidate, ...]:
    """Blocks of whole 16-byte vectors per thread; smaller ones where the kernel would not fill the GPU."""
    vector = clamp(16 // smallest(kernel), 2, 8)
    wide = sum(1 for a in kernel.nest.loads() if a.index.variables()) <= 2
    full = LANES * 4 * (16 if wide else vector * 2)  # bytes enough under way
    block = clamp(power(-(-x.hint // PROGRAMS)), min(128, power(x.hint)), full)
    whole = x.size & -x.size if isinstance(x.size, int) else 0  # the largest power of two that divides
    if 512 <= whole < block:
        block = whole
    if kernel.symbols and any(a.mask is not None for a in kernel.nest.loads()):
        block = min(block, LINE // 2)  # as for lines
    first = Candidate({"XBLOCK": block}, warps_for(block, vector, 4))
    others = [Candidate({"XBLOCK": b}, w) for b, w in ((block * 2, 8), (block * 4, 8), (block // 2, 4), (block, 8)) if LANES * w <= b <= 4096]
    return unmasked((first, *others), ("XBLOCK", x.size))


def line_candidates(kernel: Kernel) -> tuple[Candidate, ...]:
    """Shorter ones where lines may start anywhere in memory: each element is then accessed by itself, and takes registers for that."""
    shapes = ((LINE, 4), (LINE, 8), (LINE // 2, 4), (LINE * 2, 8))
    if kernel.symbols:
        shapes = ((LINE // 2, 4), (LINE // 4, 4), (LINE, 8), (LINE, 4))
    return tuple(Candidate({"YBLOCK": 1, "XBLOCK": b}, w) for b, w in shapes)


def transpose_candidates(y: Dim, x: Dim) -> tuple[Candidate, ...]:
    sides = ((64, 64, 8), (128, 64, 8), (64, 32, 4), (32, 32, 4))
    small = [Candidate({"YBLOCK": min(a, power(y.hint)), "XBLOCK": min(b, power(x.hint))}, w) for a, b, w in sides]
    return unmasked(small, ("YBLOCK", y.size), ("XBLOCK", x.size))


def reduction_candidates(kernel: Kernel, x: Dim, r: Dim) -> tuple[bool, tuple[Candidate, ...]]:
    weights = unit_strides(kernel, kernel.nest.axes)
    along_x = sum(weights.get(a.var, 0) for a in x.axes)
    along_r = sum(weights.get(a.var, 0) for a in r.axes)
    if along_x > along_r and x.hint >= 8:
        return column_candidates(kernel, x, r)
    return row_candidates(kernel, x, r)


def row_candidates(kernel: Kernel, x: Dim, r: Dim) -> tuple[bool, tuple[Candidate, ...]]:
    """r contiguous: whole rows in registers where they fit and are needed again, else a loop."""
    width = power(r.hint)
    passes, live = reuse(kernel.nest)
    narrow = smallest(kernel) <= 2 or misaligned(kernel, x)
    fits = width <= PERSISTENT and width * live // (LANES * 16) <= REGISTERS
    held = width <= 1024 or (fits and (passes > 1 or (width <= SCANNED and bool(kernel.nest.scans())))) or kernel.nest.scans_both_ways
    if not isinstance(r.size, int):
        return True, unmasked(unknown_row_candidates(x, width if held else min(width, 4096), live), ("XBLOCK", x.size))
    if held:
        if row_parts(kernel, r) > 1:
            return False, unmasked(part_candidates(kernel, x, r), ("XBLOCK", x.size))
        rows = clamp(1024 // width, 1, max(1, power(x.hint // PROGRAMS + 1)))
        best = row_warps(rows * width, narrow)
        if sums_together(kernel.nest) > 1 and live <= 2 and rows <= FEW_ROWS and x.hint // rows * 2 >= PROGRAMS:
            best = clamp(rows * width // (LANES * 32), 1, 16)
        options = [Candidate({"XBLOCK": rows, "RBLOCK": width}, w) for w in (best, best * 2, best // 2) if 1 <= w <= 32]
        for scale in (2, 4):
            tile = rows * scale * width
            if tile * live // (LANES * 16) <= REGISTERS and rows * scale <= power(x.hint):
                options.append(Candidate({"XBLOCK": rows * scale, "RBLOCK": width}, row_warps(tile, narrow)))
        return False, unmasked(options, ("XBLOCK", x.size))
    steps = ((4096, 16), (8192, 32), (2048, 16), (2048, 8))
    if online_pairs(kernel.nest):  # passes of exponentials: bound by arithmetic
        steps = ((1024, 8), (2048, 16), (2048, 8), (4096, 16)) if passes == 2 else ((2048, 16), (1024, 8), (4096, 16), (4096, 32))
    return True, unmasked([Candidate({"XBLOCK": 1, "RBLOCK": min(b, width)}, clamp(w, 1, min(b, width) // LANES)) for b, w in steps])


def unknown_row_candidates(x: Dim, block: int, live: int) -> list[Candidate]:
    """Rows as long as the call says, walked in blocks that take in a row of the example where that is not too long. They may start anywhere in memory,
    which costs less where a thread has more values, as it has of narrow ones elsewhere."""
    rows = clamp(1024 // block, 1, max(1, power(x.hint // PROGRAMS + 1)))
    best = row_warps(rows * block, narrow=True)
    found = [Candidate({"XBLOCK": rows, "RBLOCK": block}, w) for w in (best, best * 2, best // 2) if 1 <= w <= 32]
    if rows * 2 * block * live // (LANES * 16) <= REGISTERS and rows * 2 <= power(x.hint):
        found.append(Candidate({"XBLOCK": rows * 2, "RBLOCK": block}, row_warps(rows * 2 * block, narrow=True)))
    return found


def row_parts(kernel: Kernel, r: Dim) -> int:
    """How many tiles make a row; 1 where their order would matter."""
    ordered = any(op.name == "scan" or (op.name == "reduce" and op.attr in PLACES) for op in kernel.nest.body)
    return 1 if ordered or not isinstance(r.size, int) else parts_of(r.size)


def part_candidates(kernel: Kernel, x: Dim, r: Dim) -> list[Candidate]:
    """Rows of several tiles, one at a time, by few warps: less is exchanged between them."""
    width, warps = r.size // row_parts(kernel, r), part_warps(r.size)
    if x.hint * 2 >= PROGRAMS and sums_together(kernel.nest) > 1:
        warps = max(1, warps // 2)
    shapes = ((1, warps), (2, warps), (4, warps * 2), (1, warps * 2), (2, warps * 2), (1, warps // 2))
    return [Candidate({"XBLOCK": b, "RBLOCK": width}, w) for b, w in shapes if b <= power(x.hint) and 1 <= w <= 32]


def part_warps(size: int) -> int:
    """Warps for rows of `size` values in all: about 12 a thread."""
    return clamp(power(size // (LANES * 12)), 1, 16)


def folded_candidates(kernel: Kernel, rows: int, r: Dim) -> tuple[Candidate, ...]:
    """Whole rows, few at a time, beside a sum per column; STAGES: tiles that are read ahead."""
    width = r.hint // row_parts(kernel, r) if row_parts(kernel, r) > 1 else power(r.hint)
    most = rows & -rows  # the block divides the rows
    block = min(clamp(512 // r.hint, 1, 16), most)
    warps = max(2, part_warps(block * r.hint))
    shapes = ((block, warps, 3), (block, warps, 4), (block, warps * 2, 3), (block, warps, 1), (block, warps // 2, 3), (block * 2, warps, 3))
    options = [Candidate({"XBLOCK": b, "RBLOCK": width, "STAGES": s}, w) for b, w, s in shapes if b <= most and 1 <= w <= 32]
    return unmasked(options)


def column_candidates(kernel: Kernel, x: Dim, r: Dim) -> tuple[bool, tuple[Candidate, ...]]:
    """x contiguous: a warp reads along x, the loop walks r. Few columns leave few programs, so those get many warps each."""
    width, columns = power(r.hint), power(x.hint)
    passes, live = reuse(kernel.nest)
    narrow = smallest(kernel) <= 2
    if isinstance(r.size, int) and (
        width <= 64 or kernel.nest.scans_both_ways or (passes > 1 and width * min(16, columns) * live // (LANES * 8) <= REGISTERS and width <= 512)
    ):
        most = clamp((8192 if narrow and width > 64 else 4096) // width, 32, 64)
        across = min(clamp(power(x.hint // PROGRAMS + 1), 16, most), columns)
        together = sums_together(kernel.nest)
        shapes = [(n, column_warps(n * width, x.hint // n, live, narrow, together)) for n in (across, across * 2, across // 2) if 0 < n <= columns]
        shapes.insert(1, (across, min(shapes[0][1] * 2, 16)))
        options = [Candidate({"XBLOCK": n, "RBLOCK": width}, w) for n, w in shapes]
        return False, unmasked(options, ("XBLOCK", x.size))
    if x.hint >= PROGRAMS * 32:
        steps = ((128, 16, 4), (64, 8, 4), (64, 16, 4), (128, 16, 8)) if narrow else ((64, 16, 4), (32, 32, 4), (64, 8, 4), (32, 16, 4))
    elif x.hint >= 132 * 28:
        steps = ((32, 128, 16), (32, 64, 16), (16, 128, 16), (64, 32, 16)) if narrow else ((32, 64, 16), (16, 64, 8), (16, 128, 16), (32, 128, 16))
    else:
        steps = ((16, 128, 16), (32, 64, 16), (16, 64, 8), (32, 128, 16))
    options = [Candidate({"XBLOCK": min(a, columns), "RBLOCK": min(b, width)}, w) for a, b, w in steps]
    return True, unmasked([c for c in options if prod(c.blocks.values()) >= c.warps * LANES] or [replace(options[0], warps=4)], ("XBLOCK", x.size))


def smallest(kernel: Kernel) -> int:
    """Bytes of the narrowest float (or other) element that the kernel touches."""
    floats = [p.dtype.itemsize for p in kernel.params if p.dtype.is_floating_point]
    return min(floats or [p.dtype.itemsize for p in kernel.params])


def reuse(nest: Nest) -> tuple[int, int]:
    """Passes over r that the nest needs, and how many 4-byte words per r point live across them (at least one)."""
    phases = op_phases(nest, {})
    level = levels(nest)
    uses: dict[int, set[int]] = {}
    for i, op in enumerate(nest.body):
        for a in op.args:
            uses.setdefault(a, set()).add(phases[i] - (op.name == "reduce"))
    live = 1
    for i, op in enumerate(nest.body):
        held = uses.get(i, set()) | ({phases[i]} if op.name != "load" else set())  # a load waits until it is needed
        if level[i] == "r" and len(held) > 1:
            live += max(1, op.dtype.itemsize // 4)
    return max((p for i, p in enumerate(phases) if level[i] == "r"), default=0) + 1, max(live, 2)


def sums_together(nest: Nest) -> int:
    """The most float sums that one reduction makes: each is exchanged between all threads, which fewer warps with more values each do less of."""
    phases = op_phases(nest, {})
    sums = [phases[i] for i, op in enumerate(nest.body) if op.name == "reduce" and op.attr == "sum" and op.dtype.is_floating_point]
    return max((sums.count(phase) for phase in sums), default=0)


def op_phases(nest: Nest, online: Mapping[int, int]) -> tuple[int, ...]:
    """For each op, how many passes over r must have ended before it can be computed. online: reduces that end with an earlier one."""
    partner = {total: top for top, total in online.items()}
    phases: list[int] = []
    for i, op in enumerate(nest.body):
        needed = [phases[a] for a in op.args]
        index = op.attr.index if isinstance(op.attr, Access) else op.attr if isinstance(op.attr, Index) else None
        if index is not None:
            needed += [phases[int(v.name[1:])] for v in index.variables() if v.name.startswith("%")]
        if isinstance(op.attr, Access) and op.attr.mask is not None:
            needed.append(phases[op.attr.mask])
        phases.append(phases[partner[i]] if i in partner else max(needed, default=0) + (op.name == "reduce"))
    return tuple(phases)


def warps_for(block: int, vector: int, most: int) -> int:
    return clamp(block // (LANES * vector), 1, most)


def row_warps(tile: int, narrow: bool) -> int:
    """Warps for a tile of rows: 16 values a thread where they have 16 bits, else 8."""
    return clamp(tile // (512 if narrow else 256), 1, 16)


def column_warps(tile: int, programs: int, live: int, narrow: bool, together: int) -> int:
    """Warps for a tile of columns: few, as what each sums by itself need not be exchanged, where there are programs enough that they keep memory busy.
    Where several sums are exchanged `together`, half as many, each of which has twice as much of memory under way."""
    fewer = clamp(tile // (LANES * 64), 1, 16)
    if together > 1 and not narrow and live * 64 <= REGISTERS and programs * fewer * 2 >= BUSY:
        return fewer
    few = clamp(tile // (LANES * (64 if narrow else 32)), 1, 16)
    return few if live * 32 <= REGISTERS and programs * few >= BUSY else row_warps(tile, narrow)


def unmasked(candidates: Iterable[Candidate], *sizes: tuple[str, Extent]) -> tuple[Candidate, ...]:
    """Distinct candidates; where the best guess divides a size, only those that do as well, since one text serves all."""
    ordered = list({(tuple(c.blocks.items()), c.warps, c.stages): c for c in candidates}.values())
    for block, size in sizes:
        if size % ordered[0].blocks[block] == 0:
            ordered = [c for c in ordered if size % c.blocks[block] == 0]
    return tuple(ordered)
