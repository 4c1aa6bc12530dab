"""A graph that falls apart into like parts: the parts, and how often each occurs.

An optimizer's step does the same to each parameter, with memory of its own. One occurrence of a part is compiled; the others are its copies, which
differ in nothing but their buffers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.fx

from dynacompile.ir.graphs import ForwardBackward, RuntimeContract
from dynacompile.ir.loops import LoopProgram


@dataclass(frozen=True)
class Occurrence:
    """Where the inputs and outputs of a part are among those of the whole graph, by index."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A torch-level graph that occurs several times in a larger one, with the fakes of its first occurrence. Parts of later phases run after those of
    earlier ones."""

    graph: torch.fx.GraphModule
    fakes: tuple[object, ...]
    occurrences: tuple[Occurrence, ...]
    phase: int = 0


@dataclass(frozen=True)
class Parts:
    """The parts that a graph with so many inputs falls apart into. outputs: of those of the graph that no part makes, by index, the index of the input
    that they are; None for one that is a constant, which `constants` has. between: what passes from phases to later ones, each as the index of an output:
    behind those of the graph are those that nobody else sees. As inputs, they come behind the graph's."""

    inputs: int
    outputs: int
    parts: tuple[Part, ...]
    given: tuple[tuple[int, int], ...] = ()
    constants: tuple[tuple[int, object], ...] = ()
    between: tuple[int, ...] = ()


@dataclass(frozen=True)
class DifferentiatedParts:
    """Parts as functional ATen graphs, and the contract of the whole. positions: for each occurrence of each part, where its forward outputs begin among
    those of the whole; count: how many these are. between: the places there of what passes between phases."""

    parts: Parts
    pairs: tuple[ForwardBackward, ...]
    contract: RuntimeContract
    positions: tuple[tuple[int, ...], ...]
    count: int
    facts: dict[str, int] = field(default_factory=dict)
    between: tuple[int, ...] = ()

    def verify(self) -> None:
        for pair in self.pairs:
            pair.verify()

    def text(self) -> str:
        return "\n".join(f"{len(part.occurrences)} times:\n{pair.text()}" for part, pair in zip(self.parts.parts, self.pairs, strict=True))

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProgramParts:
    """Loop programs of parts. inputs, outputs: of each occurrence of each part, the places of its program's inputs and outputs in the whole's.
    phases: of each part, see `Part`. between: of what passes between them, the place among the outputs; as inputs they come behind the whole's. unseen: those
    of them that the whole does not give."""

    programs: tuple[LoopProgram, ...]
    inputs: tuple[tuple[tuple[int, ...], ...], ...]
    outputs: tuple[tuple[tuple[int, ...], ...], ...]
    counts: tuple[int, int]
    phases: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    unseen: frozenset[int] = frozenset()

    def verify(self) -> None:
        for program in self.programs:
            program.verify()

    def facts(self) -> dict[str, int]:
        """Of what is lowered; copies are not counted again."""
        told = [p.facts() for p in self.programs]
        return {**{k: sum(t[k] for t in told) for k in told[0]}, "parts": len(told), "copies": sum(map(len, self.inputs))}

    def text(self) -> str:
        return "\n".join(f"{len(places)} times: {p.text()}" for p, places in zip(self.programs, self.inputs, strict=True))

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def lowered(found: DifferentiatedParts, programs: Sequence[LoopProgram]) -> ProgramParts:
    """The hand-off to the schedule: what the parts became, and where their inputs and outputs are."""
    outputs = [[tuple(range(base, base + len(p.outputs))) for base in bases] for p, bases in zip(programs, found.positions, strict=True)]
    inputs = [tuple(o.inputs for o in part.occurrences) for part in found.parts.parts]
    unseen = frozenset(place for place, output in zip(found.between, found.parts.between) if output >= found.parts.outputs)
    counts, phases = (found.parts.inputs, found.count), tuple(p.phase for p in found.parts.parts)
    return ProgramParts(tuple(programs), tuple(inputs), tuple(map(tuple, outputs)), counts, phases, found.between, unseen)
