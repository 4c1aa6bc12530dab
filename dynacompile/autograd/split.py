"""Writes the forward and the backward graph of a joint graph that has been cut."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.fx

from dynacompile.autograd.again import again
from dynacompile.autograd.facts import byte_size
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.autograd.kept import marks, needs_of
from dynacompile.autograd.padding import pad_saved
from dynacompile.autograd.partition import Cut, Sides, ancestors, choose_cut, sides
from dynacompile.autograd.stages import Saved, write_stages
from dynacompile.autograd.writing import Copy, Symbols, is_symbolic, symbolic_inputs
from dynacompile.ir.graphs import ForwardBackward, Part, RuntimeContract, Stage, View, ViewOfInput, ViewOfOutput
from dynacompile.ir.sizes import Sizes, sizes_of, symbols_in
from dynacompile.ir.symbols import extent, sources
from dynacompile.private import of_torch

Node = torch.fx.Node


def split(joint: JointGraph, budget: float, regather: bool = False) -> ForwardBackward:
    """budget: share of the default cut's saved bytes that may be kept for backward. regather: what is gathered from inputs is gathered again."""
    if not joint.tangents:
        side = sides(joint)
        forward, _, _ = write_forward(joint, side, ())
        return ForwardBackward(forward, None, contract(joint, forward), {"ops": calls(forward)})
    side = sides(joint, regather)
    cut = choose_cut(joint, side, budget)
    inputs = joint.placeholders[: joint.inputs]
    saved_inputs = [n for n in inputs if n in cut.saved and n not in side.copied]
    saved_values = [n for n in cut.saved if n not in saved_inputs]
    pad_saved(saved_values, [*joint.groups[0], *joint.groups[1], *joint.groups[2], *joint.captured])
    forward, positions, kept = write_forward(joint, side, saved_values)
    backward, graphs = None, ()  # type: tuple[torch.fx.GraphModule | None, tuple[torch.fx.GraphModule, ...]]
    needs: tuple[tuple[Part, ...], ...] = ()
    symbols, stages = (), ()  # type: tuple[Symbols, tuple[Stage, ...]]
    if joint.levels:
        graphs, stages = write_stages(joint, side, Saved({n: inputs.index(n) for n in saved_inputs}, dict(zip(kept, positions, strict=True))))
    else:
        backward, symbols = write_backward(joint, side, saved_inputs, kept)
        needs = needs_of(backward.graph, len(symbols), len(saved_inputs) + len(kept), len(joint.tangents))
    facts = {
        "ops": calls(forward) + sum(map(calls, graphs if backward is None else (backward,))),
        "saved_bytes": sum(byte_size(n) for n in kept),
        "saved_values": len(kept),
        "saved_inputs": len(saved_inputs),
        "uncut_bytes": cut.everything,
        "recomputed_ops": recomputed(joint, side, cut),
    }
    kept_inputs = tuple(inputs.index(n) for n in saved_inputs)
    agreed = contract(joint, forward, kept_inputs, tuple(positions), symbols, stages, needs)
    return ForwardBackward(forward, backward, agreed if stages else replace(agreed, again=again(joint, side, kept, joint.groups[2])), facts, graphs)


