"""Traces the joint graph J(primals, tangents) = (outputs, gradients) of a captured graph, in one run on fake tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.fx

from dynacompile.autograd.arrivals import Together, cut_absent
from dynacompile.autograd.cuts import Cuts, find_cuts, key, levels_apart, refuse_hooked_views, settled_points
from dynacompile.autograd.facts import view_base
from dynacompile.autograd.functionalize import (
    FunctionalInput,
    ambient_state,
    different_strides,
    functionalization,
    inner,
    interpret,
    mutated_inputs,
    storage,
    wrap_inputs,
)
from dynacompile.autograd.inside import WrapperRecorder
from dynacompile.autograd.joint_graph import History, JointGraph
from dynacompile.autograd.kept import bits, history, reached_from, read_history, refuse_used_leaves
from dynacompile.autograd.masks import Masks
from dynacompile.autograd.outputs import Positions, classify, known_as, of_inference
from dynacompile.autograd.record import Recorder
from dynacompile.errors import Unsupported
from dynacompile.ir.fakes import fake_mode
from dynacompile.ir.graphs import Fresh, Made, Mutation, Output, ViewOfInput, ViewOfOutput, output_args
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import symbolic_rules
from dynacompile.ir.zero_one import answered_questions
from dynacompile.native import core as native_core
from dynacompile.ops.attention import KeptAsWritten
from dynacompile.ops.backward_steps import Tracing, note_places
from dynacompile.ops.wrappers import Enter, has_wrappers, is_wrapper, let_go_of_masks
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode


def trace_joint(
    graph: torch.fx.GraphModule,
    fakes: Sequence[object],
    table: Mapping[of_torch.OpOverload, Callable],
    careful: bool = False,
    cutting: bool = True,
    keeps_views: bool = False,
) -> JointGraph:
    """graph: torch-level, static shapes; fakes: one per placeholder. careful: hooks of tensors ask whether a gradient has come; else the graph is traced
    again where one may not. cutting: outputs that others are computed from get their gradients.
    keeps_views: outputs that are views in eager are views to autograd, also without their wholes.
    Raises Unsupported where autograd or functionalization can't follow, and KeptAsWritten where torch's operator can't compute some attention."""
    hooked: list[torch.fx.Node] = []
    mode = fake_mode_of(graph, fakes)
    recorder = (WrapperRecorder if has_wrappers(graph) else Recorder)(mode, table)
    tracing = Tracing(recorder.keep, native_core().backward_pass, lambda grad: hooked.append(recorder.node_of(inner(grad))), careful)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    with ambient_state(), masks_let_go(recorder), symbolic_rules(mode), functionalization(), recorder.entered():
        inputs = wrap_inputs(recorder, names, fakes)
        before = [entry.value._version if entry.is_tensor else 0 for entry in inputs]
        together, masks = Together(), Masks()
        with answered_questions(mode.shape_env):
            run = interpret(graph, inputs_values(inputs), recorder, tracing, together.note, masks)
        if masks.refused:
            raise KeptAsWritten(masks.refused)
        tell_writes(run.laid)
        positions = Positions()
        seen = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in output_args(graph)]
        stays = [keeps_views and not is_changed(node) for node in output_args(graph)]
        rows = classify(run.outputs, seen, inputs, run.memories, positions, stays)
        refuse_used_leaves(rows, run.outputs, positions)
        inference = tuple(i for i, t in enumerate(positions.tensors) if storage(t) in run.inference.storages)
        rows = tuple(of_inference(rows, run.outputs, run.inference, positions))
        output_writes = tuple((i, t._version) for i, t in enumerate(positions.tensors) if t._version)
        mutated = mutated_inputs(inputs, names)
        input_writes = tuple(writes_of(inputs, before, {m.index for m in mutated}))
        mutations = tuple(Mutation(m.index, positions.of(m.value)) for m in mutated if not m.in_graph)
        refuse_hooked_views(run.outputs, rows, [base_of_row(row, inputs, positions) for row in rows], run.hooked)
        written = [m for m in mutated if m.in_graph]
        forward = owned(recorder, [recorder.node_of(inner(t)) for t in positions.tensors])
        restride(recorder, forward, positions)
        written_nodes = owned(recorder, [recorder.node_of(inner(m.value)) for m in written])
        cuts = find_cuts(run.outputs, rows, mutated, positions) if cutting else Cuts()
        eager = History()
        if positions.differentiable:
            viewed = views_of_the_unseen(output_args(graph), run.outputs, rows)
            frees = any(node.target is torch.autograd.grad for node in graph.graph.nodes)
            eager = read_history(positions, inputs, run.laid, [key(point.tensor) for point in cuts.points], rows, frees, viewed)
        tangents, grads = trace_backward(recorder, positions, forward, inputs, cuts, entrances(graph))
        captured = [captured_node(recorder, forward, positions, cuts, i) for i in sorted(cuts.captured)]
        constants = reach_of_constants(recorder, positions, cuts) if len(tangents) > 1 else {}
    if len(captured) != len(cuts.points):  # some formula has no gradient there
        return trace_joint(graph, fakes, table, careful, False, keeps_views)
    reached = tangents_of(recorder.graph, len(fakes))
    grads = [(i, node) for i, node in grads if reached[node] or eager.reached[i] or not cuts.has_views_of_inputs]
    if tangents and not grads and not cuts.has_views_of_inputs:
        raise no_gradient()
    recorder.graph.output((tuple(forward), tuple(written_nodes), tuple(node for _, node in grads), tuple(captured)))
    if not careful and any(reached[node] != (1 << len(tangents)) - 1 for node in hooked):
        return trace_joint(graph, fakes, table, True, cutting, keeps_views)
    note_places(tuple(recorder.graph.nodes), reached.__getitem__, [node for _, node in grads])
    flags: tuple[tuple[int, ...], ...] = ()
    arriving = tangents_of(recorder.graph, len(fakes), constants)
    sources = tuple(bits(arriving[g] or eager.reached[i]) for i, g in grads)
    target_sources = tuple(bits(arriving[g]) for g in captured)
    leaves = frozenset(i for i, entry in enumerate(inputs) if entry.is_tensor and entry.differentiable and entry.value is entry.leaf)
    ways = [bits(arriving[g] | eager.reached[i]) for i, g in grads]
    levels = tuple(cuts.levels.get(p, 0) for p in tangents) if cuts.points else levels_apart(ways, [i in leaves for i, _ in grads], len(tangents))
    if len(tangents) > 1:
        together_reached = together.reach(reached)
        more = {node: constants.get(node, 0) | together_reached.get(node, 0) for node in (*constants, *together_reached)}
        reached = tangents_of(recorder.graph, len(fakes), more)
        placeholders = [n for n in recorder.graph.nodes if n.op == "placeholder"]
        flags = cut_absent(recorder.graph, reached, placeholders[len(fakes) :], levels, recorder.fake)
    return JointGraph(
        recorder.graph,
        recorder.constants,
        len(fakes),
        rows,
        mutations,
        tuple(m.index for m in written),
        tuple(tangents),
        tuple(i for i, _ in grads),
        sources,
        inference,
        eager,
        flags,
        input_writes,
        output_writes,
        leaves,
        tuple(p.target for p in cuts.points),
        target_sources,
        levels,
        bool(recorder.writes),
        settled_points(cuts, list(graph.graph.nodes), run.values, recorder.writes),
        tuple((str(node.meta.get("site") or ""), found) for node, found in masks.read.items()),
    )


