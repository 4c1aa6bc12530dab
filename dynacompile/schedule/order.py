"""The order in which units run: the program's own, as far as fusing left it possible."""

from __future__ import annotations

import heapq

from dynacompile.errors import VerifyError
from dynacompile.schedule.units import Unit, Units


def order(units: Units) -> list[Unit]:
    """Topological; among the ready units the one whose last member comes first in the program."""
    waiting = {i: len(u.before) for i, u in units.by_id.items()}
    ready = [(u.last, i) for i, u in units.by_id.items() if not u.before]
    heapq.heapify(ready)
    out = []
    while ready:
        _, i = heapq.heappop(ready)
        unit = units.by_id[i]
        out.append(unit)
        for j in unit.after:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (units.by_id[j].last, j))
    if len(out) != len(units.by_id):
        raise VerifyError("schedule", "fused units depend on each other in a circle")
    return out
