"""How a kernel runs: which axis goes into the lanes, in how many passes, what is kept between passes, and what runs in parallel.

Three shapes of loops (x: axes that make outputs, r: axes reduced over):

    pointwise   for points of the outer x: lanes along an x axis
    row         for points of x: for each pass: lanes along an r axis, accumulators in registers, folded across lanes at the end
    column      for tiles of an x axis: for each pass: for r: lanes along the tile, accumulators in arrays

Where there are few points and much to reduce, the r axes are cut in chunks that run in parallel, whose results combine in a fixed tree: equal results for any
number of threads. An accumulator takes in a few dozen floats one by one; sums of such blocks are added up with what their additions lose, so that
float32 stays accurate in sums of any length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm, prod

import torch

from dynacompile.codegen.cpp.groups import grouped
from dynacompile.ir.body import needs
from dynacompile.ir.divisions import index_of
from dynacompile.ir.index import Extent, Index, Symbol, atom, extent, hint
from dynacompile.ir.loops import Access, Axis, Nest, Op, levels

WIDEST = 16  # lanes that tiles and blocks are multiples of, whatever the target has
GRAIN = 32768  # elements of cheap work below which threads cost more than they give
FEW_TASKS = 16
BLOCK = 4096  # elements of a row that one set of accumulators takes in
CROSSING = 64  # elements, each way, of a block of a transpose: whole lines of memory both ways, and the block stays in the first-level cache
NARROW = WIDEST  # the same where a task goes along lanes that are many: squares that are turned in registers, between lines that are accessed whole
MANY_LANES = 512
PAGES = 1024  # of memory that a task's crossed accesses meet, whose addresses the processor has at hand
PAGE = 4096  # bytes
CROSSED_BYTES = 32 * 1024  # of all blocks at a time
ARRAY_BYTES = 24 * 1024  # of accumulators, to stay in the first-level cache
SCANNED = 4  # elements of an axis whose lanes are worth scans of their own
SCRATCH_BYTES = 128 * 1024  # of values kept for a later pass over a row, on the thread's stack
LIST_TILE = 8192  # elements of a block of a member of a list: small beside a list that is worth several threads, large beside what a block costs
NEAR_BYTES = 64 * 1024  # the same of values that are cheap, which have to be near
SPARED = 5  # operations that reading a kept value has to spare, where storing and loading it is two
TILE_BYTES = 64 * 1024  # of values kept for a later pass over a column tile
TURNED_BYTES = 256 * 1024  # the same of values from transposed blocks, which cost more to make again than to read from the second-level cache
MOST_CHUNKS = 256
COSTLY = {
    "exp": 4, "exp2": 4, "expm1": 5, "log": 5, "log2": 5, "log1p": 8, "sin": 5, "cos": 5, "tanh": 6, "sigmoid": 6, "erf": 7, "ndtr": 6, "pow": 16, "atan2": 20,
    "floordiv": 12, "mod": 12, "fmod": 12, "scan": 3, "uniform": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What max-autotune tries otherwise; 0: as planned. tile: of columns and transposes. sets: of accumulators of a row. keep: costly values for
    later passes, 0 keeps, 1 computes them again. unroll: vectors per step of a loop without accumulators."""

    tile: int = 0
    sets: int = 0
    again: int = 0
    unroll: int = 1


