"""Programs that are made of like parts: the parts' units side by side, and the names of their other occurrences' buffers.

A part is fused once. Where it occurs again, the same kernels run over other buffers: a launch over a list has more members, and what is launched by itself
is launched once more. Parts have no buffers in common that anyone writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from dynacompile.ir.alike import ProgramParts
from dynacompile.ir.loops import Access, Buffer, Extern, LoopProgram, Nest
from dynacompile.ir.sizes import Sizes
from dynacompile.schedule.units import Unit, Units, link


@dataclass(frozen=True)
class Names:
    """What the buffers of a part are called where it occurs. inputs: of those of the first occurrence, what this one has in their place; suffix: what is put
    behind the other names; kept: names that all occurrences have in common."""

    inputs: Mapping[str, str]
    suffix: str
    kept: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> str:
        return name if name in self.kept else self.inputs.get(name) or name + self.suffix

    def all(self, names: Iterable[str]) -> tuple[str, ...]:
        kept, inputs, suffix = self.kept, self.inputs, self.suffix
        return tuple([n if n in kept else inputs.get(n) or n + suffix for n in names])


@dataclass(frozen=True)
class Copies:
    """The occurrences of each part, and the inputs and outputs of the whole. parts: the part that each buffer belongs to."""

    names: tuple[tuple[Names, ...], ...]
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    parts: Mapping[str, int]

    @staticmethod
    def none(program: LoopProgram) -> Copies:
        return Copies(((Names({}, ""),),), program.inputs, program.outputs, {})

    def buffers(self, program: LoopProgram, used: Set[str]) -> dict[str, Buffer]:
        """Those of all occurrences. used: the buffers that the program's inputs, outputs and runs name; others were lost to fusing, and have no copies."""
        buffers = dict(program.buffers)
        for name, part in self.parts.items():
            buffer = program.buffers[name]
            if self.names[part][0][name] not in used:
                continue
            for names in self.names[part]:
                own, base = names[name], None if buffer.base is None else names[buffer.base]
                if name in names.inputs and own in buffers:  # what an earlier part makes
                    continue
                if own != name or base != buffer.base:
                    buffers[own] = buffers.get(own, buffer).named(own, base)
        return buffers


def named_apart(programs: Sequence[LoopProgram], parts: ProgramParts) -> list[LoopProgram]:
    """The programs of the parts, no two of which have a name in common: behind each name stands the number of the part."""
    return [renamed(program, k, places[0]) for k, (program, places) in enumerate(zip(programs, parts.inputs, strict=True))]


def renamed(program: LoopProgram, part: int, places: Sequence[int]) -> LoopProgram:
    def name(old: str) -> str:
        return f"{old}@{part}"

    def step(old: Nest | Extern) -> Nest | Extern:
        if isinstance(old, Extern):
            return old.with_names(name)
        body = [replace(op, attr=replace(op.attr, buffer=name(op.attr.buffer))) if type(op.attr) is Access else op for op in old.body]
        return replace(old, body=tuple(body))

    sizes = program.sizes
    sources = tuple(replace(s, position=places[s.position]) for s in sizes.sources)
    return LoopProgram(
        tuple(n and name(n) for n in program.inputs),
        tuple(n and name(n) for n in program.outputs),
        {name(n): replace(b, name=name(n), base=b.base and name(b.base)) for n, b in program.buffers.items()},
        tuple(map(step, program.steps)),
        {name(n): t for n, t in program.constants.items()},
        Sizes(sources, sizes.derived, tuple((places[i], e) for i, e in sizes.checks)),
    )


def joined(units: Sequence[Units], parts: ProgramParts) -> tuple[Units, Copies]:
    """The units of all parts as those of one program, and the parts' occurrences."""
    by_id: dict[int, Unit] = {}
    roots: dict[str, str] = {}
    readers: dict[str, set[int]] = {}
    writers: dict[str, set[int]] = {}
    kept: set[str] = set()
    start = 0
    for k, own in enumerate(units):
        for unit in own.by_id.values():
            unit.id, unit.first, unit.last = unit.id + start, unit.first + start, unit.last + start
            unit.before, unit.after = {i + start for i in unit.before}, {i + start for i in unit.after}
            unit.part, unit.copies = k, len(parts.inputs[k])
            by_id[unit.id] = unit
        roots |= own.roots
        readers |= {n: {i + start for i in ids} for n, ids in own.readers.items()}
        writers |= {n: {i + start for i in ids} for n, ids in own.writers.items()}
        kept |= own.kept
        start = 1 + max((*by_id, *(u.last for u in by_id.values())), default=-1)
    link_phases([[by_id[i] for i in by_id if by_id[i].part == k] for k in range(len(units))], parts.phases)
    programs = [u.program for u in units]
    return Units(program_of(programs), roots, by_id, readers, writers, frozenset(kept)), copies_of(programs, parts)


def link_phases(units: Sequence[Sequence[Unit]], phases: Sequence[int]) -> None:
    """Whatever is of a phase runs after all that is of the one before."""
    found: dict[int, list[Unit]] = {}
    for own, phase in zip(units, phases):
        found.setdefault(phase, []).extend(own)
    order = sorted(phase for phase, own in found.items() if own)
    for before, after in zip(order, order[1:]):
        for earlier in found[before]:
            for later in found[after]:
                link(earlier, later)


def program_of(programs: Sequence[LoopProgram]) -> LoopProgram:
    """One program of all that the parts have."""
    sources = tuple({s.symbol: s for p in programs for s in p.sizes.sources}.values())
    derived = tuple(dict.fromkeys(d for p in programs for d in p.sizes.derived))
    checks = tuple(dict.fromkeys(c for p in programs for c in p.sizes.checks))
    buffers = {n: b for p in programs for n, b in p.buffers.items()}
    assert len(buffers) == sum(len(p.buffers) for p in programs), "parts have names of buffers in common"
    constants = {n: t for p in programs for n, t in p.constants.items()}
    inputs, outputs = (tuple(n for p in programs for n in getattr(p, of)) for of in ("inputs", "outputs"))
    steps = tuple(s for p in programs for s in p.steps)
    return LoopProgram(inputs, outputs, buffers, steps, constants, Sizes(sources, derived, checks))


def copies_of(programs: Sequence[LoopProgram], parts: ProgramParts) -> Copies:
    inputs: list[str | None] = [None] * parts.counts[0]
    outputs: list[str | None] = [None] * parts.counts[1]
    names: list[tuple[Names, ...]] = []
    for k, program in enumerate(programs):
        own = []
        for m, (given, made) in enumerate(zip(parts.inputs[k], parts.outputs[k], strict=True)):
            suffix = f"+{m}@{k}" if m else ""
            called: dict[str, str | None] = {}
            for i, name in zip(given, program.inputs, strict=True):
                if name is None:
                    continue
                if i >= len(inputs):
                    called[name] = outputs[parts.between[i - len(inputs)]]
                    continue
                inputs[i] = inputs[i] or name + suffix
                called[name] = inputs[i]
            own.append(Names(called, suffix, frozenset(program.constants)))  # type: ignore[arg-type]
            for i, name in zip(made, program.outputs, strict=True):
                outputs[i] = None if name is None else own[-1][name]
        names.append(tuple(own))
    outputs = [None if i in parts.unseen else name for i, name in enumerate(outputs)]
    parts_of = {name: k for k, program in enumerate(programs) for name in program.buffers if name not in program.constants}
    return Copies(tuple(names), tuple(inputs), tuple(outputs), parts_of)
