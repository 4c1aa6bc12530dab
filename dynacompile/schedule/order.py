"""The order in which units run: the program's own, as far as fusing left it possible. Collectives begin as soon as they can, and are waited for as late."""

from __future__ import annotations

import heapq
import math

from dynacompile.errors import VerifyError
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.schedule.units import Unit, Units


def order(units: Units) -> list[Unit]:
    """Topological; among the ready units the one whose last member comes first in the program."""
    waiting = {i: len(u.before) for i, u in units.by_id.items()}
    places = {i: place(u, units) for i, u in units.by_id.items()}
    ready = [(places[i], i) for i, u in units.by_id.items() if not u.before]
    heapq.heapify(ready)
    out = []
    while ready:
        _, i = heapq.heappop(ready)
        unit = units.by_id[i]
        out.append(unit)
        for j in unit.after:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (places[j], j))
    if len(out) != len(units.by_id):
        raise VerifyError("schedule", "fused units depend on each other in a circle")
    return out


def place(unit: Unit, units: Units) -> float:
    """Where a unit would run. The wait for a collective comes before the first unit that reads it, a collective first of all."""
    if unit.extern is None or not is_collective(unit.extern.op):
        return unit.last
    if not is_wait(unit.extern.op):
        return -1
    return min((units.by_id[i].last for i in unit.after), default=math.inf)
