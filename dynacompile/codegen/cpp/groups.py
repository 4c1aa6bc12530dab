"""Sums over groups of neighbours (the channels of a group norm, channels last): too few for lanes, which take in the groups side by side.

A row of channels is several groups. Walked group by group, each step touches a part of a line of memory; so the axis over groups and the axis within one
become a single axis in the lanes, whose accumulators are those of columns, and after a pass each group's are combined, and stand in all of its lanes.

The same axis is made of groups whose elements are reduced apart (the gradients of a group norm's weights): there, what a group has in common is all that keeps
the two axes from being one, and is gathered once for all steps.
"""

from __future__ import annotations

from dataclasses import replace

from dynacompile.ir.body import Body
from dynacompile.ir.divisions import index_of, recombined
from dynacompile.ir.index import Index, Var, atom, hint
from dynacompile.ir.loops import Access, Axis, Nest, levels

FEWEST_STEPS = 16  # over the other axes that are reduced over, which the combining of lanes, or gathering, has to be small beside
WIDEST = 64  # neighbours of a group that are reduced apart: more fill lanes by themselves


def grouped(nest: Nest, lanes: int) -> tuple[Nest, int]:
    """The nest over the single axis, and how many neighbours there make a group that is reduced together, else 1; as it is where its innermost axes are not
    such. lanes: of the widest vectors, which a group that is reduced together has at most, and two of which the single axis fills."""
    r = nest.r_axes
    if not r and not nest.adds and not nest.scans():
        return pointwise(nest, lanes), 1
    if not r or nest.adds or nest.scans() or not all(op.attr in ("sum", "prod", "max", "min") for op in nest.body if op.name == "reduce"):
        return nest, 1
    for within in reversed(r):
        steps = [a for a in r if a != within and hint(a.size) >= FEWEST_STEPS]
        if not isinstance(within.size, int) or not 1 < within.size <= lanes or not steps:
            continue
        for groups in nest.x_axes:
            if isinstance(groups.size, int) and groups.size * within.size >= 2 * lanes and runs_through(nest, groups, within):
                return over_single_axis(nest, groups, within), within.size
    return apart(nest, lanes), 1


def apart(nest: Nest, lanes: int) -> Nest:
    """The nest over the single axis where the elements of a group are reduced apart, and something is known of the group alone; as it is where they are not."""
    if not any(hint(a.size) >= FEWEST_STEPS for a in nest.r_axes):
        return nest
    for within in reversed(nest.x_axes):
        if not isinstance(within.size, int) or not 1 < within.size < WIDEST:
            continue
        for groups in nest.x_axes:
            full = groups != within and isinstance(groups.size, int) and groups.size * within.size >= 2 * lanes
            if (
                full
                and any(groups.var in a.index.variables() and within.var not in a.index.variables() for a in nest.loads())
                and runs_through(nest, groups, within)
            ):
                return over_single_axis(nest, groups, within)
    return nest


def pointwise(nest: Nest, lanes: int) -> Nest:
    """A pointwise nest as the steps of columns over the single axis, where something is known of a group alone: it is gathered once for all steps."""
    stored = frozenset[Var].intersection(*(a.index.variables() for a in nest.stores()))
    steps = max((a for a in nest.axes if a.var in stored), key=lambda a: hint(a.size), default=None)
    if steps is None or len(nest.axes) < 3:
        return nest
    axes = (*(a for a in nest.axes if a != steps), replace(steps, role="r"))
    turned = replace(nest, axes=axes)
    found = apart(turned, lanes)
    return nest if found is turned else found


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
