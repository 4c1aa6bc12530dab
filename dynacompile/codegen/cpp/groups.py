"""Sums over groups of neighbours (the channels of a group norm, channels last): too few for lanes, which take in the groups side by side.

A row of channels is several groups. Walked group by group, each step touches a part of a line of memory; so the axis over groups and the axis within one
become a single axis in the lanes, whose accumulators are those of columns, and after a pass each group's are combined, and stand in all of its lanes.
"""

from __future__ import annotations

from dataclasses import replace

from dynacompile.ir.body import Body
from dynacompile.ir.divisions import index_of, recombined
from dynacompile.ir.index import Index, Var, atom, hint
from dynacompile.ir.loops import Access, Axis, Nest, levels

FEWEST_STEPS = 16  # over the other axes that are reduced over, which the combining of lanes has to be small beside


def grouped(nest: Nest, lanes: int) -> tuple[Nest, int]:
    """The nest over the single axis, and how many neighbours there make a group; as it is, and 1, where its innermost axes are not such. lanes: of the
    widest vectors, which a group has at most, and two of which the single axis fills."""
    r = nest.r_axes
    if len(r) < 2 or nest.adds or nest.scans() or not all(op.attr in ("sum", "prod", "max", "min") for op in nest.body if op.name == "reduce"):
        return nest, 1
    for within in reversed(r):
        steps = [a for a in r if a != within and hint(a.size) >= FEWEST_STEPS]
        if not isinstance(within.size, int) or not 1 < within.size <= lanes or not steps:
            continue
        for groups in nest.x_axes:
            if isinstance(groups.size, int) and groups.size * within.size >= 2 * lanes and runs_through(nest, groups, within):
                return over_single_axis(nest, groups, within), within.size
    return nest, 1


def runs_through(nest: Nest, groups: Axis, within: Axis) -> bool:
    """Whether all accesses that tell a group's elements apart are consecutive through the groups, and none goes through a value."""
    level = levels(nest)
    found = False
    for i, op in enumerate(nest.body):
        index = index_of(op)
        if index is None:
            continue
        inner, outer = index.stride(within.var), index.stride(groups.var)
        if any(v.name[0] == "%" for v in index.variables()) or inner is None or outer is None:
            return False
        if level[i] == "r" and isinstance(op.attr, Access):
            if outer != inner * within.size:
                return False
            found = found or inner == 1
    return found


def over_single_axis(nest: Nest, groups: Axis, within: Axis) -> Nest:
    lane = Var(f"{groups.var.name}{within.var.name}", groups.size * within.size)
    values: dict[Var, Index | int] = {groups.var: atom(lane) // within.size, within.var: atom(lane) % within.size}
    body = Body()
    body.splice(nest.body, values)
    ops = []
    for op in body.ops:
        if isinstance(op.attr, Access):
            op = replace(op, attr=replace(op.attr, index=recombined(op.attr.index)))
        elif isinstance(op.attr, Index):
            op = replace(op, attr=recombined(op.attr))
        ops.append(op)
    axes = [Axis(lane, "x") if a == groups else a for a in nest.axes if a != within]
    return replace(nest, axes=tuple(axes), body=tuple(ops))
