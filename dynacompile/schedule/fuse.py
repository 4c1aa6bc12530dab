"""Nests become one kernel where that saves memory traffic and their points correspond.

Greedy by bytes saved: pairs of units that share a buffer wait in a heap; a merged unit meets its neighbours anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dynacompile.ir.index import Extent, Index, Var, hint
from dynacompile.ir.loops import Access, Axis, Nest
from dynacompile.schedule.domain import Alignment, align, digits_of, keeps_order, linear, remap, row_major, runs_along
from dynacompile.schedule.mirror import align_mirrored, falls, read_forward
from dynacompile.schedule.units import Unit, Units, has_path, replace_pair

MAX_OPS = 500
MAX_BUFFERS = 64
MAX_DISTANCE = 128  # program positions between two units that only share what they read
MAX_COREADERS = 4  # of a buffer's readers in order, how many further ones each is tried with
TURNING = {False: 8192, True: 512}  # elements of r up to which scans both ways are one kernel on a GPU, whose block takes them in; True: of columns
SMALL = {"cpu": 1 << 20, "cuda": 1 << 23}  # bytes below which a kernel costs its launch


@dataclass
class Loops:
    """What fusing needs to know of a unit: its space (extents), and where it reads and writes."""

    x: Any
    r: Any
    ops: int
    ordered: bool
    column: bool  # the reduced elements are not adjacent in memory
    ways: frozenset[bool]  # in which its scans run; True: from the end
    reduces: bool
    device: object
    loads: dict[str, set[Index]]
    stores: dict[str, set[Index]]
    form: int  # equal for units that do the same ops


class Fuser:
    """The state of one call of `fuse`."""

    def __init__(self, units: Units):
        self.units = units
        self.bytes = {name: b.bytes for name, b in units.program.buffers.items()}
        self.loops: dict[int, Loops] = {u.id: self.summarize(u) for u in units.by_id.values() if u.extern is None}
        self.heap: list[tuple[int, int, int, int]] = []
        self.next_id = len(units.by_id)

    def summarize(self, unit: Unit) -> Loops:
        x: Extent = 1
        r: Extent = 1
        for a in unit.axes:
            if a.role == "x":
                x = x * a.size
            else:
                r = r * a.size
        loads: dict[str, set[Index]] = {}
        stores: dict[str, set[Index]] = {}
        count, ordered = 0, False
        ways: set[bool] = set()
        reduces = False
        form: list[tuple] = []
        for _, nest in unit.members:
            count += len(nest.body)
            ordered = ordered or keeps_order(nest)
            ways |= {scan.reverse for scan in nest.scans()}
            reduces = reduces or nest.is_reduction
            for op in nest.body:
                form.append((op.name, op.args, op.dtype))
                if type(op.attr) is Access:
                    (loads if op.name == "load" else stores).setdefault(op.attr.buffer, set()).add(op.attr.index)
        inner = unit.axes[-1].var if r != 1 else None
        column = inner is not None and not runs_along((i for found in loads.values() for i in found), unit.axes, inner)
        return Loops(
            x, r, count, ordered, column, frozenset(ways), reduces, self.units.buffer(next(iter(unit.writes))).device, loads, stores, hash(tuple(form))
        )

    def push(self, a: Unit, b: Unit) -> None:
        """Makes a pair wait, by what fusing it may save at most."""
        one, two = self.loops.get(a.id), self.loops.get(b.id)
        if one is None or two is None or one.device != two.device or not spaces_meet(one, two):
            return
        score = sum(self.bytes[n] for n in a.reads & b.reads)
        vanishing = 0
        for name in (a.writes & b.reads) | (b.writes & a.reads):
            if self.survives(name, a, b):
                score += self.bytes[name]
            else:
                vanishing += self.bytes[name]
        if one.column != two.column and one.x * one.r == two.x * two.r:
            score //= 4  # elementwise stores are better made by rows
        score += vanishing * 9 // 4  # as good as two reads, and better: the result may meet more readers of what it reads
        score += self.launches_saved(a, b)
        if score > 0:
            first, second = (a, b) if (a.first, a.id) < (b.first, b.id) else (b, a)
            heapq.heappush(self.heap, (-score, first.first, first.id, second.id))

    def launches_saved(self, a: Unit, b: Unit) -> int:
        """1 for two small units over the same space, of the same unit's results: one launch less is all that joining them gives."""
        return int(a.axes == b.axes and self.is_small(a) and self.is_small(b) and not a.before.isdisjoint(b.before))

    def is_small(self, unit: Unit) -> bool:
        return self.moved(unit) <= SMALL.get(self.loops[unit.id].device.type, 0)  # type: ignore[attr-defined]

    def moved(self, unit: Unit) -> int:
        return sum(self.bytes[n] for n in unit.reads | unit.writes)

    def neighbours(self, unit: Unit) -> set[int]:
        units = self.units
        found: set[int] = set()
        if len(unit.before) == 1 and self.is_small(unit):
            found |= units.by_id[next(iter(unit.before))].after & self.loops.keys()
        for name in unit.writes:
            found |= units.readers.get(name, set())
        for name in unit.reads:
            found |= units.writers.get(name, set())
            readers = units.readers[name]
            if len(readers) <= 2 * MAX_COREADERS:
                found |= readers
            else:
                near = sorted(readers, key=lambda i: (abs(units.by_id[i].first - unit.first), i))
                found.update(near[: 2 * MAX_COREADERS])
        found.discard(unit.id)
        return found

    def run(self) -> None:
        units = self.units
        for unit in list(units.by_id.values()):
            if unit.id in self.loops:
                for i in self.neighbours(unit):
                    if i > unit.id:
                        self.push(unit, units.by_id[i])
        while self.heap:
            _, _, i, j = heapq.heappop(self.heap)
            a, b = units.by_id.get(i), units.by_id.get(j)
            if a is None or b is None:
                continue
            merged = self.try_fuse(a, b)
            if merged is not None:
                for k in sorted(self.neighbours(merged)):
                    self.push(merged, units.by_id[k])
                small = [u for k in sorted(merged.after & self.loops.keys()) if self.is_small(u := units.by_id[k])]
                for one, two in pairwise(small):
                    self.push(one, two)

    def try_fuse(self, a: Unit, b: Unit) -> Unit | None:
        """One unit for both, or None where that is not possible or does not pay."""
        if a.id in b.after:
            a, b = b, a
        one, two = self.loops[a.id], self.loops[b.id]
        if one.ops + two.ops > MAX_OPS or len(a.reads | a.writes | b.reads | b.writes) > MAX_BUFFERS or a.writes & b.writes:
            return None
        if b.id not in a.after and not self.worth_joining_readers(a, b):
            return None
        if has_path(self.units, a, b) or has_path(self.units, b, a):
            return None
        for swapped, alignment in self.alignments(a, b):
            to_a, to_b = (alignment.guest, alignment.host) if swapped else (alignment.host, alignment.guest)
            if self.meets(a, b, to_a, to_b, alignment.axes):
                return self.merge(a, b, alignment.axes, to_a, to_b)
        return None

    def worth_joining_readers(self, a: Unit, b: Unit) -> bool:
        """Neither needs the other's results: what both read must be a good part of what they move. Two that do the same, of which that does not hold, or
        which have one element, are left to be members of a list, which saves their launches whatever their number."""
        if abs(a.first - b.first) > MAX_DISTANCE:
            return False
        shared = sum(self.bytes[n] for n in a.reads & b.reads)
        much = 4 * shared >= min(self.moved(a), self.moved(b))
        one, two = self.loops[a.id], self.loops[b.id]
        if one.form == two.form and (not much or (one.x == 1 and one.r == 1)):
            return False
        return much or self.is_small(a) or self.is_small(b)

    def alignments(self, a: Unit, b: Unit) -> Iterator[tuple[bool, Alignment]]:
        """Ways to see both over one space; swapped: b is the host, whose axes stay in their order."""
        one, two = self.loops[a.id], self.loops[b.id]
        swapped = two.r != 1 and one.r == 1
        host, guest = (b, a) if swapped else (a, b)
        lead, follow = (two, one) if swapped else (one, two)
        if host.axes == guest.axes:
            yield swapped, Alignment(host.axes, {}, {})
        whole = follow.r != 1 or follow.x == lead.x * lead.r
        axes = host.axes if whole else tuple(x for x in host.axes if x.role == "x")
        for name in self.anchors(a, b):
            if name in lead.stores and len(lead.stores[name]) == 1:
                outer = next(iter(lead.stores[name]))
            elif name in lead.loads and len(lead.loads[name]) == 1:
                outer = next(iter(lead.loads[name]))
            else:
                continue
            inner = follow.stores.get(name) or follow.loads[name]
            if len(inner) != 1:
                continue
            (inner_index,) = inner
            if one.ways or two.ways:
                mirrored = align_mirrored(host.axes, axes, outer, guest.axes, inner_index)
                if mirrored is not None and self.respects(mirrored, follow, guest) and not stores_fall(mirrored, follow):
                    yield swapped, mirrored
            if outer.constant != inner_index.constant:
                continue
            left, right = digits_of(outer, axes), digits_of(inner_index, guest.axes)
            found = align(host.axes, left, right) if left is not None and right is not None else None
            if found is not None and self.respects(found, follow, guest):
                yield swapped, found
        found = align(host.axes, row_major(axes), row_major(guest.axes))
        if found is not None and self.respects(found, follow, guest):
            yield swapped, found

    def anchors(self, a: Unit, b: Unit) -> list[str]:
        """Buffers that both touch, the ones handed over first, then by bytes."""
        handed, shared = a.writes & b.reads, a.reads & b.reads
        return sorted(handed, key=lambda n: (-self.bytes[n], n))[:2] + sorted(shared, key=lambda n: (-self.bytes[n], n))[:2]

    def respects(self, found: Alignment, follow: Loops, guest: Unit) -> bool:
        """Where the guest's r axes have an order that means something, it stays."""
        if not follow.ordered:
            return True
        own = tuple(x for x in guest.axes if x.role == "r")
        return linear(own).subs(found.guest) == linear([x for x in found.axes if x.role == "r"])

    def meets(self, a: Unit, b: Unit, to_a: Mapping[Var, Index | int], to_b: Mapping[Var, Index | int], axes: tuple[Axis, ...]) -> bool:
        """Each element that b takes from a is at the same point in both, nothing is overwritten that another point reads, and bytes are saved."""
        one, two = self.loops[a.id], self.loops[b.id]
        reduced = {x.var for x in axes if x.role == "r"}
        saved = 0
        if not adds_alike(a, b, axes, one.device.type == "cuda") or not scans_meet(one, two):  # type: ignore[attr-defined]
            return False
        for name in a.writes & b.reads:
            written = {i.subs(to_a) for i in one.stores[name]}
            if len(written) != 1 or {i.subs(to_b) for i in two.loads[name]} != written:
                return False
            saved += self.bytes[name] * (1 if self.survives(name, a, b) else 2)
        for name in b.writes & a.reads:
            written = {i.subs(to_b) for i in two.stores[name]}
            if len(written) != 1 or {i.subs(to_a) for i in one.loads[name]} != written or reduced & next(iter(written)).variables():
                return False
            saved += self.bytes[name]
        for unit, loops in ((a, one), (b, two)):
            for name in unit.writes & unit.reads:
                if reduced and any(reduced & i.subs(to_a if unit is a else to_b).variables() for i in loops.stores[name]) and name in self.units.kept:
                    return False
        for name in (a.reads & b.reads) - a.writes:
            if {i.subs(to_a) for i in one.loads[name]} & {i.subs(to_b) for i in two.loads[name]}:
                saved += self.bytes[name]
        saved += self.launches_saved(a, b)
        return saved > 0 and not self.starves(a, b, to_a, to_b, axes, reduced)

    def survives(self, name: str, a: Unit, b: Unit) -> bool:
        """The buffer is stored even when a and b are one."""
        return name in self.units.kept or bool(self.units.readers.get(name, set()) - {a.id, b.id})

    def starves(self, a: Unit, b: Unit, to_a: Mapping[Var, Index | int], to_b: Mapping[Var, Index | int], axes: tuple[Axis, ...], reduced: set[Var]) -> bool:
        """Many elements would be stored by the few x points of a reduction. A scan stores as many by itself."""
        if self.loops[a.id].ordered or self.loops[b.id].ordered:
            return False
        x = points = 1
        for axis in axes:
            points *= hint(axis.size)
            if axis.role == "x":
                x *= hint(axis.size)
        cuda = self.loops[a.id].device.type == "cuda"  # type: ignore[attr-defined]
        if not reduced or x >= (256 if cuda else 32) or points < (1 << 18 if cuda else 1 << 15):
            return False
        for unit, values in ((a, to_a), (b, to_b)):
            for name, stored in self.loops[unit.id].stores.items():
                if self.survives(name, a, b) and any(reduced & i.subs(values).variables() for i in stored):
                    return True
        return False

    def merge(self, a: Unit, b: Unit, axes: tuple[Axis, ...], to_a: Mapping[Var, Index | int], to_b: Mapping[Var, Index | int]) -> Unit:
        members: list[tuple[int, Nest]] = []
        for unit, values in ((a, to_a), (b, to_b)):
            members += [(p, remap(n, values, axes)) for p, n in unit.members]
        members.sort(key=lambda m: m[0])
        members = [(p, n) for (p, _), n in zip(members, read_forward([n for _, n in members]), strict=True)]
        merged = Unit(self.next_id, min(a.first, b.first), max(a.last, b.last), None, members, axes, a.reads | (b.reads - a.writes), a.writes | b.writes)
        self.next_id += 1
        replace_pair(self.units, a, b, merged)
        self.loops[merged.id] = self.summarize(merged)
        return merged