@dataclass(frozen=True)
class Plan:
    """lane: the axis in the lanes (None: no axes). deep[i]: op i has lanes. when[i]: the pass of an r-level op; how many passes an x-level op waits for.
    kept: r-level ops that a later pass reads back. tile: elements of a column tile, or of a block of a pointwise lane axis.
    chunk: elements of the lane axis (row over one r axis) or steps over r that a chunk takes in; split: chunks run in parallel.
    weight: cost of one point. listed: the loops are those of one member of a list. crossed: loads and stores that are consecutive along the one axis of
    `middle` and stride along the lanes: they go through blocks of `block` steps, transposed between memory and the lanes. strips: a task has a block's
    steps and goes from tile to tile, else it has a tile and goes from block to block. group: neighbours in the lanes whose accumulators are combined after
    a pass. What sizes decide here, those of the example decide."""

    nest: Nest
    shape: str  # "pointwise" | "row" | "column"
    lane: Axis | None
    level: tuple[str, ...]
    deep: tuple[bool, ...]
    when: tuple[int, ...]
    passes: int
    kept: frozenset[int]
    outer: tuple[Axis, ...]  # x axes of a point
    middle: tuple[Axis, ...]  # r axes outside the lanes; of a pointwise nest: x axes inside a block of lanes
    tile: int
    chunk: int
    split: bool
    wide: bool
    lane_bytes: int
    weight: float
    choice: Choice = Choice()
    listed: bool = False
    crossed: frozenset[int] = frozenset()
    block: int = 0
    strips: bool = False
    group: int = 1

    @property
    def tasks(self) -> Extent:
        """What threads share out: points, and tiles or strips."""
        return extent(self.points * self.tiles)

    @property
    def task_size(self) -> Extent | str:
        """Elements that a task takes in, as an extent or as text."""
        inner = extent(self.steps * prod(a.size for a in self.nest.r_axes if a == self.lane)) if self.shape != "pointwise" else self.steps
        if self.lane is None or self.shape == "row":
            return inner
        if type(self.lane.size) is Index:
            text = f"({self.lane.size} < {self.tile} ? {self.lane.size} : {self.tile})"
            return text if inner == 1 else f"{text} * ({inner})"
        return extent(min(self.lane.size, self.tile) * inner)

    @property
    def steps(self) -> Extent:
        return extent(prod(a.size for a in self.middle))

    @property
    def most_lanes(self) -> int:
        """Half as many lanes as the widest vectors have, where the lane axis does not fill more; else 0. Whole vectors need no masks."""
        return WIDEST // 2 if isinstance(self.lane_size, int) and 1 < self.lane_size <= WIDEST // 2 and self.lane_bytes == 4 else 0

    @property
    def lane_size(self) -> Extent:
        return 1 if self.lane is None else self.lane.size

    @property
    def chunk_of(self) -> Extent:
        """What chunks divide: the lane axis of a row with no other r axis, else the steps."""
        return self.lane_size if self.shape == "row" and not self.middle else self.steps

    @property
    def walked(self) -> bool:
        """Chunks follow each other, as many as the call has."""
        return type(self.chunk_of) is Index and not self.split and self.shape != "pointwise"

    @property
    def step(self) -> Extent:
        """`chunk`, or, where as many chunks as may be at most take in more than that, what these take in."""
        return atom(Symbol("chunk_size", self.chunk)) if type(self.chunk_of) is Index and self.split else self.chunk

    @property
    def chunks(self) -> Extent:
        if type(self.chunk_of) is Index:
            return atom(Symbol("chunks", -(-hint(self.chunk_of) // self.chunk)))
        return -(-self.chunk_of // self.chunk)

    @property
    def joined(self) -> bool:
        """Whether a thread runs through the steps once for all tiles that it has: tiles only share out elements that are added to."""
        alone = self.passes == 1 and not self.nest.is_reduction and not self.crossed and not self.listed
        return self.shape == "column" and self.nest.adds and alone and self.points == 1

    @property
    def shared(self) -> tuple[Extent, int]:
        """What the tasks of a point share, and how much of it each has: steps in strips, or elements in the lanes."""
        return (self.steps, self.block) if self.strips else (self.lane_size, self.tile)

    @property
    def tiles(self) -> Extent:
        """The tasks of a point."""
        if self.lane is None or self.shape == "row":
            return 1
        size, each = self.shared
        if type(size) is Index:
            return atom(Symbol("tiles", -(-hint(size) // each)))
        return -(-size // each)

    @property
    def points(self) -> Extent:
        return extent(prod(a.size for a in self.outer))

    @property
    def parallel(self) -> str:
        """The start of a call that runs tasks on the threads, where the call has work for them."""
        work = extent(prod(a.size for a in self.nest.axes))
        return "parallel<true>(" if isinstance(work, int) else f"parallel_when({work} >= {int(GRAIN / self.weight)}, "

    @property
    def whole_tasks(self) -> bool:
        """Whether threads share out tasks, each with all of its chunks, where a call has enough of them, and else the chunks of one task after the other."""
        return self.split and self.tasks != 1

    @property
    def parallel_chunks(self) -> str:
        """The start of a call that runs the chunks of a task."""
        return f"parallel_when(together, {self.chunks}, " if self.whole_tasks else f"parallel<true>({self.chunks}, "

    def definitions(self) -> list[str]:
        """Numbers of the loops that only the call knows."""
        lines = []
        size, each = self.shared
        if type(size) is Index and self.shape != "row":
            lines.append(f"const i64 tiles = ({size} + {each - 1}) / {each};")
        total = self.chunk_of
        if type(total) is Index and self.split:
            unit = 4 * WIDEST if self.shape == "row" and not self.middle else 1
            lines.append(f"const i64 wanted = ({total} + {MOST_CHUNKS - 1}) / {MOST_CHUNKS}, wider = wanted > {self.chunk} ? wanted : {self.chunk};")
            lines.append(f"const i64 chunk_size = (wider + {unit - 1}) / {unit} * {unit};")
            lines.append(f"const i64 chunks = {total} > 0 ? ({total} + chunk_size - 1) / chunk_size : 1;")
        return lines


def choices(first: Plan) -> list[Choice]:
    """The choices worth a try besides `first`, for its shape of loops."""
    found = []
    if first.shape == "pointwise" and first.middle:
        found += [Choice(tile=t) for t in (16, 64, 128)]
    elif first.shape != "column":
        found += [Choice(unroll=2), Choice(unroll=4)]
    if first.shape == "row" and first.lane_size >= 64:
        found += [Choice(sets=1), Choice(sets=4)]
    if first.shape == "column":
        found += [Choice(tile=t) for t in (64, 256, 1024) if t != first.tile and t < 2 * first.lane_size]
    if first.kept:
        found.append(Choice(again=1))
    return found


def plan(nest: Nest, choice: Choice = Choice(), listed: bool = False) -> Plan:
    """listed: of one member of a list, whose tasks are few and small, since those of all members run in parallel."""
    alone, (nest, group) = nest, (nest, 1) if listed else grouped(nest, WIDEST)
    level = levels(nest)
    lane = choose_lane(nest, level)
    if nest is not alone and (lane is None or lane in alone.axes):
        nest, group, level = alone, 1, levels(alone)
        lane = choose_lane(nest, level)
    shape = "pointwise" if not nest.r_axes else "row" if lane is not None and lane.role == "r" else "column"
    deep = lanes_of_ops(nest, lane, shape)
    when = passes_of_ops(nest, level)
    passes = 1 + max((w for op, w, v in zip(nest.body, when, level, strict=True) if v == "r"), default=0)
    passes = max([passes, *(when[i] for i, op in enumerate(nest.body) if op.name == "reduce")])
    outer = tuple(a for a in nest.x_axes if a != lane)
    middle = tuple(a for a in nest.r_axes if a != lane)
    if shape == "pointwise":
        crossing = crossing_axis(nest, lane) or axis_around_short_lanes(lane, outer)
        outer, middle = tuple(a for a in outer if a != crossing), () if crossing is None else (crossing,)
    wide_values = any(deep[i] and op.dtype.itemsize == 8 and op.name not in ("store", "constant") for i, op in enumerate(nest.body))
    reduced = reduced_over(nest)
    if type(reduced) is Index or reduced >= 2**31:
        wide_values = wide_values or any(op.name == "reduce" and op.attr in ("argmax", "argmin") for op in nest.body)
    weight = sum(COSTLY.get(op.name, 0.25) if op.name not in ("load", "store") else 1 for op in nest.body) / 3
    work = prod(hint(a.size) for a in nest.axes) * weight
    crossed = crossed_ops(nest, lane, middle[0]) if lane is not None and len(middle) == 1 and shape != "row" else frozenset()
    kept = values_to_keep(nest, level, deep, when, passes, crossed) if passes > 1 else frozenset()
    if passes > 1 and shape == "row":
        further = with_cheaper_values(nest, level, deep, when, passes, kept)
        kept = further if bytes_kept(nest, further) * expected(extent(reduced_over(nest))) <= NEAR_BYTES else kept
    size = sizes(nest, shape, lane, outer, middle, kept if not choice.again else frozenset(), 0 if listed else work, bool(crossed))
    if listed and shape == "pointwise" and not middle:
        size = replace(size, tile=LIST_TILE)
    if choice.tile and shape == "pointwise":
        size = replace(size, tile=choice.tile)
    elif choice.tile and lane is not None and shape == "column" and not (kept and size.keep):
        size = replace(size, tile=min(choice.tile, round_up(expected(lane.size), WIDEST)))
    if choice.again or not size.keep:
        kept = frozenset()
    if crossed and shape == "column":
        size = replace(size, tile=min(size.tile, 2 * CROSSING))
    if group > 1:
        size = replace(size, tile=round_up(size.tile, lcm(group, WIDEST)))
    block = crossed_steps(nest, crossed, size.tile)
    strips = shape == "pointwise" and not listed and lane is not None and in_strips(nest, lane, middle, outer, crossed)
    if strips and lane is not None:
        side = NARROW if is_narrow(nest, lane, crossed) else CROSSING
        size = replace(size, tile=choice.tile or side)
        block = min(crossed_steps(nest, crossed, size.tile), enough(outer, middle[0], (side, CROSSING // 2, CROSSING // 4)))
    lane_bytes = 8 if wide_values else 4
    wide = work >= GRAIN or any(type(a.size) is Index for a in nest.axes)
    return Plan(
        nest, shape, lane, level, deep, when, passes, kept, outer, middle, size.tile, size.chunk, size.split, wide, lane_bytes, weight, choice, listed,
        crossed, block, strips, group,
    )  # fmt: skip


def choose_lane(nest: Nest, level: tuple[str, ...]) -> Axis | None:
    """The axis along which most accesses are consecutive; the innermost among equals. Of an r-less nest an x axis."""
    if not nest.axes:
        return None
    reduces = bool(nest.r_axes)

    def score(axis: Axis) -> float:
        total = 0.0
        for i, op in enumerate(nest.body):
            if not isinstance(op.attr, Access):
                continue
            stride = None if indirect_by(nest, i, axis) else op.attr.index.stride(axis.var)
            weight = 0.05 if reduces and level[i] == "x" else 2.0 if op.name == "store" else 1.0
            total += weight * (1.0 if stride == 1 else 0.7 if stride == 0 else crossing_score(nest, i, axis))
        full = -(-hint(axis.size) // WIDEST) * WIDEST
        return total * (hint(axis.size) / full) ** 0.5 if full else 0.0

    ranked = [(score(a), a.role == "r", i) for i, a in enumerate(nest.axes)]
    if nest.scans():
        ranked = scannable(nest, ranked)
    return nest.axes[max(ranked)[2]]


def scannable(nest: Nest, ranked: list[tuple[float, bool, int]]) -> list[tuple[float, bool, int]]:
    """Those of the axes that lanes of a scan may run along: x axes, whose lanes have scans of their own, and the innermost r axis, whose elements the scan
    takes in one by one: that costs little where elements are added up, and much where they are exponentials."""
    long = [one for one in ranked if not one[1] and hint(nest.axes[one[2]].size) >= SCANNED]
    inner = [one for one in ranked if one[2] == len(nest.axes) - 1]
    return long if long and any(s.kind == "logaddexp" for s in nest.scans()) else [*long, *inner]


def crossing_score(nest: Nest, i: int, axis: Axis) -> float:
    """What lanes along `axis` are worth to op i, which strides along it, beside 1 for consecutive accesses. Columns go through blocks that are
    transposed; rows have no such blocks, and touch as many lines of memory for a vector as it has lanes."""
    if len(nest.r_axes) == 1:
        if axis.role == "x" and i in crossed_ops(nest, axis, nest.r_axes[0]):
            return 0.45
        if axis.role == "r" and any(i in crossed_ops(nest, axis, a) for a in nest.x_axes):
            return -2.0
    return 0.05


def crossed_ops(nest: Nest, lane: Axis, across: Axis) -> frozenset[int]:
    """Loads and stores that are consecutive along `across` and stride along `lane`: those of a transpose, where both axes fill vectors."""
    if min(hint(lane.size), hint(across.size)) < WIDEST:
        return frozenset()

    def is_crossed(op: Op) -> bool:
        if not isinstance(op.attr, Access) or op.attr.mask is not None or op.attr.summed or op.attr.added:
            return False
        if any(v.name[0] == "%" for v in op.attr.index.variables()):
            return False
        stride = op.attr.index.stride(lane.var)
        return op.attr.index.stride(across.var) == 1 and stride is not None and stride not in (0, 1)

    return frozenset(i for i, op in enumerate(nest.body) if is_crossed(op))


def crossed_steps(nest: Nest, crossed: frozenset[int], tile: int) -> int:
    """Steps of a block that all crossed ops together have room for."""
    bytes_of_step = tile * 8 * len(crossed)
    return max(WIDEST, min(CROSSING, CROSSED_BYTES // max(bytes_of_step, 1) // WIDEST * WIDEST))


def enough(outer: tuple[Axis, ...], shared: Axis | None, sides: tuple[int, ...]) -> int:
    """The first of `sides` by which points and blocks of an axis are tasks enough for threads; else the last."""
    points, length = prod(expected(a.size) for a in outer), 1 if shared is None else expected(shared.size)
    return next((side for side in sides if points * -(-length // side) >= FEW_TASKS), sides[-1])


def in_strips(nest: Nest, lane: Axis, middle: tuple[Axis, ...], outer: tuple[Axis, ...], crossed: frozenset[int]) -> bool:
    """Whether to go from block to block along the lanes, so that what is not crossed goes on in memory where the last block ended, which gains where it is
    as much as what is crossed. There have to be strips enough for threads."""
    straight = [op for op in nest.body if isinstance(op.attr, Access) and op.attr.index.stride(lane.var) == 1]
    if not crossed or len(straight) < len(crossed):
        return False
    points = prod(expected(a.size) for a in outer)
    strips, tiles = (points * -(-expected(a.size) // NARROW) for a in (*middle, lane))
    return strips >= min(tiles, FEW_TASKS)


def is_narrow(nest: Nest, lane: Axis, crossed: frozenset[int]) -> bool:
    """Whether strips are as wide as a line of memory: each line that is crossed is then read once and at once. Of few lanes a strip ends too soon; of
    lanes on more pages than there are translations at hand for, wider strips use each translation for more."""
    length = expected(lane.size)
    strides = [nest.body[i].attr.index.stride(lane.var) for i in crossed]  # type: ignore[union-attr]
    apart = max(min(hint(stride) * nest.body[i].dtype.itemsize, PAGE) for i, stride in zip(crossed, strides, strict=True))  # type: ignore[arg-type]
    return length >= MANY_LANES and length * apart <= PAGES * PAGE


def indirect_by(nest: Nest, i: int, axis: Axis) -> bool:
    """Whether op i's index goes through a value that depends on `axis`."""
    index = index_of(nest.body[i])
    if index is None:
        return False
    pending = [int(v.name[1:]) for v in index.variables() if v.name[0] == "%"]
    while pending:
        op = nest.body[pending.pop()]
        inner = index_of(op)
        if inner is not None and axis.var in inner.variables():
            return True
        pending += needs(op)
    return False


def lanes_of_ops(nest: Nest, lane: Axis | None, shape: str) -> tuple[bool, ...]:
    deep: list[bool] = []
    for op in nest.body:
        if op.name in ("reduce", "scan"):
            deep.append(op.name == "scan" or shape == "column")
            continue
        index = index_of(op)
        own = lane is not None and index is not None and lane.var in index.variables()
        deep.append(own or any(deep[a] for a in needs(op)))
    return tuple(deep)


def passes_of_ops(nest: Nest, level: tuple[str, ...]) -> tuple[int, ...]:
    when: list[int] = []
    for op in nest.body:
        latest = max((when[a] for a in needs(op)), default=0)
        when.append(latest + 1 if op.name == "reduce" else latest)
    return tuple(when)


def roots(nest: Nest, level: tuple[str, ...], when: tuple[int, ...], passes: int, number: int) -> list[int]:
    """Ops that pass `number` is for: its reduces and, in the last pass, the r-level stores, so that an output may share an input's memory."""
    found = [i for i, op in enumerate(nest.body) if op.name == "reduce" and when[i] == number + 1]
    if number == passes - 1:
        found += [i for i, op in enumerate(nest.body) if op.name == "store" and level[i] == "r"]
    return found


def closure(nest: Nest, starts: list[int], stop: frozenset[int] | set[int]) -> list[int]:
    """`starts` and all they need, in order; ops in `stop` and results of reduces are taken as given and included, but not what they need."""
    seen: set[int] = set()
    first = set(starts)
    pending = list(starts)
    while pending:
        i = pending.pop()
        if i in seen:
            continue
        seen.add(i)
        if i in first or (i not in stop and nest.body[i].name != "reduce"):
            pending += needs(nest.body[i])
    return sorted(seen)


def values_to_keep(
    nest: Nest, level: tuple[str, ...], deep: tuple[bool, ...], when: tuple[int, ...], passes: int, crossed: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Costly r-level values that more than one pass needs: what a block has to be transposed for is costly, too."""
    turned: set[int] = set()
    for i, op in enumerate(nest.body):
        if (op.name == "load" and i in crossed) or (op.name not in ("reduce", "store") and any(a in turned for a in needs(op))):
            turned.add(i)

    def costly(i: int) -> bool:
        op = nest.body[i]
        indirect = op.name == "load" and any(v.name[0] == "%" for v in op.attr.index.variables())  # type: ignore[union-attr]
        return level[i] == "r" and deep[i] and (op.name in COSTLY or indirect or i in turned)

    used = [closure(nest, roots(nest, level, when, passes, k), frozenset()) for k in range(passes)]
    wanted = {i for i in range(len(nest.body)) if costly(i) and sum(i in u for u in used) > 1}
    kept: set[int] = set()
    ready: set[int] = set()
    for k in range(passes):
        now = closure(nest, roots(nest, level, when, passes, k), ready)
        kept |= {i for i in now if i in ready}
        ready |= {i for i in now if i in wanted}
    return frozenset(kept)


def with_cheaper_values(nest: Nest, level: tuple[str, ...], deep: tuple[bool, ...], when: tuple[int, ...], passes: int, kept: frozenset[int]) -> frozenset[int]:
    """`kept`, and those values of a row that an earlier pass has and that a later one would need several operations for by itself."""

    def costs(ids: list[int]) -> float:
        names = [nest.body[i].name for i in ids if deep[i] and level[i] == "r"]
        return sum(3 * COSTLY.get(name, 1 / 3) for name in names if name not in ("constant", "index", "store"))

    found, had = set(kept), set[int]()
    for k in range(passes):
        starts = roots(nest, level, when, passes, k)
        now = closure(nest, starts, found & had)
        for i in sorted(set(now) & had - found, reverse=True):
            if level[i] == "r" and deep[i] and nest.body[i].name not in ("load", "constant", "index", "store", "reduce"):
                without = closure(nest, starts, (found & had) | {i})
                if costs(now) - costs(without) >= SPARED:
                    found.add(i)
                    now = without
        had |= set(now)
    return frozenset(found)


def bytes_kept(nest: Nest, kept: frozenset[int]) -> int:
    """Of an element of a row."""
    return sum(nest.body[i].dtype.itemsize if nest.body[i].dtype != torch.bool else 4 for i in kept)


def reduced_over(nest: Nest) -> Extent:
    return prod(a.size for a in nest.r_axes)


def crossing_axis(nest: Nest, lane: Axis | None) -> Axis | None:
    """An x axis along which accesses are consecutive that stride along the lanes: a transpose, walked in blocks."""
    if lane is None:
        return None
    for axis in nest.x_axes:
        if axis != lane and axis.size != 1:
            for op in nest.body:
                if isinstance(op.attr, Access) and op.attr.index.stride(axis.var) == 1 and op.attr.index.stride(lane.var) not in (0, 1):
                    return axis
    return None


def axis_around_short_lanes(lane: Axis | None, outer: tuple[Axis, ...]) -> Axis | None:
    """The innermost x axis outside of lanes that are so few that finding a point's place costs more than its elements: a task has all of it."""
    if lane is None or len(outer) < 2 or not isinstance(lane.size, int) or lane.size >= 4 * WIDEST:
        return None
    return outer[-1] if prod(expected(a.size) for a in outer[:-1]) >= FEW_TASKS else None


@dataclass(frozen=True)
class Sizes:
    tile: int
    chunk: int
    split: bool
    keep: bool


def round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def padded(n: Extent) -> int | str:
    """n rounded up to whole vectors; as text where only the call knows it."""
    return round_up(n, WIDEST) if isinstance(n, int) else f"(({n} + {WIDEST - 1}) / {WIDEST} * {WIDEST})"


def expected(size: Extent) -> int:
    """The size to plan for; an example that has none of something says nothing about calls that have."""
    return max(1, hint(size)) if type(size) is Index else hint(size)


def sizes(
    nest: Nest, shape: str, lane: Axis | None, outer: tuple[Axis, ...], middle: tuple[Axis, ...], kept: frozenset[int], work: float, crosses: bool = False
) -> Sizes:
    """Tile, chunk, whether chunks run in parallel, and whether kept values fit."""
    points, steps = prod(expected(a.size) for a in outer), prod(expected(a.size) for a in middle)
    length = 1 if lane is None else expected(lane.size)
    kept_bytes = bytes_kept(nest, kept)
    if shape == "pointwise":
        if middle:
            return Sizes(enough(outer, lane, (CROSSING, CROSSING // 2, CROSSING // 4)), 1, False, False)
        blocks = max(1, min(-(-4 * FEW_TASKS // max(points, 1)), length // 2048))
        return Sizes(round_up(-(-length // blocks), 64), 1, False, False)
    big = work >= GRAIN
    ordered = nest.adds or bool(nest.scans())
    if shape == "row":
        total = length if not middle else steps
        big = big and not ordered
        unit = BLOCK if not middle else max(1, 4 * BLOCK // max(length, 1))
        split = big and points < FEW_TASKS and length * steps >= 2 * GRAIN and total > unit
        if split:
            grown = max(unit, -(-total // MOST_CHUNKS))
            return Sizes(1, round_up(grown, 4 * WIDEST) if not middle else grown, True, False)
        keep = kept_bytes * round_up(length, WIDEST) * steps <= SCRATCH_BYTES
        return Sizes(1, total, False, keep)
    arrays = sum(2 if op.attr in ("argmax", "argmin") else 1 for op in nest.body if op.name == "reduce") or 1
    widest = max((op.dtype.itemsize for op in nest.body), default=4)
    cap = max(64, ARRAY_BYTES // (arrays * max(4, widest)) // 64 * 64)
    tile = min(round_up(length, WIDEST), cap)
    fitting = (TURNED_BYTES if crosses else TILE_BYTES) // (kept_bytes * steps) // WIDEST * WIDEST if kept else 0
    keep = bool(kept) and fitting >= min(WIDEST if crosses else 64, tile)
    if big and not ordered and points * -(-length // tile) < FEW_TASKS and steps >= 64 and steps * length >= 2 * GRAIN and not keep:
        return Sizes(tile, max(16, -(-steps // 64)), True, False)
    if keep:
        tile = min(tile, fitting)
    if big:
        least = WIDEST if nest.adds else 64  # what adds can't share its steps out among threads instead
        wanted = round_up(-(-length * points // FEW_TASKS), least)
        tile = max(min(tile, least), min(tile, wanted))
    return Sizes(tile, steps, False, keep)
