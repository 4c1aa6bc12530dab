"""The like parts of a graph as functional graphs, and what the runtime does around all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.autograd.differentiate import differentiate
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.alike import DifferentiatedParts, Parts
from dynacompile.ir.graphs import Constant, Fresh, InputItself, Marks, Output, RuntimeContract, ViewOfInput, ViewOfOutput, output_args
from dynacompile.ir.looks import memory_of
from dynacompile.ops.collectives import is_collective
from dynacompile.private import of_torch


def differentiate_parts(parts: Parts, env: Env) -> DifferentiatedParts | None:
    """Each part as a functional graph, and the contract of all occurrences together. None where autograd has a part in them, or where one writes what
    another one uses."""
    pairs = []
    for part in parts.parts:
        try:
            pairs.append(differentiate(part.graph, part.fakes, env))
        except Unsupported:  # told of the whole, with the whole's names
            return None
    if not all(is_simple(pair.contract) for pair in pairs) or any(is_ordered(node) for pair in pairs for node in pair.forward.graph.nodes):
        return None
    uses = Counter((part.phase, i) for part in parts.parts for o in part.occurrences for i in o.inputs)
    rows: dict[int, Output] = {i: InputItself(j) for i, j in parts.given}
    rows.update({i: Constant(value) for i, value in parts.constants})
    written: list[tuple[int, int]] = []
    input_writes: Counter[int] = Counter()
    output_writes: list[tuple[int, int]] = []
    mutated: set[int] = set()
    passes = set(parts.between)
    positions, count = [], 0
    for part, pair in zip(parts.parts, pairs, strict=True):
        told, made, bases = pair.contract, output_args(pair.forward), []
        passed = {row.position for o in part.occurrences for i, row in zip(o.outputs, told.outputs, strict=True) if i in passes and isinstance(row, Fresh)}
        if passed and not has_own_memory(pair.forward, [made[p] for p in passed]):
            return None
        for occurrence in part.occurrences:
            written += [(part.phase, occurrence.inputs[i]) for i in (*told.mutated_in_graph, *(i for i, _ in told.marks.input_writes))]
            mutated |= {occurrence.inputs[i] for i in told.mutated_in_graph}
            input_writes.update({occurrence.inputs[i]: n for i, n in told.marks.input_writes})
            output_writes += [(count + p, n) for p, n in told.marks.output_writes]
            for i, row in zip(occurrence.outputs, told.outputs, strict=True):
                rows[i] = moved(row, occurrence.inputs, count)
            bases.append(count)
            count += len(made)
        positions.append(tuple(bases))
    between = [rows[i] for i in parts.between]
    if any(uses[place] > 1 or place[1] >= parts.inputs for place in written) or not all(isinstance(row, Fresh) for row in between):
        return None
    outputs = tuple(rows[i] for i in range(parts.outputs))
    if any(isinstance(row, (InputItself, ViewOfInput)) and row.input >= parts.inputs for row in outputs):  # a view of what an earlier phase made
        return None
    marks = Marks(input_writes=tuple(sorted(input_writes.items())), output_writes=tuple(output_writes), parts=())
    contract = RuntimeContract(parts.inputs, outputs, mutated_in_graph=tuple(sorted(mutated)), marks=marks)
    facts = {"ops": sum(pair.facts.get("ops", 0) for pair in pairs), "parts": len(pairs), "copies": sum(len(p.occurrences) for p in parts.parts)}
    places = tuple(row.position for row in between if isinstance(row, Fresh))
    return DifferentiatedParts(parts, tuple(pairs), contract, tuple(positions), count, facts, places)


def has_own_memory(graph: torch.fx.GraphModule, results: Sequence[object]) -> bool:
    """Whether each of the results is all of its memory: what a later phase gets is an input of its programs, which know of no tensor that it is a view of."""
    memory = Counter(memory_of(value) for n in graph.graph.nodes if n.op == "call_function" and isinstance(value := n.meta.get("val"), torch.Tensor))
    return all(isinstance(n, torch.fx.Node) and n.op == "call_function" and memory[memory_of(n.meta["val"])] == 1 for n in results)


def is_ordered(node: torch.fx.Node) -> bool:
    """Whether an operation has its place among those of other parts: it draws random numbers, talks to other processes, or is there for what it does."""
    op = node.target
    if not isinstance(op, of_torch.OpOverload) or op is torch.ops.aten.copy_.default:
        return False
    return torch.Tag.nondeterministic_seeded in op.tags or is_collective(op) or op._schema.is_mutable or not op._schema.returns


def is_simple(told: RuntimeContract) -> bool:
    """Whether autograd has no part in it."""
    marks = told.marks
    if marks.inference or marks.watches or marks.flags or marks.parts or marks.needs or marks.keeps or told.again is not None:
        return False
    if told.mutations or told.saved_inputs or told.saved_positions or told.tangents or told.grads or told.symbols or told.sizes or told.stages:
        return False
    if any(row.lineage.through is not None for row in told.outputs if isinstance(row, (ViewOfInput, ViewOfOutput))):
        return False
    return not any(row.differentiable for row in told.outputs if isinstance(row, Fresh))


def moved(row: Output, inputs: Sequence[int], position: int) -> Output:
    """A part's output as one of the whole."""
    match row:
        case Fresh():
            return Fresh(position + row.position, row.differentiable)
        case ViewOfOutput():
            return ViewOfOutput(position + row.position, row.view, row.lineage, row.alone)
        case InputItself():
            return InputItself(inputs[row.input])
        case ViewOfInput():
            return ViewOfInput(inputs[row.input], row.view, row.lineage)
        case Constant():
            return row