def scans_meet(one: Loops, two: Loops) -> bool:
    """Whether the scans of both, and the reductions of what is scanned from the end, can be one kernel: a block of a GPU's that takes in all of r."""
    ways = one.ways | two.ways
    cuda = one.device.type == "cuda"  # type: ignore[attr-defined]
    if len(ways) < 2:
        return cuda or True not in ways or not (one.reduces or two.reduces)
    sizes = {loops.r for loops in (one, two) if loops.r != 1}
    return cuda and all(isinstance(n, int) and n <= TURNING[one.column or two.column] for n in sizes)


def stores_fall(found: Alignment, follow: Loops) -> bool:
    """Whether the guest would store against the order of memory."""
    return any(falls(i.subs(found.guest), found.axes) for stored in follow.stores.values() for i in stored)


def adds_alike(a: Unit, b: Unit, axes: tuple[Axis, ...], cuda: bool) -> bool:
    """What one adds to memory, the other does not read, and each point of the common space adds what one of its own points did. cuda: all points run side by
    side where one adds, so that none sums or scans."""
    if a.adds_to(b.reads) or b.adds_to(a.reads):
        return False
    nests = [nest for unit in (a, b) for _, nest in unit.members]
    if cuda and any(nest.adds for nest in nests) and any(nest.is_reduction or nest.folded or nest.scans() for nest in nests):
        return False
    reduces = any(x.role == "r" for x in axes)
    return not reduces or all(nest.r_axes or not nest.adds for nest in nests)


def spaces_meet(one: Loops, two: Loops) -> bool:
    """Equal numbers of points, or one runs over the other's x points, or over all of its points."""
    if one.r != 1 and two.r != 1:
        return one.x == two.x and one.r == two.r
    if one.r == 1 and two.r == 1:
        return one.x == two.x
    red, flat = (one, two) if one.r != 1 else (two, one)
    return flat.x in (red.x, red.x * red.r)


def fuse(units: Units) -> None:
    """Merges units in place, until no pair saves anything."""
    Fuser(units).run()
