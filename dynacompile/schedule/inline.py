"""Cheap producers are computed where they are used instead of being stored.

A producer is a pointwise nest whose buffer only nests read. It goes into its readers when it reads nothing or little (fills, iotas,
broadcasts), when each element is needed as often as reading it would cost, or when its one reader takes its elements in another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Extent, Index, Symbol, Var, atom, constant, hint, never_negative
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, LoopProgram, Nest, Op, Origin, root
from dynacompile.ops.scalars import SCALARS
from dynacompile.schedule.domain import digits_of

SLOW = frozenset(
    (
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "erf",
        "pow",
        "atan2",
        "truediv",
        "sqrt",
        "rsqrt",
        "floordiv",
        "mod",
        "fmod",
        "uniform",
    )
)
RANDOM = 64  # cost of a random number
CHEAP = 24  # cost of ops that may be done again instead of reading a result
CHEAP_OFTEN = 8  # the same where each result is needed many times
FEW_READERS = 4  # nests on a GPU that compute the elements of a table anew which is made of positions
CHEAP_MASKED = 64  # the same for a part of a larger result
BROADCAST = 4  # "many times"; a producer reads at most 5/4 of the bytes that it writes
SCANNED = 4  # the bytes that the producer of a scan reads for each that it writes; stored, they would be read, written, and read twice
MAX_BODY = 200
SHORT = 64  # neighbours that are too few for lanes of their own


@dataclass(frozen=True)
class Producer:
    """A pointwise nest that may be copied into its readers. digits: its axes as digits of the stored address.

    again: repeating it costs no more than reading its result; else only a reader that fusing could not join takes it.
    for_scans: nor does repeating it in a scan, which reads what it scans twice where rows are few.
    positions: a table of a GPU that few nests read, computed from positions alone by fast operations: it is computed anew however many points read it.
        On an H200 bilinear interpolation, where four nests read each table, takes 53 us for 80 with tables, as reads of places, of factors and of elements
        wait for one another; with three dimensions, or bicubic, tables are faster.
    """

    nest: Nest
    digits: tuple[tuple[Any, Axis], ...]
    offset: int
    points: int
    cost: int
    reads: bool
    again: bool
    for_scans: bool
    positions: bool
    spreads: bool


def inline(program: LoopProgram) -> LoopProgram:
    """The program with cheap producers copied into their readers, and without those that nothing reads any more."""
    buffers = program.buffers
    fixed, changing = fixed_buffers(program), changing_buffers(program)
    readers: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Nest):
            for name in {a.buffer for a in step.loads()}:
                readers[name] = readers.get(name, 0) + 1
    chosen: dict[torch.device, dict[str, Producer]] = defaultdict(dict)  # what the CPU computes for a GPU, it computes once
    steps: list[Nest | Extern] = []
    for step in program.steps:
        if isinstance(step, Nest):
            target = step.stores()[0].buffer
            step = with_producers(step, chosen[buffers[target].device])
            if target not in fixed and not step.r_axes and readers.get(target):
                producer = producer_of(step, target, buffers, readers[target], changing)
                if producer is not None:
                    chosen[buffers[target].device][target] = producer
        steps.append(step)
    return replace(program, steps=without_unread(steps, fixed))


def without_unread(steps: list[Nest | Extern], fixed: Set[str]) -> tuple[Nest | Extern, ...]:
    """The steps less the producers whose every reader has copied them, and less what was computed for readers that turned out not to need it, such as a copy
    that takes from what it writes over nothing but the size."""
    kept: list[Nest | Extern] = []
    read: set[str] = set()
    for step in reversed(steps):
        if isinstance(step, Nest):
            if not any(a.buffer in fixed or a.buffer in read for a in step.stores()):
                continue
            read.update(a.buffer for a in step.loads())
        kept.append(step)
    return tuple(reversed(kept))


def changing_buffers(program: LoopProgram) -> set[str]:
    """Memory whose contents change while the program runs: a load from it must stay where it is."""
    found: set[str] = set()
    stored: set[str] = set()
    for step in program.steps:
        if isinstance(step, Extern):
            found.update(root(program.buffers, m) for m in step.mutates)
        else:
            for name in {a.buffer for a in step.stores()}:
                if name in stored or program.buffers[name].kind != "temp":
                    found.add(name)
                stored.add(name)
    return found


def fixed_buffers(program: LoopProgram) -> set[str]:
    """Memory that is not only between nests, inputs, outputs, and what externs touch; and what is stored more than once, or computed once."""
    buffers = program.buffers
    fixed = {n for n, b in buffers.items() if b.base is None and (b.kind != "temp" or b.once)}
    fixed |= {root(buffers, o) for o in program.outputs if o is not None}
    stored: set[str] = set()
    for step in program.steps:
        if isinstance(step, Extern):
            fixed.update(root(buffers, n) for n in (*step.reads(), *step.mutates, *(o for o in step.outputs if o is not None)))
        else:
            for access in step.stores():
                if access.buffer in stored:
                    fixed.add(access.buffer)
                stored.add(access.buffer)
    return fixed


def producer_of(nest: Nest, target: str, buffers: Mapping[str, Buffer], readers: int, changing: set[str]) -> Producer | None:
    """The nest as a producer worth copying, else None."""
    stores = nest.stores()
    if len(stores) != 1 or stores[0].mask is not None or len(nest.body) > MAX_BODY:
        return None
    loads = {a.buffer: a for a in nest.loads()}
    if not changing.isdisjoint(loads):
        return None
    cost = sum(RANDOM if op.name == "uniform" else 8 if op.name in SLOW else 1 for op in nest.body if op.name in SCALARS)
    indirect = any(v.name[0] == "%" for a in loads.values() for v in a.index.variables())
    read = sum(touched(a, nest, buffers[n]) for n, a in loads.items())
    cheap = cost <= CHEAP and not indirect
    again = cheap and BROADCAST * read <= (BROADCAST + 1) * buffers[target].bytes
    if not again and readers > 1:
        return None
    digits = digits_of(stores[0].index, nest.axes)
    if digits is None or not nested(digits):
        return None
    points = 1
    for _, axis in digits:
        points *= hint(axis.size)
    for_scans = cheap and read <= SCANNED * buffers[target].bytes
    fast = cheap and not any(op.name in SLOW for op in nest.body)
    positions = fast and not loads and readers <= FEW_READERS and buffers[target].device.type != "cpu"
    spreads = buffers[target].device.type == "cpu" and is_spread(nest, stores[0], loads.values())
    return Producer(nest, tuple(digits), stores[0].index.constant, points, cost, bool(loads), again, for_scans, positions, spreads)


def is_spread(nest: Nest, store: Access, loads: Iterable[Access]) -> bool:
    """Whether a load has one element for each group of neighbours of what is stored, which has several groups side by side."""
    inner = next((a for a in nest.axes if store.index.stride(a.var) == 1), None)
    if inner is None:
        return False
    short = len(nest.axes) > 1 and isinstance(inner.size, int) and 1 < inner.size < SHORT
    return any((short and a.index.variables() and inner.var not in a.index.variables()) or a.index.stride(inner.var) is None for a in loads)


def nested(digits: list[tuple[Any, Axis]]) -> bool:
    """Each address is made by one point only."""
    span: Extent = 1
    for stride, axis in reversed(digits):
        if not never_negative(constant(0) + stride - span):
            return False
        span = stride * axis.size
    return True


def touched(access: Access, nest: Nest, buffer: Buffer) -> int:
    """Bytes of the buffer that the nest reads through an access."""
    points = 1
    variables = access.index.variables()
    for axis in nest.axes:
        if axis.var in variables:
            points *= hint(axis.size)
    return min(points, hint(buffer.numel)) * buffer.dtype.itemsize


def with_producers(nest: Nest, chosen: Mapping[str, Producer]) -> Nest:
    """The nest with loads of chosen producers replaced by their computation, where the place of a load says which point made it."""
    if not any(a.buffer in chosen for a in nest.loads()):
        return nest
    body = Body()
    points = 1
    for axis in nest.axes:
        points *= hint(axis.size)
    origins: dict[Origin, None] = {}
    scans = bool(nest.scans())

    def on_load(access: Access, dtype: torch.dtype) -> int | None:
        producer = chosen.get(access.buffer)
        if producer is None or len(body.ops) + len(producer.nest.body) > MAX_BODY:
            return None
        often = points > BROADCAST * producer.points
        if often and producer.spreads:
            return None
        if producer.again or (scans and producer.for_scans):
            if often and producer.cost > CHEAP_OFTEN and not producer.positions:
                return None
        elif not (reorders(access.index, producer, nest, points) or (access.mask is not None and not often and producer.cost <= CHEAP_MASKED)):
            return None
        point = locate(access.index, producer, ranges_where(body.ops, access.mask))
        if point is None:
            return None
        value: list[int] = []
        body.splice(producer.nest.body, point, access.mask, on_load, lambda v, _: value.append(v))
        origins.update(dict.fromkeys(producer.nest.origins))
        if access.mask is not None:
            return body.emit("where", (access.mask, value[0], body.emit("constant", (), dtype, access.other)), dtype)
        return value[0]

    body.splice(nest.body, {}, None, on_load)
    origins.update(dict.fromkeys(nest.origins))
    return replace(nest, body=without_dead(body.ops), origins=tuple(origins))


def ranges_where(ops: Sequence[Op], mask: int | None) -> dict[Var, tuple[Any, Any]]:
    """The least and greatest value of loop variables where a mask is true: what its comparisons of variables with numbers say."""
    found: dict[Var, tuple[Any, Any]] = {}
    waiting = [] if mask is None else [mask]
    while waiting:
        op = ops[waiting.pop()]
        if op.name == "and":
            waiting += op.args
        elif op.name in ("lt", "le"):
            left, right = ops[op.args[0]], ops[op.args[1]]
            index, number = (left, right) if left.name == "index" and left.attr.variables() else (right, left)
            bound = number_of(number)
            if index.name != "index" or bound is None or len(index.attr.terms) != 1:
                continue
            ((monomial, coefficient),) = index.attr.terms
            if len(monomial) != 1 or type(monomial[0]) is not Var or coefficient != 1 or monomial[0].size is None:
                continue
            variable = monomial[0]
            low, high = found.get(variable) or (0, monomial[0].size - 1)
            bound = bound - index.attr.constant
            strict = op.name == "lt"
            if index is left:
                high = high if at_least(bound - strict, high) else bound - strict if at_least(high, bound - strict) else high
            else:
                low = low if at_least(low, bound + strict) else bound + strict if at_least(bound + strict, low) else low
            if at_least(high, low):
                found[variable] = (low, high)
    return found


def number_of(op: Op) -> Extent | None:
    """The integer that a value is at every point, as far as the op says it."""
    if op.name == "index":
        return None if op.attr.variables() else op.attr
    return op.attr if op.name == "constant" else None


def at_least(a: Extent, b: Extent) -> bool:
    """a >= b in every call."""
    return a >= b if isinstance(a, int) and isinstance(b, int) else never_negative(constant(0) + a - b)


def locate(index: Index, producer: Producer, ranges: Mapping[Var, tuple[Any, Any]]) -> dict[Var, Index | int] | None:
    """Which point of the producer stored the element at `index`; None where that needs divisions that don't fold.

    ranges: what else is known of loop variables, so that more divisions fold.
    """
    if ranges:
        narrow = {v: Var(v.name + "'", high - low + 1) for v, (low, high) in ranges.items()}
        inner = locate(index.subs({v: atom(n) + ranges[v][0] for v, n in narrow.items()}), producer, {})
        back = {n: atom(v) - ranges[v][0] for v, n in narrow.items()}
        return None if inner is None else {v: i.subs(back) if isinstance(i, Index) else i for v, i in inner.items()}
    point: dict[Var, Index | int] = {}
    rest = index - producer.offset
    outer: Extent | None = None
    for stride, axis in producer.digits:
        found = rest // stride
        if outer is not None:
            dense = constant(0) + stride * axis.size == constant(0) + outer
            found = found % axis.size if dense else rest % outer // stride  # rows may leave gaps in memory
        outer = stride
        if producer.reads and not is_plain(found):
            return None
        point[axis.var] = found
    return point


def is_plain(index: Index) -> bool:
    return all(type(a) is Var or type(a) is Symbol for monomial, _ in index.terms for a in monomial)


def reorders(index: Index, producer: Producer, nest: Nest, points: int) -> bool:
    """The reader does not take all elements once each, so that fusing could not join the two, and takes no more than there are."""
    return points < producer.points or (points == producer.points and not nest.r_axes and digits_of(index, nest.axes) is None)
