"""Who must run before whom: steps as units, with edges for every read after write, write after read, and random order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynacompile.ir.loops import Axis, Buffer, Extern, LoopProgram, Nest, root
from dynacompile.ops.checks import CHECKED, DIVIDING, FILLING


@dataclass
class Unit:
    """An extern call, or nests that run as one kernel. first, last: places in the program's order. reads: what comes from outside.

    part: of a program that is made of parts, the one that it belongs to; copies: how often that occurs."""

    id: int
    first: int
    last: int
    extern: Extern | None = None
    members: list[tuple[int, Nest]] = field(default_factory=list)
    axes: tuple[Axis, ...] = ()
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    reach: int = 0  # bit set of the positions of this unit and of all that must run after it
    part: int = 0
    copies: int = 1

    def adds_to(self, names: set[str]) -> bool:
        """Whether it adds to one of the buffers, whose elements are there only when all points have been."""
        return any(a.added and a.buffer in names for _, nest in self.members for a in nest.stores())


@dataclass
class Units:
    """The units of a program by id, and for each buffer with memory who reads it."""

    program: LoopProgram
    roots: dict[str, str]
    by_id: dict[int, Unit]
    readers: dict[str, set[int]]
    writers: dict[str, set[int]]
    kept: frozenset[str]  # buffers whose contents leave the program or are not ours: never eliminated

    def buffer(self, name: str) -> Buffer:
        return self.program.buffers[name]


def make_units(program: LoopProgram) -> Units:
    """One unit per step. What raises for the values that it is given comes before later writes to what the caller has."""
    buffers = program.buffers
    roots = {name: root(buffers, name) for name in buffers}
    units: dict[int, Unit] = {}
    readers: dict[str, set[int]] = {}
    writer: dict[str, int] = {}
    since: dict[str, set[int]] = {}  # readers since the last write
    last_random: int | None = None
    checks: list[Unit] = []
    for position, step in enumerate(program.steps):
        if isinstance(step, Nest):
            unit = Unit(position, position, position, None, [(position, step)], step.axes, {a.buffer for a in step.loads()}, {a.buffer for a in step.stores()})
        else:
            written = {roots[o] for o in step.outputs if o is not None} | {roots[m] for m in step.mutates}
            unit = Unit(position, position, position, step, reads={roots[r] for r in step.reads()}, writes=written)
            if step.random or step.op._schema.is_mutable or not step.outputs:
                if last_random is not None:
                    link(units[last_random], unit)
                last_random = position
        units[position] = unit
        if any(buffers[name].kind == "input" for name in unit.writes):
            for check in checks:
                link(check, unit)
        if raises(unit, buffers):
            checks.append(unit)
        for name in unit.reads:
            if name in writer:
                link(units[writer[name]], unit)
            readers.setdefault(name, set()).add(position)
            since.setdefault(name, set()).add(position)
        for name in unit.writes:
            if name in writer:
                link(units[writer[name]], unit)
            for reader in since.pop(name, ()):
                link(units[reader], unit)
            writer[name] = position
    for unit in reversed(units.values()):
        unit.reach = 1 << unit.first
        for i in unit.after:
            unit.reach |= units[i].reach
    writers: dict[str, set[int]] = {}
    for unit in units.values():
        for name in unit.writes:
            writers.setdefault(name, set()).add(unit.id)
    kept = {roots[o] for o in program.outputs if o is not None} | {n for n, b in buffers.items() if b.base is None and b.kind != "temp"}
    return Units(program, roots, units, readers, writers, frozenset(kept))


def raises(unit: Unit, buffers: Mapping[str, Buffer]) -> bool:
    """Whether it is a call that raises by values, as where an index lies outside: on GPUs that is an assertion of the device."""
    op = unit.extern.op if unit.extern is not None else None
    return (op in CHECKED or op in DIVIDING or op in FILLING) and all(buffers[name].device.type == "cpu" for name in unit.reads)


def link(earlier: Unit, later: Unit) -> None:
    if earlier.id != later.id:
        earlier.after.add(later.id)
        later.before.add(earlier.id)


def replace_pair(units: Units, a: Unit, b: Unit, merged: Unit) -> None:
    """`merged` takes the place of a and b in the graph of units."""
    del units.by_id[a.id], units.by_id[b.id]
    merged.before = (a.before | b.before) - {a.id, b.id}
    merged.after = (a.after | b.after) - {a.id, b.id}
    for i in merged.before:
        units.by_id[i].after -= {a.id, b.id}
        units.by_id[i].after.add(merged.id)
    for i in merged.after:
        units.by_id[i].before -= {a.id, b.id}
        units.by_id[i].before.add(merged.id)
    for name in a.reads | b.reads:
        units.readers[name] -= {a.id, b.id}
    for name in merged.reads:
        units.readers[name].add(merged.id)
    for name in merged.writes:
        units.writers[name] -= {a.id, b.id}
        units.writers[name].add(merged.id)
    merged.reach = a.reach | b.reach
    stack = list(merged.before)
    while stack:
        unit = units.by_id[stack.pop()]
        if unit.reach & merged.reach != merged.reach:
            unit.reach |= merged.reach
            stack.extend(unit.before)
    units.by_id[merged.id] = merged


def has_path(units: Units, start: Unit, end: Unit) -> bool:
    """A path from start to end through another unit: fusing the two would make a circle."""
    bit = 1 << end.first
    return any(i != end.id and units.by_id[i].reach & bit for i in start.after)