def writes_of(inputs: Sequence[FunctionalInput], before: Sequence[int], mutated: Collection[int]) -> Iterator[tuple[int, int]]:
    """(index, how often the graph has written it, as versions count) of the inputs that it has written. A change of the metadata of what shares an input's
    memory counts as a write; that of running statistics by a norm does not."""
    seen = set()
    for i, entry in enumerate(inputs):
        if entry.is_tensor and id(entry) not in seen and (entry.value._version != before[i] or i in mutated):
            yield i, entry.value._version - before[i]
        seen.add(id(entry))


def tell_writes(laid: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Of results that were laid out as eager's, and written since: in eager they are one tensor with what the operation's node may have kept."""
    for plain, result in laid:
        if result._version and plain.requires_grad:
            torch.autograd.graph.increment_version(plain)


def is_changed(output: object) -> bool:
    """Whether an output stands for a tensor that was no view, and whose metadata was changed in place. (Of a view that gets gradients, capture has none
    changed; what was no view, and gets none, it detaches.)"""
    if not isinstance(output, torch.fx.Node) or not isinstance(value := output.meta.get("val"), torch.Tensor) or not value.requires_grad:
        return False
    return any(user.target is torch.autograd.graph.increment_version for user in output.users)


def views_of_the_unseen(nodes: Sequence[object], outputs: Sequence[object], rows: Sequence[Output]) -> set[int]:
    """The positions of outputs that are views of what is no output, and that the caller gets as no views."""
    found = zip(nodes, outputs, rows, strict=True)
    return {row.position for node, output, row in found if isinstance(row, Fresh) and is_view(output) and not is_changed(node)}


def is_view(output: object) -> bool:
    return isinstance(output, torch.Tensor) and output.requires_grad and known_as(output) is Made.GRAD


def base_of_row(row: Output, inputs: Sequence[FunctionalInput], positions: Positions) -> torch.Tensor | None:
    """The tensor that an output is made from as a view."""
    match row:
        case ViewOfInput():
            return inputs[row.input].value
        case ViewOfOutput():
            return positions.tensors[row.position]
        case _:
            return None


def captured_node(recorder: Recorder, forward: Sequence[torch.fx.Node], positions: Positions, cuts: Cuts, index: int) -> torch.fx.Node:
    """The gradient at a point, with the strides of the output there, so that its tangent has to be fitted no more."""
    node, point = recorder.node_of(inner(cuts.captured[index])), cuts.points[index]
    if point.position is not None and point.tensor is positions.tensors[point.position]:
        value = forward[point.position].meta["val"]
        if different_strides(value, node.meta["val"]):
            return recorder.copy_of(node, value.stride())
    return node


def tangents_of(graph: torch.fx.Graph, inputs: int, more: Mapping[torch.fx.Node, int] | None = None) -> dict[torch.fx.Node, int]:
    """The tangents that each node is computed from, by index, as the bits of a number. more: those that some nodes count in any case."""
    further = more or {}
    reached: dict[torch.fx.Node, int] = {}
    placeholders = 0
    for node in graph.nodes:
        if node.op == "placeholder":
            reached[node] = 1 << (placeholders - inputs) if placeholders >= inputs else 0
            placeholders += 1
        else:
            reached[node] = functools.reduce(operator.or_, (reached[a] for a in node.all_input_nodes), further.get(node, 0))
    return reached


def reach_of_constants(recorder: Recorder, positions: Positions, cuts: Cuts) -> dict[torch.fx.Node, int]:
    """Gradients need not be computed from tangents, as the zeros that `x ** 0` has, and come where the autograd node runs that gives them. For each node that
    one has made, the tangents that it is reached from, as the bits of a number."""
    roots = [positions.tensors[p].grad_fn for p in positions.differentiable]
    reached = reached_from(history(roots), roots, {key(point.tensor) for point in cuts.points})
    return {node: reached[made_by] for node, made_by in recorder.made_by.items() if reached.get(made_by)}


def owned(recorder: Recorder, nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes, each with memory of its own: a copy where one is an input, a constant, or shares with an earlier one."""
    taken: set[torch.fx.Node] = set()
    result = []
    for node in nodes:
        base = view_base(node)
        if base.op in ("placeholder", "get_attr") or base in taken:
            node = recorder.copy_of(node)
        taken.add(view_base(node))
        result.append(node)
    return result


def restride(recorder: Recorder, forward: list[torch.fx.Node], positions: Positions) -> None:
    """Copies what has not the strides that eager's result has, as where a write through a view has made the value anew."""
    for position, seen in enumerate(positions.seen):
        if seen is not None and different_strides(seen, forward[position].meta["val"]):
            forward[position] = recorder.copy_of(forward[position], seen.stride())


def inputs_values(inputs: Sequence[FunctionalInput]) -> list[object]:
    return [entry.value for entry in inputs]


def fake_mode_of(graph: torch.fx.GraphModule, fakes: Sequence[object]) -> FakeTensorMode:
    for fake in (*fakes, *(n.meta.get("val") for n in graph.graph.nodes)):
        if isinstance(fake, FakeTensor):
            return fake.fake_mode
    return fake_mode()


def trace_backward(
    recorder: Recorder,
    positions: Positions,
    forward: Sequence[torch.fx.Node],
    inputs: Sequence[FunctionalInput],
    cuts: Cuts,
    wrapped: Mapping[int, tuple[Enter, int]],
) -> tuple[list[int], list[tuple[int, torch.fx.Node]]]:
    """Positions with a tangent, which has the strides of its node in `forward`, and (input, node of its gradient) for each input that gets one.
    wrapped: inputs that lie inside of wrappers, and which part of what step they are."""
    differentiable = positions.differentiable
    if not differentiable:
        return [], []
    wanted = {id(entry): i for i, entry in reversed(list(enumerate(inputs))) if entry.differentiable}
    indices = sorted(wanted.values())
    recorder.begin_backward()
    tangents = []
    with torch.no_grad():
        for position in differentiable:
            value = forward[position].meta["val"]
            fake = recorder.fake(torch.ops.aten.empty_strided.default, list(value.shape), list(value.stride()), dtype=value.dtype, device=value.device)
            recorder.placeholder(f"tangent_{position}", fake)
            tangents.append(of_torch.to_functional_tensor(fake))
    results: tuple[torch.Tensor | None, ...] = ()
    if indices:
        with of_torch.DisableAutocast(), answered_questions(recorder.fake_mode.shape_env):
            given = dict(zip(differentiable, tangents, strict=True))
            cuts.install(positions, given)
            seeds = [p for p in differentiable if p not in cuts.heads(positions)]
            results = gradients([positions.tensors[p] for p in seeds], [inputs[i].leaf for i in indices], [given[p] for p in seeds])
    results = tuple(caught(i, grad, wrapped) for i, grad in zip(indices, results, strict=True)) if wrapped and indices else results
    for step, _ in wrapped.values():
        step.catching = None
    for grad in results:
        if grad is not None and is_wrapper(grad):
            kind = type(grad).__qualname__
            hint = "wrap the tensor, or pass it in without gradients"
            raise Unsupported("no-gradient", f"the gradient of a plain tensor is a {kind}, which wraps others", hint)
    found = [(i, recorder.node_of(inner(g))) for i, g in zip(indices, results, strict=True) if g is not None]
    if not found and not cuts.points:
        raise no_gradient()
    return differentiable, found


@contextmanager
def masks_let_go(recorder: Recorder) -> Iterator[None]:
    try:
        yield
    finally:
        let_go_of_masks(recorder.wrappers)


def entrances(graph: torch.fx.GraphModule) -> dict[int, tuple[Enter, int]]:
    """The inputs that lie inside of wrappers, by index: what makes the wrapper, and which of its parts they are."""
    places = {node: i for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    steps = [n for n in graph.graph.nodes if isinstance(n.target, Enter)]
    return {places[part]: (n.target, place) for n in steps for place, part in enumerate(n.args)}  # type: ignore[index,misc]


def caught(index: int, grad: torch.Tensor | None, wrapped: Mapping[int, tuple[Enter, int]]) -> torch.Tensor | None:
    """The gradient of an input: of one inside of a wrapper, what the wrapper's own gradient has there, whose sizes may be others."""
    if grad is None or index not in wrapped:
        return grad
    step, place = wrapped[index]
    return (step.catching or {}).get(place)


def no_gradient() -> Unsupported:
    reason = "outputs require gradients, and no input gets one: what does was made inside the graph"
    return Unsupported("leaf-inside", reason, "make it outside of the compiled function")


def gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    run = functools.partial(torch.autograd.grad, outputs, leaves, tangents, allow_unused=True, retain_graph=True)  # it may be called again
    try:
        return run()
    except RuntimeError as error:  # autograd has no narrower class for an op without a formula, or a saved value that was written to
        check_recurs(error, run)
        reason = f"autograd can't differentiate the graph: {str(error).splitlines()[0]}"
        raise Unsupported("no-gradient", reason, "call it under torch.no_grad(), or give the op a backward formula") from error
