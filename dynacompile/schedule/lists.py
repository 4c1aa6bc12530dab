"""Like nests over different tensors become one nest over a list of tensors: one kernel, one launch, whatever the number of members.

An optimizer's step, clipping, averaging of weights, casts or zeroing of all parameters are the same loops, once for each tensor. After nests have been
fused, two kernels are alike when they differ in their buffers and in numbers only: sizes of axes, strides and offsets. The nest over the list has
the body of one member, in which each number that differs is a symbol of its own (`Kernel.own`); a member is its buffers and its values of those symbols
(`Launch.sizes`). Targets cut a list into blocks of about equal work, so that a list of many small members fills the machine like one large tensor.

Which units may run as one is read off the graph of units. Units of one level, the length of the longest way to them, do not depend on each other,
and edges lead from lower levels to higher ones; so any units of one level may be joined, and all such joins together make no circle. The same holds for
levels that count from the end. Which of the two leaves fewer launches is taken: updates at the end of a backward pass, for example, have their
gradients at different levels, but nothing comes after them.

Members would keep their results alive together. Where those are temporary and large, units stay apart, since their memory could be reused one after the
other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.ir.body import needs, rewrite
from dynacompile.ir.index import Extent, Index, Symbol, Var, atom, constant
from dynacompile.ir.loops import Access, Axis, Buffer, Nest, Op
from dynacompile.schedule.units import Unit, Units

LASTING = {"cpu": 1 << 20, "cuda": 1 << 23}  # bytes of temporary memory that a member may keep alive until all have run
LARGE = {"cpu": 1 << 20, "cuda": 1 << 23}  # bytes of a kernel that had better be made for its own sizes, where it has more than one axis
FEW = 4  # kernels for their own sizes; more cost more to compile and to launch than they give


@dataclass(frozen=True)
class Pattern:
    """What nests that are alike have in common (`key`), and what else one of them has: its numbers in order, and the buffers of its params."""

    key: tuple
    numbers: tuple[int, ...]
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Units that run as one launch. nest: over the params' names of the first unit's buffers, with a symbol for each number that differs."""

    units: tuple[Unit, ...]
    nest: Nest
    own: tuple[Symbol, ...]
    sizes: tuple[tuple[int, ...], ...]
    buffers: tuple[tuple[str, ...], ...]


