"""Iteration spaces: in which order axes run, which are one, and how the points of two nests correspond."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from dynacompile.ir.divisions import recombined, split_axes
from dynacompile.ir.index import Extent, Index, Var, atom, constant, extent, hint, strided
from dynacompile.ir.loops import Access, Axis, Nest, Op
from dynacompile.ops.scalars import PLACES


def indices_of(nest: Nest) -> list[Index]:
    """Every distinct index expression of the body."""
    found: dict[Index, None] = {}
    for op in nest.body:
        if type(op.attr) is Access:
            found[op.attr.index] = None
        elif op.name == "index":
            found[op.attr] = None
    return list(found)


def keeps_order(nest: Nest) -> bool:
    """The order of the r axes means something: positions are results, values are added up in it, or a scan runs along it."""
    return nest.adds or any(op.name == "scan" or (op.name == "reduce" and op.attr in PLACES) for op in nest.body)


def runs_along(indices: Iterable[Index], axes: Sequence[Axis], inner: Var) -> bool:
    """The largest of the accesses at `indices` take neighbours in memory along `inner`; there are none, or what is read per row or column
    only does not count."""
    found = [(prod(a.size for a in axes if a.var in i.variables()), i.stride(inner)) for i in indices]
    most = max((points for points, _ in found), default=0)
    return not found or any(stride in (1, -1) for points, stride in found if points == most)


def normalize(nest: Nest) -> Nest:
    """x axes in the order of the store's memory, r axes in the order of the largest load's, adjacent ones merged, named x0.. and r0... An axis that is
    gone through in another order than its elements lie in (a group of channels, channels last) is split first."""
    indices = indices_of(nest)
    whole = {i: w for i in indices if (w := recombined(i)) != i}
    if whole:
        nest = with_indices(nest, lambda index: whole.get(index, index))
    if not keeps_order(nest):
        nest = split_axes(nest, "r" if nest.r_axes else "x")
    if len(nest.axes) > 1:
        stores, loads = nest.stores(), nest.loads()
        x = sorted_by_stride(nest.x_axes, stores[0].index) if stores else nest.x_axes
        r = nest.r_axes
        if len(r) > 1 and loads and not keeps_order(nest):
            r = sorted_by_stride(r, max((a.index for a in loads), key=lambda i: sum(1 for v in r if i.stride(v.var))))
        nest = replace(nest, axes=x + r)
    return merge_axes(nest)


def sorted_by_stride(axes: Sequence[Axis], index: Index) -> tuple[Axis, ...]:
    strides = {a: index.stride(a.var) for a in axes}
    if any(s is None for s in strides.values()):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda a: -abs(hint(strides[a] or 0))))


def merge_axes(nest: Nest) -> Nest:
    """Adjacent axes of a role become one where every index steps evenly through both; axes are renamed in order."""
    indices = indices_of(nest)
    strides = [[index.stride(a.var) for a in nest.axes] for index in indices]
    runs: list[list[int]] = []
    for i, axis in enumerate(nest.axes):
        if runs and nest.axes[i - 1].role == axis.role and all(s[i] is not None and s[i - 1] == s[i] * axis.size for s in strides):  # type: ignore[operator]
            runs[-1].append(i)
        else:
            runs.append([i])
    values: dict[Var, Index | int] = {}
    axes: list[Axis] = []
    counts = {"x": 0, "r": 0}
    for run in runs:
        size: Extent = 1
        for i in run:
            size = size * nest.axes[i].size
        role = nest.axes[run[0]].role
        merged = Axis(Var(f"{role}{counts[role]}", size), role)
        counts[role] += 1
        axes.append(merged)
        for i in run[:-1]:
            values[nest.axes[i].var] = 0
        if nest.axes[run[-1]].var != merged.var:
            values[nest.axes[run[-1]].var] = atom(merged.var)
    if not values:
        return nest
    return remap(nest, values, axes)


def remap(nest: Nest, values: Mapping[Var, Index | int], axes: Iterable[Axis]) -> Nest:
    """The nest over other axes, its loop variables replaced."""
    if not values:
        return replace(nest, axes=tuple(axes))
    known: dict[Index, Index] = {}

    def swap(index: Index) -> Index:
        found = known.get(index)
        if found is None:
            found = known[index] = index.subs(values)
        return found

    return replace(with_indices(nest, swap), axes=tuple(axes))


def with_indices(nest: Nest, swap: Callable[[Index], Index]) -> Nest:
    """The nest with each of its indices replaced."""
    body = []
    for op in nest.body:
        attr = op.attr
        if type(attr) is Access:
            op = Op(op.name, op.args, op.dtype, attr.at(swap(attr.index), attr.mask))
        elif op.name == "index":
            op = Op(op.name, op.args, op.dtype, swap(attr))
        body.append(op)
    return replace(nest, body=tuple(body))


@dataclass(frozen=True)
class Alignment:
    """axes: the common space. host, guest: what the variables of the two nests are in it ({} where they keep their names)."""

    axes: tuple[Axis, ...]
    host: Mapping[Var, Index | int]
    guest: Mapping[Var, Index | int]


Digits = list[tuple[Any, Axis]]  # (stride, axis), outer to inner


def row_major(axes: Sequence[Axis]) -> Digits:
    out: Digits = []
    step: Extent = 1
    for a in reversed(axes):
        out.append((step, a))
        step = step * a.size
    return out[::-1]


def linear(axes: Sequence[Axis]) -> Index:
    """The row-major position over axes."""
    return strided([atom(a.var) for a in axes], [s for s, _ in row_major(axes)])


def digits_of(index: Index, axes: Sequence[Axis]) -> Digits | None:
    """The axes as digits of the address that `index` makes; None where it is not affine or does not name all of them."""
    out: Digits = []
    for a in axes:
        stride = index.stride(a.var)
        if stride is None or stride <= 0:
            return None
        out.append((stride, a))
    return sorted(out, key=lambda d: -d[0])


def align(host_axes: Sequence[Axis], host: Digits, guest: Digits) -> Alignment | None:
    """Where two lists of digits count through the same addresses: the common space, in which each variable is a sum of new axes.

    Axes of the host beyond its digits stay. Roles are the host's; None where sizes or strides don't meet, or a guest's r axis would be an x axis.
    """
    left, right = list(host), list(guest)
    pieces: dict[Var, list[tuple[Any, Any]]] = {}  # host variable -> [(multiplier, size)], inner to outer
    placed: list[tuple[Var, int, Axis, Any, Any]] = []  # host variable, position in its pieces, guest axis, multiplier, size
    a: Any = None  # [stride, size, multiplier, axis] of what is left of a digit
    b: Any = None
    while True:
        if a is None and left:
            stride, axis = left.pop()
            a = [stride, axis.size, 1, axis]
        if b is None and right:
            stride, axis = right.pop()
            b = [stride, axis.size, 1, axis]
        if a is None or b is None:
            break
        if a[0] != b[0]:
            return None
        size = min(a[1], b[1])
        if a[1] % size or b[1] % size:
            return None
        if b[3].role == "r" and a[3].role != "r":
            return None
        own = pieces.setdefault(a[3].var, [])
        own.append((a[2], size))
        placed.append((a[3].var, len(own) - 1, b[3], b[2], size))
        a = None if a[1] == size else [a[0] * size, extent(a[1] // size), a[2] * size, a[3]]
        b = None if b[1] == size else [b[0] * size, extent(b[1] // size), b[2] * size, b[3]]
    if a is not None or b is not None or left or right:
        return None
    axes: list[Axis] = []
    names: dict[tuple[Var, int], Index] = {}
    values: dict[Var, Index | int] = {}
    counts = {"x": 0, "r": 0}
    for axis in host_axes:
        own = pieces.get(axis.var, [(1, axis.size)])
        total = constant(0)
        for position in range(len(own) - 1, -1, -1):
            multiplier, size = own[position]
            fresh = Axis(Var(f"{axis.role}{counts[axis.role]}", size), axis.role)
            counts[axis.role] += 1
            axes.append(fresh)
            names[axis.var, position] = atom(fresh.var)
            total = total + names[axis.var, position] * multiplier
        if not (len(own) == 1 and axes[-1].var == axis.var):
            values[axis.var] = total
    moved: dict[Var, Index | int] = {}
    for variable, position, axis, multiplier, _ in placed:
        moved[axis.var] = moved.get(axis.var, constant(0)) + names[variable, position] * multiplier
    guest_values = {v: i for v, i in moved.items() if i != atom(v) or v not in {x.var for x in axes}}
    return Alignment(tuple(axes), values, guest_values)
