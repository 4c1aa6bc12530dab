"""Axes that accesses go through from their end on: those of flips, and of scans between two flips, which run from the last element to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dynacompile.ir.index import Index, Var, atom
from dynacompile.ir.loops import Axis, Nest, Scan
from dynacompile.ops.scalars import PLACES
from dynacompile.schedule.domain import Alignment, align, digits_of, remap


def from_end(axis: Axis) -> Index:
    """The place on an axis, counted from its end."""
    return axis.size - 1 - atom(axis.var)


def forward(index: Index, axes: Sequence[Axis]) -> tuple[Index, frozenset[Var]]:
    """The index where each axis along which it falls is counted from its end, and those axes."""
    falling = {a.var: from_end(a) for a in axes if isinstance(stride := index.stride(a.var), int) and stride < 0}
    return (index.subs(falling) if falling else index), frozenset(falling)


def read_forward(nests: Sequence[Nest]) -> list[Nest]:
    """Nests over one space, with scans, whose loads run along the r axis rather than against it: the scans then may run from the end. Where they run along
    it already, or their order may not be turned, the nests as they are."""
    r = nests[0].r_axes
    if len(r) != 1 or not any(nest.scans() for nest in nests) or any(has_places(nest) for nest in nests):
        return list(nests)
    (axis,) = r
    stored = {a.buffer for nest in nests for a in nest.stores()}
    read = {(a.buffer, s) for nest in nests for a in nest.loads() if a.buffer not in stored and isinstance(s := a.index.stride(axis.var), int) and s}
    backward = sum(s < 0 for _, s in read)
    if backward <= len(read) - backward:
        return list(nests)
    return [turned(nest, axis) for nest in nests]


def facing_forward(nest: Nest) -> Nest:
    """The same of one nest. A running extremum stays as it is: the nest of its places, which may not be turned, can only join one that runs as it does."""
    return nest if any(s.kind in ("max", "min") for s in nest.scans()) else read_forward([nest])[0]


def turned(nest: Nest, axis: Axis) -> Nest:
    """The nest with an axis gone through the other way."""
    found = remap(nest, {axis.var: from_end(axis)}, nest.axes)
    return replace(found, body=tuple(replace(op, attr=Scan(op.attr.kind, not op.attr.reverse)) if op.name == "scan" else op for op in found.body))


def has_places(nest: Nest) -> bool:
    """Whether its results are positions along r, or depend on the order in which it adds to memory."""
    return nest.adds or any(s.kind in PLACES for s in nest.scans()) or any(op.name == "reduce" and op.attr in PLACES for op in nest.body)


def align_mirrored(host: Sequence[Axis], axes: Sequence[Axis], outer: Index, guest: Sequence[Axis], inner: Index) -> Alignment | None:
    """The common space of two nests of which one accesses a buffer at `outer` (over `axes`, some of the host's), the other at `inner`, where one of the two
    falls along an axis or both do."""
    left, host_falls = forward(outer, axes)
    right, guest_falls = forward(inner, guest)
    if not (host_falls or guest_falls) or left.constant != right.constant:
        return None
    one, two = digits_of(left, axes), digits_of(right, guest)
    found = align(host, one, two) if one is not None and two is not None else None
    if found is None:
        return None
    turned = {v for falling in host_falls for v in pieces(falling, found.host)}
    back: dict[Var, Index | int] = {a.var: from_end(a) for a in found.axes if a.var in turned}
    values: dict[Var, Index | int] = {}
    for axis in guest:
        value = found.guest.get(axis.var, atom(axis.var))
        value = value.subs(back) if isinstance(value, Index) else value
        values[axis.var] = axis.size - 1 - value if axis.var in guest_falls else value
    return Alignment(found.axes, found.host, values)


def pieces(variable: Var, values: Mapping[Var, Index | int]) -> frozenset[Var]:
    """The variables of the common space that one of the host's has become."""
    value = values.get(variable, atom(variable))
    return value.variables() if isinstance(value, Index) else frozenset()


def falls(index: Index, axes: Sequence[Axis]) -> bool:
    return any(isinstance(stride := index.stride(a.var), int) and stride < 0 for a in axes)