class Taking:
    """Reads the numbers of a nest in a fixed order, and the rest as a key."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def index(self, index: Index) -> tuple | None:
        """The key of an index, its coefficients and constant taken; None where it has symbols. Neighbours in memory stay neighbours: that decides how
        loops run."""
        key: list[Any] = []
        for monomial, coefficient in index.terms:
            if any(type(a) is Symbol for a in monomial):
                return None
            key.append((abs(coefficient) == 1, *(a.name if type(a) is Var else a for a in monomial)))
            self.numbers.append(coefficient)
        self.numbers.append(index.constant)
        return tuple(key)


def pattern_of(nest: Nest, buffers: Mapping[str, Buffer]) -> Pattern | None:
    """None where a nest can't be a member: its sizes differ from call to call, it has no points, sums over blocks of rows, adds to memory, scans both ways,
    or is a product."""
    if (
        nest.is_product
        or nest.scans_both_ways
        or any(type(a.size) is Index or a.size == 0 for a in nest.axes)
        or any(a.summed or a.added for a in nest.stores())
    ):
        return None
    taking = Taking()
    taking.numbers += [a.size for a in nest.axes]
    names: dict[str, int] = {}
    key: list[Any] = [tuple((a.var.name, a.role) for a in nest.axes)]
    for op in nest.body:
        attr: Any = op.attr
        if type(attr) is Access:
            place = taking.index(attr.index)
            if place is None:
                return None
            attr = (names.setdefault(attr.buffer, len(names)), place, attr.mask, repr(attr.other))
        elif type(attr) is Index:
            attr = taking.index(attr)
            if attr is None:
                return None
        elif op.name == "constant" and op.dtype == torch.int64:
            taking.numbers.append(attr)
            attr = None
        else:
            attr = repr(attr)
        key.append((op.name, op.args, op.dtype, attr))
    key.append(tuple((buffers[n].dtype, buffers[n].device) for n in names))
    return Pattern(tuple(key), tuple(taking.numbers), tuple(names))


def in_order(nest: Nest) -> Nest:
    """The nest with its values in the order in which its stores need them, so that equal bodies are equal texts however they were joined."""
    body: list[Op] = []
    ids: dict[int, int] = {}
    stores = [i for i, op in enumerate(nest.body) if op.name == "store"]
    if any(op.name == "load" for op in nest.body[stores[0] :]):
        return nest
    for store in stores:
        waiting = [(store, False)]
        while waiting:
            i, ready = waiting.pop()
            if i in ids:
                continue
            if not ready:
                waiting.append((i, True))
                waiting += [(a, False) for a in reversed(needs(nest.body[i])) if a not in ids]
            elif i != store:
                ids[i] = len(body)
                body.append(renumbered(nest.body[i], ids))
    return replace(nest, body=(*body, *(renumbered(nest.body[i], ids) for i in stores)))


def renumbered(op: Op, ids: Mapping[int, int]) -> Op:
    attr: Any = op.attr
    if type(attr) is Access:
        mask = None if attr.mask is None else ids[attr.mask]
        attr = attr.at(rewrite(attr.index, {}, ids), mask)
    elif type(attr) is Index:
        attr = rewrite(attr, {}, ids)
    return Op(op.name, tuple(ids[a] for a in op.args), op.dtype, attr)


class Putting:
    """Gives the numbers back, in the order in which they were taken, as extents."""

    def __init__(self, extents: Sequence[Extent]):
        self.rest = iter(extents)

    def next(self) -> Extent:
        return next(self.rest)

    def index(self, index: Index, variables: Mapping[str, Index]) -> Index:
        result = constant(0)
        for monomial, _ in index.terms:
            part = constant(1) * self.next()
            for a in monomial:
                part = part * (variables.get(a.name, atom(a)) if type(a) is Var else atom(a))
            result = result + part
        return result + self.next()


def generalized(nest: Nest, rows: Sequence[tuple[int, ...]]) -> tuple[Nest, tuple[Symbol, ...], tuple[tuple[int, ...], ...]]:
    """The nest with symbols for the numbers in which members differ, the symbols, and each member's values of them. rows: the numbers of each member."""
    symbols: dict[tuple[int, ...], Symbol] = {}
    extents: list[Extent] = []
    for column in zip(*rows, strict=True):
        if len(set(column)) == 1:
            extents.append(column[0])
            continue
        if column not in symbols:
            symbols[column] = Symbol(f"n{len(symbols)}", max(column), below(min(column)), above(max(column)))
        extents.append(atom(symbols[column]))
    putting = Putting(extents)
    axes = tuple(Axis(Var(a.var.name, putting.next()), a.role) for a in nest.axes)
    variables = {a.var.name: atom(a.var) for a in axes}
    body: list[Op] = []
    for op in nest.body:
        attr: Any = op.attr
        name = op.name
        if type(attr) is Access:
            attr = attr.at(putting.index(attr.index, variables), attr.mask)
        elif type(attr) is Index:
            attr = putting.index(attr, variables)
        elif name == "constant" and op.dtype == torch.int64:
            attr = putting.next()
            name = "index" if type(attr) is Index else name
        body.append(Op(name, op.args, op.dtype, attr))
    return replace(nest, axes=axes, body=tuple(body)), tuple(symbols.values()), tuple(zip(*symbols, strict=True)) or ((),) * len(rows)


def below(n: int) -> int:
    """The next power of two that is not above a number, or minus one: lists of about equal sizes share a kernel, which relies on the bounds of its symbols."""
    return -above(-n) if n < 0 else 1 << n.bit_length() - 1 if n else 0


def above(n: int) -> int:
    """The same that is not below it."""
    return -below(-n) if n < 0 else 1 << (n - 1).bit_length() if n else 0


def levels(units: Units, of: str, to: str) -> dict[int, int]:
    """The length of the longest way to each unit along its edges `of`, which `to` has in the other direction."""
    waiting = {i: len(getattr(u, of)) for i, u in units.by_id.items()}
    ready = [i for i, n in waiting.items() if n == 0]
    found = dict.fromkeys(ready, 0)
    while ready:
        i = ready.pop()
        for j in getattr(units.by_id[i], to):
            found[j] = max(found.get(j, 0), found[i] + 1)
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    return found


