"""Writes a backward that is cut at outputs as one graph for each level of outputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.fx

from dynacompile.autograd.again import again
from dynacompile.autograd.joint import tangents_of
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.autograd.kept import StageGradients, beyond_hidden, inputs_led_to, needs_of, stage_marks
from dynacompile.autograd.partition import Sides
from dynacompile.autograd.writing import Copy, symbolic_inputs
from dynacompile.ir.graphs import Again, Hidden, Stage, Target
from dynacompile.ir.symbols import extent
from dynacompile.ops.backward_steps import note_places

Node = torch.fx.Node


@dataclass
class Part:
    """One stage. results: what its graph gives, and where that goes. hidden: what stages above give to it, in order.
    flags: those of the joint graph that it takes."""

    tangents: list[Node] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    results: list[tuple[Node, Target]] = field(default_factory=list)
    hidden: list[Node] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Saved:
    """What forward keeps for backward: inputs, and values with their positions among forward's outputs."""

    inputs: Mapping[Node, int]
    values: Mapping[Node, int]


def write_stages(joint: JointGraph, side: Sides, saved: Saved) -> tuple[tuple[torch.fx.GraphModule, ...], tuple[Stage, ...]]:
    """The graphs of the stages, lowest outputs first."""
    parts, stage_of = divide(joint, side)
    ahead = further(parts)
    leads = inputs_led_to(joint)
    written = [write(joint, side, saved, parts, k, stage_of, ahead[k], leads) for k in range(len(parts))]
    draws = tuple(dict.fromkeys(device for _, _, kept in written for device in kept.draws))  # one call draws for all of them
    return tuple(graph for graph, _, _ in written), tuple(replace(stage, again=replace(kept, draws=draws)) for _, stage, kept in written)


def divide(joint: JointGraph, side: Sides) -> tuple[list[Part], dict[Node, int]]:
    """Each node of the backward belongs to the lowest stage that has a tangent which it depends on: by then all that it takes is there."""
    tangents = joint.placeholders[joint.inputs :][: len(joint.tangents)]
    parts = [Part() for _ in range(1 + max(joint.levels))]
    stage_of: dict[Node, int] = {}
    for node, position, level in zip(tangents, joint.tangents, joint.levels, strict=True):
        stage_of[node] = level
        parts[level].tangents.append(node)
        parts[level].positions.append(position)
    for index, (node, reached) in enumerate(zip(flag_nodes(joint), joint.flags, strict=True)):
        stage_of[node] = min(joint.levels[t] for t in reached)
        parts[stage_of[node]].flags.append(index)
    for node in side.backward:
        stage_of[node] = min(stage_of[a] for a in node.all_input_nodes if a in stage_of)
    for node, target, sources in results_of(joint):
        # What is computed from no tangent comes from each stage that has a tangent which makes eager's autograd give it.
        levels = [stage_of[node]] if node in stage_of else sorted({joint.levels[t] for t in sources}) or [0]
        for level in levels:
            parts[level].results.append((node, target))
    for node in side.backward:
        for operand in node.all_input_nodes:
            k = stage_of[node]
            if operand in stage_of and stage_of[operand] != k and operand not in parts[k].hidden:
                parts[stage_of[operand]].results.append((operand, Target("hidden", k, len(parts[k].hidden))))
                parts[k].hidden.append(operand)
    return parts, stage_of


def results_of(joint: JointGraph) -> list[tuple[Node, Target, tuple[int, ...]]]:
    """The gradients that leave the graph: the node, where it goes, and the tangents that it comes from."""
    found = [(node, Target("input", i), sources) for node, i, sources in zip(joint.groups[2], joint.grads, joint.sources, strict=True)]
    return found + list(zip(joint.captured, joint.targets, joint.target_sources, strict=True))


def flag_nodes(joint: JointGraph) -> list[Node]:
    """The placeholders that tell whether some of the tangents have come."""
    return joint.placeholders[joint.inputs + len(joint.tangents) :]


def behind_flags(joint: JointGraph, reached: int) -> int:
    """The tangents of a node, with those that the flags tell of which it takes. Both are bits of a number, the flags behind the tangents."""
    count = len(joint.tangents)
    told = (t for f, tangents in enumerate(joint.flags) if reached >> (count + f) & 1 for t in tangents)
    return functools.reduce(operator.or_, (1 << t for t in told), reached & ((1 << count) - 1))


