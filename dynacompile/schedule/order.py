"""The order in which units run: the program's own, as far as fusing left it possible. Collectives begin as soon as they can, and are waited for as late.

What a collective reads and gives is held until it has been waited for. A program that gathers each parameter where it uses it would hold the whole model if
all gathers began at once, and one that scatters each gradient would hold all of these. So the bytes under way are bounded. A gather that finds no room begins
once the one before it has been waited for, beside the work that needs that one; a reduction that finds none has the oldest reductions waited for first.
"""

from __future__ import annotations

import heapq
import math

from dynacompile.errors import VerifyError
from dynacompile.ir.schedule import memory_bytes
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.schedule.units import Unit, Units


def order(units: Units, most: int) -> list[Unit]:
    """Topological; among the ready units the one whose last member comes first in the program. most: bytes that collectives under way may hold."""
    waiting = {i: len(u.before) for i, u in units.by_id.items()}
    places = {i: place(u, units) for i, u in units.by_id.items()}
    ready = [(places[i], i) for i, u in units.by_id.items() if not u.before]
    heapq.heapify(ready)
    under_way, put_off = UnderWay(units, most), []  # type: UnderWay, list[int]
    out: dict[int, Unit] = {}
    while ready or put_off:
        forced = not ready
        i = put_off.pop() if forced else heapq.heappop(ready)[1]
        if i in out:  # a wait that came before its place
            continue
        if not forced and not under_way.has_room(i):
            reduction = under_way.oldest_reduction()
            if reduction is None:
                put_off.append(i)
                continue
            heapq.heappush(ready, (places[i], i))
            i = reduction
        unit = out[i] = units.by_id[i]
        if under_way.pass_by(unit):
            ready += [(places[j], j) for j in put_off]
            heapq.heapify(ready)
            put_off.clear()
        for j in unit.after:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (places[j], j))
    if len(out) != len(units.by_id):
        raise VerifyError("schedule", "fused units depend on each other in a circle")
    return list(out.values())


def place(unit: Unit, units: Units) -> float:
    """Where a unit would run. The wait for a collective comes before the first unit that reads it, a collective first of all."""
    if unit.extern is None or not is_collective(unit.extern.op):
        return unit.last
    if not is_wait(unit.extern.op):
        return -1
    return min((units.by_id[i].last for i in unit.after), default=math.inf)


class UnderWay:
    """Collectives that have begun and are not waited for. most: the bytes that they may hold."""

    def __init__(self, units: Units, most: int):
        self.units, self.most = units, most
        self.bytes: dict[int, float] = {}  # by the unit that waits, in the order in which they began
        self.reductions: set[int] = set()  # of these, those of reductions

    def waits(self, unit: Unit) -> list[int]:
        """The units that wait for a collective that a unit begins; none for any other unit."""
        if unit.extern is None or not is_collective(unit.extern.op) or is_wait(unit.extern.op):
            return []
        later = [(i, self.units.by_id[i].extern) for i in unit.after]
        return sorted(i for i, extern in later if extern is not None and is_wait(extern.op) and unit.writes & self.units.by_id[i].reads)

    def has_room(self, i: int) -> bool:
        """Whether a unit may run now. One that is no collective always may, and a reduction if no other one can be waited for instead: putting it off frees
        nothing."""
        unit = self.units.by_id[i]
        if not self.waits(unit) or not self.bytes or sum(self.bytes.values()) + self.held(unit) <= self.most:
            return True
        return not self.reductions and self.is_reduction(unit)

    def held(self, unit: Unit) -> int:
        """Bytes that a collective holds: what it gives, and what it reads that the program made."""
        given = (self.units.buffer(name) for name in unit.reads | unit.writes)
        return sum(memory_bytes(b) for b in given if b.kind != "input")

    def is_reduction(self, unit: Unit) -> bool:
        """Whether a collective gives no more than it reads."""
        read, given = (sum(memory_bytes(self.units.buffer(name)) for name in names) for names in (unit.reads, unit.writes))
        return given <= read

    def oldest_reduction(self) -> int | None:
        return next((i for i in self.bytes if i in self.reductions), None)

    def pass_by(self, unit: Unit) -> bool:
        """Notes that a unit runs. Whether it makes room."""
        waits = self.waits(unit)
        if waits:
            self.bytes |= dict.fromkeys(waits, self.held(unit) / len(waits))
            self.reductions.update(waits if self.is_reduction(unit) else ())
        self.reductions.discard(unit.id)
        return self.bytes.pop(unit.id, None) is not None