def contract(
    joint: JointGraph,
    forward: torch.fx.GraphModule,
    saved_inputs: tuple[int, ...] = (),
    saved_positions: tuple[int, ...] = (),
    symbols: Symbols = (),
    stages: tuple[Stage, ...] = (),
    needs: tuple[tuple[Part, ...], ...] = (),
) -> RuntimeContract:
    outputs, sizes = joint.outputs, Sizes()
    if is_symbolic(joint):
        outputs = tuple(replace(o, view=measured(o.view)) if isinstance(o, (ViewOfInput, ViewOfOutput)) else o for o in outputs)
        views = [(o.view.size, o.view.stride, o.view.offset) for o in outputs if isinstance(o, (ViewOfInput, ViewOfOutput))]
        views += [(h.size, h.stride, 0) for stage in stages for h in stage.hidden]
        sizes = sizes_of(symbols_in(views), sources(forward)[0])
    behind = (joint.outputs[t.index] for t in joint.targets if t.kind == "output")  # views get gradients for the inputs that they are views of
    grads = tuple(dict.fromkeys((*joint.grads, *(o.input for o in behind if isinstance(o, ViewOfInput)))))
    return RuntimeContract(
        inputs=joint.inputs,
        outputs=outputs,
        mutations=joint.mutations,
        mutated_in_graph=joint.written,
        saved_inputs=saved_inputs,
        saved_positions=saved_positions,
        tangents=joint.tangents,
        grads=grads,
        sources=(*joint.sources, *((),) * (len(grads) - len(joint.grads))),
        symbols=symbols,
        sizes=sizes,
        marks=marks(joint, saved_inputs, saved_positions, needs),
        stages=stages,
    )


def measured(view: View) -> View:
    """The view with symbolic ints as extents."""
    return View(tuple(map(extent, view.size)), tuple(map(extent, view.stride)), extent(view.offset))  # type: ignore[arg-type]


def calls(module: torch.fx.GraphModule) -> int:
    return sum(n.op == "call_function" for n in module.graph.nodes)


def recomputed(joint: JointGraph, side: Sides, cut: Cut) -> int:
    """Forward's ops that backward computes again, views not counted."""
    saved = set(cut.saved)
    found: set[Node] = set()
    pending = [n for n in side.frontier if n not in saved]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(a for a in node.all_input_nodes if a not in saved)
    return sum(n.op == "call_function" and n in side.forward for n in found)


def write_forward(joint: JointGraph, side: Sides, saved: tuple[Node, ...] | list[Node]) -> tuple[torch.fx.GraphModule, list[int], list[Node]]:
    """(forward, positions of the saved values, the saved values in order of position)."""
    values, written, _ = joint.groups
    needed = side.forward | ancestors(list(saved))
    copy = Copy(joint)
    inputs = joint.placeholders[: joint.inputs]
    for node in inputs:
        copy.placeholder(node)
    for node in side.primal:
        if node in needed and node.op != "placeholder":
            copy.add(node)
    outputs = [copy.nodes[n] for n in values]
    place: dict[Node, int] = {}
    copied = side.copied_results(saved)
    for node in saved:
        if node.op == "placeholder" or node in copied:
            place[node] = len(outputs)
            outputs.append(call(copy.graph, torch.ops.aten.clone.default, (copy.nodes[node],), node))
        elif node in values:
            place[node] = values.index(node)
        else:
            place[node] = len(outputs)
            outputs.append(copy.nodes[node])
    for index, node in zip(joint.written, written, strict=True):
        call(copy.graph, torch.ops.aten.copy_.default, (copy.nodes[inputs[index]], copy.nodes[node]), node)
    kept = sorted(saved, key=place.__getitem__)
    return copy.finish(outputs), [place[n] for n in kept], kept


def call(graph: torch.fx.Graph, op: of_torch.OpOverload, args: tuple, like: Node) -> Node:
    node = graph.call_function(op, args)
    node.meta = dict(like.meta)
    return node


def write_backward(joint: JointGraph, side: Sides, saved_inputs: list[Node], saved_values: list[Node]) -> tuple[torch.fx.GraphModule, Symbols]:
    """Recomputed ops stand right before their first use. Also gives where forward finds the numbers that backward takes first."""
    copy = Copy(joint)
    for node in saved_inputs:
        copy.placeholder(node)
    for node in saved_values:
        copy.placeholder(node, f"saved_{node.name}")
    for node in joint.placeholders[joint.inputs :]:
        copy.placeholder(node)
    for node in side.backward:
        copy.demand(node)
    grads = joint.groups[2]
    for node in grads:
        copy.demand(node)
    symbols = symbolic_inputs(copy.graph, [n.meta["val"] for n in joint.placeholders[: joint.inputs]]) if copy.symbolic else ()
    return copy.finish([copy.nodes[n] for n in grads]), symbols