def further(parts: Sequence[Part]) -> list[tuple[Target, ...]]:
    """For each stage, what gets gradients through those that it gives to lower stages, and not from itself."""
    reached: list[dict[Target, None]] = []
    found = []
    for part in parts:  # the stages that one gives to are lower
        own = dict.fromkeys(t for _, t in part.results if t.kind != "hidden")
        through = dict.fromkeys(t for _, given in part.results if given.kind == "hidden" for t in reached[given.index])
        found.append(tuple(t for t in through if t not in own))
        reached.append({**own, **through})
    return found


def write(
    joint: JointGraph,
    side: Sides,
    saved: Saved,
    parts: Sequence[Part],
    k: int,
    stage_of: Mapping[Node, int],
    ahead: tuple[Target, ...],
    leads: Mapping[Node, int],
) -> tuple[torch.fx.GraphModule, Stage, Again]:
    part = parts[k]
    used = reads(part, saved)
    inputs, values = [n for n in saved.inputs if n in used], [n for n in saved.values if n in used]
    copy = Copy(joint)
    for node in inputs:
        copy.placeholder(node)
    for node in values:
        copy.placeholder(node, f"saved_{node.name}")
    for node in part.tangents:
        copy.placeholder(node)
    for i, node in enumerate(part.hidden):
        copy.placeholder(node, f"hidden_{i}")
    for index in part.flags:
        copy.placeholder(flag_nodes(joint)[index])
    for node in side.backward:
        if stage_of[node] == k:
            copy.demand(node)
    for node, _ in part.results:
        copy.demand(node)
    symbols = symbolic_inputs(copy.graph, [n.meta["val"] for n in joint.placeholders[: joint.inputs]]) if copy.symbolic else ()
    nodes = [copy.nodes[n] for n, _ in part.results]
    first = len(symbols) + len(inputs) + len(values)
    reached = tangents_of(copy.graph, first)
    graph = copy.finish(nodes)
    count = len(part.tangents) + len(part.hidden)
    note_places(tuple(copy.graph.nodes), lambda n: reached.get(n, 0) & ((1 << count) - 1), nodes)
    places = {joint.tangents.index(p): i for i, p in enumerate(part.positions)}
    given = {target: sum(1 << places[t] for t in sources if t in places) for _, target, sources in results_of(joint)}
    saved_inputs, saved_positions = tuple(saved.inputs[n] for n in inputs), tuple(saved.values[n] for n in values)
    whole = tangents_of(joint.graph, joint.inputs)
    own = tuple(joint.tangents.index(p) for p in part.positions)
    gradients = StageGradients(k, own, tuple(behind_flags(joint, whole[n]) for n in part.hidden), (*(t for _, t in part.results), *ahead))
    to_stages = {e: leads[n] for e, (n, target) in enumerate(part.results) if target.kind == "hidden"}
    needs = beyond_hidden(joint, needs_of(graph.graph, len(symbols), len(inputs) + len(values), count), gradients.edges, to_stages)
    stage = Stage(
        saved_inputs=saved_inputs,
        saved_positions=saved_positions,
        tangents=tuple(part.positions),
        edges=tuple(t for _, t in part.results),
        further=ahead,
        sources=tuple(
            tuple(i for i in range(count) if (reached[n] | given.get(target, 0)) >> i & 1) for n, (_, target) in zip(nodes, part.results, strict=True)
        ),
        symbols=symbols,
        hidden=tuple(map(hidden_row, part.hidden)),
        marks=stage_marks(joint, gradients, saved_inputs, saved_positions, part.flags, needs),
    )
    if ahead:  # gradients of inputs that a replay has to give itself
        return graph, stage, again(joint, side, values, (*joint.groups[2], *joint.captured))
    return graph, stage, again(joint, side, values, [n for n, _ in part.results], set(part.hidden))


def reads(part: Part, saved: Saved) -> set[Node]:
    """What a stage reads of what is saved."""
    given = {*part.tangents, *part.hidden, *saved.inputs, *saved.values}
    found: set[Node] = set()
    pending = [n for n, _ in part.results]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in given:
                pending.extend(node.all_input_nodes)
    return found


def hidden_row(node: Node) -> Hidden:
    value = node.meta["val"]
    return Hidden(tuple(map(extent, value.shape)), tuple(map(extent, value.stride())), value.dtype, value.device)