def lasting(buffers: Sequence[str], units: Units) -> int:
    """Bytes of temporary memory among the buffers of a kernel, which has none for what only its own values were computed of."""
    return sum(units.buffer(n).bytes for n in buffers if n not in units.kept)


def alike(units: Units, nests: Mapping[int, Nest], spans: int) -> Iterator[tuple[list[Unit], list[Pattern]]]:
    """Units of one level whose nests are alike, in the program's order, at least two of each sort, or one that has copies."""
    patterns = {i: p for i, n in nests.items() if (p := pattern_of(n, units.program.buffers)) is not None}
    end = 1 + max((u.last for u in units.by_id.values()), default=0)
    apart = {i: (units.by_id[i].last * spans // end, p.key) for i, p in patterns.items()}
    often: Counter[tuple] = Counter()
    for i, sort in apart.items():
        often[sort] += units.by_id[i].copies
    keys = {i: sort for i, sort in apart.items() if often[sort] > 1}
    if not keys:
        return
    best: dict[tuple, list[int]] = {}
    for ways in (("before", "after"), ("after", "before")):
        level = levels(units, *ways)
        found: dict[tuple, list[int]] = {}
        for i, key in keys.items():
            found.setdefault((level[i], key), []).append(i)
        if not best or len(found) < len(best):
            best = found
    for ids in best.values():
        if sum(units.by_id[i].copies for i in ids) > 1:
            members = sorted((units.by_id[i] for i in ids), key=lambda u: u.first)
            yield members, [patterns[u.id] for u in members]


def group(members: Sequence[Unit], patterns: Sequence[Pattern], nests: Mapping[int, Nest]) -> Group:
    nest, own, sizes = generalized(nests[members[0].id], [p.numbers for p in patterns])
    return Group(tuple(members), nest, own, sizes, tuple(p.buffers for p in patterns))


def contract(units: Units, group: Group, number: int) -> None:
    """One unit takes the place of the group's members in the graph of units."""
    members = {u.id for u in group.units}
    merged = Unit(number, min(u.first for u in group.units), max(u.last for u in group.units))
    for unit in group.units:
        merged.members += unit.members
        merged.reads |= unit.reads
        merged.writes |= unit.writes
        merged.before |= unit.before
        merged.after |= unit.after
        del units.by_id[unit.id]
    for i in merged.before:
        units.by_id[i].after = (units.by_id[i].after - members) | {number}
    for i in merged.after:
        units.by_id[i].before = (units.by_id[i].before - members) | {number}
    for name in merged.reads:
        units.readers[name] = (units.readers[name] - members) | {number}
    for name in merged.writes:
        units.writers[name] = (units.writers[name] - members) | {number}
    units.by_id[number] = merged


def against(members: Sequence[Unit], found: Group, units: Units) -> str:
    """Why like units had better stay apart; "" where they had not."""
    device = units.buffer(next(iter(members[0].writes))).device.type
    count = sum(u.copies for u in members)
    large = max(lasting(given, units) for given in found.buffers)
    if large > LASTING.get(device, 0):
        return f"each of {count} like kernels has up to {large} bytes of temporary memory, which would live until all have run"
    moved = max(sum(units.buffer(n).bytes for n in given) for given in found.buffers)
    flat = len(found.nest.axes) <= 1 and not found.nest.r_axes
    if found.own and not flat and count < FEW and moved > LARGE.get(device, 0):
        return f"{count} like kernels of up to {moved} bytes are each made for their own sizes"
    return ""


def gather(units: Units, nests: Mapping[int, Nest], spans: int = 1) -> tuple[dict[int, Group], list[tuple[list[Unit], str]]]:
    """Joins like units in place. The groups by the id of their unit, and which like units stay apart, with the reason.

    nests: of each unit that is no call, what its kernel does. spans: parts of the program, of which no list has members in two: a list is there when its last
    member is, and who waits for results of the first had better not wait so long."""
    nests = {i: in_order(n) if n.stores() else n for i, n in nests.items()}
    groups: dict[int, Group] = {}
    apart: list[tuple[list[Unit], str]] = []
    number = max(units.by_id, default=0) + 1
    for members, patterns in list(alike(units, nests, spans)):
        found = group(members, patterns, nests)
        reason = against(members, found, units)
        if reason:
            apart.append((members, reason))
            continue
        contract(units, found, number)
        groups[number] = found
        number += 1
    return groups, apart
