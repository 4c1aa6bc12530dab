"""What eager's autograd keeps for its backward pass of what the caller can write: there a write after the call is an error of the backward pass, and
nowhere else."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.autograd.beyond import of_outputs
from dynacompile.autograd.functionalize import FunctionalInput, storage
from dynacompile.autograd.joint_graph import History, JointGraph
from dynacompile.autograd.outputs import Positions, shares_version
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import Fresh, Marks, Output, Part, Target, ViewOfInput, ViewOfOutput, Watch
from dynacompile.native import core as native_core
from dynacompile.ops.wrappers import leaves_of

Node = torch.autograd.graph.Node


def read_history(
    positions: Positions,
    inputs: Sequence[FunctionalInput],
    laid: Sequence[tuple[torch.Tensor, torch.Tensor]],
    points: Sequence[tuple[Any, int]],
    rows: Sequence[Output],
    frees: bool,
    viewed: Collection[int] = (),
) -> History:
    """Before the backward pass frees what is kept. Raises BeyondInputs where an output has gradients that come to no input. laid: as of Interpreted.
    frees: whether the graph has gradients taken. viewed: positions of views that are none to the caller.
    points: nodes and which of their results the backward is cut at."""
    outputs = [positions.tensors[p] for p in positions.differentiable]
    indices = sorted({id(entry): i for i, entry in reversed(list(enumerate(inputs))) if entry.differentiable}.values())
    order = history([t.grad_fn for t in outputs])
    leaves = {id(inputs[i].leaf): 1 << n for n, i in enumerate(indices)}
    reached = reached_from(order, [t.grad_fn for t in outputs])
    leads = leads_to(order, leaves, {point: 1 << (len(indices) + k) for k, point in enumerate(points)})
    ends = [*indices, *(-1 - k for k in range(len(points)))]
    every_leaf = (1 << len(indices)) - 1
    owners: dict[int, tuple[bool, int, torch.Tensor]] = {}
    for position, tensor in enumerate(positions.tensors):
        owners.setdefault(storage(tensor), (False, position, tensor))
    for i, entry in reversed(list(enumerate(inputs))):
        if entry.is_tensor:
            owners[storage(entry.value)] = (True, i, entry.value)
    moved = {storage(plain): storage(result) for plain, result in laid}
    found: dict[tuple[bool, int], set[tuple[int, int]]] = {}
    refusing: dict[tuple[bool, int], set[tuple[int, int]]] = {}
    themselves: set[tuple[bool, int]] = set()
    parts: set[tuple[int, int]] = set()
    held: dict[Node, Node] = dict(native_core().view_writes(tuple(outputs)))

    def owners_of(kept: torch.Tensor) -> Iterator[tuple[bool, int, torch.Tensor]]:
        """The input or output of which a kept tensor is, or its parts are, with the version of."""
        for part in leaves_of(kept):
            place = storage(part)
            owner = owners.get(moved.get(place, place))
            if owner is not None and (part is owner[2] or place in moved or part is not kept or shares_version(part, owner[2])):
                themselves.update([owner[:2]] if part is owner[2] else [])
                yield owner

    beyond: dict[int, tuple[str | None, set[tuple[bool, int]]]] = {}
    for position, tensor in zip(positions.differentiable, outputs, strict=True):
        alone = tensor.grad_fn is not None and not leads[tensor.grad_fn] & every_leaf
        own = history([tensor.grad_fn]) if alone or frees else []
        error = next(filter(None, map(refusal, own)), None)
        if error is not None or alone:
            kept_here = [part for node in own for part in kept_by(node, held) if part is not None]
            beyond[position] = error, {owner[:2] for part in kept_here for owner in owners_of(part)}
    if beyond:
        raise of_outputs(beyond, rows)
    for node in order:
        if not reached[node] or not leads[node] & every_leaf:
            continue
        for kept in kept_by(node, held):
            parts.add((reached[node], leads[node]))
            for owner in () if kept is None else owners_of(kept):
                found.setdefault(owner[:2], set()).add((reached[node], leads[node]))
                if kept is owner[2] and not isinstance(node, torch.autograd.function.BackwardCFunction):
                    refusing.setdefault(owner[:2], set()).add((reached[node], leads[node]))
    watches = tuple(Watch(*key, as_parts(nodes, ends), key in themselves, as_parts(refusing.get(key, set()), ends)) for key, nodes in sorted(found.items()))
    computed = frozenset(i for i in indices if inputs[i].value is not inputs[i].leaf)
    variables = {id(node.variable): reached[node] for node in order if getattr(node, "variable", None) is not None}  # type: ignore[attr-defined]
    views = {(1 << n, leads[t.grad_fn]) for n, (p, t) in enumerate(zip(positions.differentiable, outputs)) if p in viewed and t.grad_fn is not None}
    told = as_parts(parts, ends), {i: variables.get(id(inputs[i].leaf), 0) for i in indices}, computed, makers_of(outputs, leads, ends)
    return History(watches, *told, as_parts(views, ends))


def as_parts(found: set[tuple[int, int]], ends: Sequence[int]) -> tuple[Part, ...]:
    return tuple((bits(reached), tuple(ends[n] for n in bits(leads))) for reached, leads in sorted(found))


def makers_of(outputs: Sequence[torch.Tensor], leads: Mapping[Node, int], ends: Sequence[int]) -> tuple[Part, ...]:
    """Of each output, the node that made it. leads: the ends of each node, as the bits of a number."""
    made: dict[Node | None, int] = {}
    for i, tensor in enumerate(outputs):
        made[tensor.grad_fn] = made.get(tensor.grad_fn, 0) | 1 << i
    parts = {node: as_parts({(results, leads.get(node, 0) if node else 0)}, ends)[0] for node, results in made.items()}
    return tuple(parts[t.grad_fn] for t in outputs) if len(outputs) > 1 else ()


def refuse_used_leaves(rows: Sequence[Output], results: Sequence[object], positions: Positions) -> None:
    """A result that the frame told to require gradients, and that others are computed from, has its gradient from within the graph."""
    leaves: list[Any] = [t for row, t in zip(rows, results, strict=True) if isinstance(row, ViewOfInput) and row.lineage.leaf]
    if any(leaf._backward_hooks for leaf in leaves):
        reason = "a tensor that the graph tells to require gradients is returned with hooks"
        raise Unsupported("leaf-inside", reason, "make it outside of the compiled function")
    if leaves:
        order = history([positions.tensors[p].grad_fn for p in positions.differentiable])
        if any(getattr(node, "variable", None) is leaf for node in order for leaf in leaves):
            reason = "a tensor that the graph tells to require gradients is returned, and so is what was computed of it"
            raise Unsupported("leaf-inside", reason, "make it outside of the compiled function")


def marks(joint: JointGraph, saved_inputs: Sequence[int], saved_positions: Sequence[int], needs: tuple[tuple[Part, ...], ...]) -> Marks:
    """Of a backward that is one node; where it is cut, each stage has marks of its own, and the call the rest. needs: as in Marks."""
    whole = Marks(joint.inference, input_writes=joint.input_writes, output_writes=joint.output_writes)
    if joint.levels:
        return whole
    places = {index: n for n, index in enumerate(joint.grads)}

    def here(part: Part) -> Part:
        return part[0], tuple(places[i] for i in part[1] if i in places)

    parts = tuple(map(here, joint.history.parts))
    others, keeps, aliased = watches(joint, saved_inputs, saved_positions, here)
    makers = shorter(map(here, joint.history.makers), len(joint.grads))
    views = tuple(p for p in map(here, joint.history.views) if all(p))
    return replace(whole, watches=others, flags=joint.flags, parts=parts, needs=needs, keeps=keeps, aliased=aliased, makers=makers, views=views)


def shorter(makers: Iterable[Part], gradients: int) -> tuple[Part, ...]:
    """Without those that a node always stands for, as they lead to all of its gradients: nothing where these are all."""
    found = tuple(maker if len(maker[1]) < gradients else ((), ()) for maker in makers)
    return found if any(results for results, _ in found) else ()


def watches(
    joint: JointGraph, saved_inputs: Sequence[int], saved_positions: Sequence[int], here: Callable[[Part], Part]
) -> tuple[tuple[Watch, ...], tuple[tuple[Part, ...], ...], tuple[int, ...]]:
    """(Those of what the node does not save itself, or what may lose its history, the parts that keep each of its saved tensors, those of Marks.aliased).
    here: a part as this node has it."""

    def of_this(parts: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(p for p in map(here, parts) if all(p))

    kept = {(w.is_input, w.index): of_this(w.parts) for w in joint.history.watches}
    refusing = {(w.is_input, w.index): of_this(w.refusing) for w in joint.history.watches}
    own = [*((True, i) for i in saved_inputs), *((False, p) for p in saved_positions)]
    themselves = {w.index for w in joint.history.watches if w.is_input and w.as_itself}
    aliased = tuple(n for n, i in enumerate(saved_inputs) if i not in themselves)
    lasting = {key for key in own if not (key[0] and key[1] in joint.history.computed)}
    others = tuple(Watch(*key, parts, refusing=refusing[key]) for key, parts in kept.items() if parts and key not in lasting)
    return others, tuple(kept.get(key, ()) for key in own), aliased


@dataclass(frozen=True)
class StageGradients:
    """The gradients that the node of one stage gets and gives. tangents: by index in the joint graph; hidden: of what stages above give to it, the tangents
    that it comes from, as the bits of a number; edges: where its gradients go."""

    level: int
    tangents: tuple[int, ...]
    hidden: tuple[int, ...]
    edges: tuple[Target, ...]

    def arriving(self, tangents: Sequence[int]) -> tuple[int, ...]:
        """Those of the gradients that the node gets which come from these tangents, and from no others."""
        own = [i for i, t in enumerate(self.tangents) if t in tangents]
        every = sum(1 << t for t in tangents)
        return (*own, *(len(self.tangents) + j for j, mask in enumerate(self.hidden) if mask and not mask & ~every))

    def part(self, joint: JointGraph, part: Part) -> Part:
        """A part of eager's nodes as this stage has it: empty where it belongs to another one, the lowest that has a tangent which it is reached from."""
        reached, leads = part
        if min(joint.levels[t] for t in reached) != self.level:
            return (), ()
        ends = {joint.targets[-1 - i] if i < 0 else Target("input", i) for i in leads}
        return self.arriving(reached), tuple(e for e, target in enumerate(self.edges) if target in ends)


def led_to(joint: JointGraph, target: Target) -> frozenset[int]:
    """The inputs that a gradient comes to in the end. What one gives to another stage, that node's `further` tells."""
    position = None
    if target.kind == "hidden":
        return frozenset()
    if target.kind == "input":
        return frozenset((target.index,))
    written = {m.input: m.position for m in joint.mutations}
    if target.kind == "written":
        position = written[target.index]
    else:
        row = joint.outputs[target.index]
        if isinstance(row, ViewOfInput):
            if row.input not in written:
                return frozenset((row.input,))
            position = written[row.input]
        elif isinstance(row, (Fresh, ViewOfOutput)):
            position = row.position
    bit = 1 << joint.tangents.index(position) if position in joint.tangents else 0
    return frozenset(i for i, reached in joint.history.reached.items() if reached & bit)


def inputs_led_to(joint: JointGraph) -> dict[torch.fx.Node, int]:
    """For each node of the backward, the inputs whose gradients it has a part in, as the bits of a number."""
    leads: dict[torch.fx.Node, int] = dict.fromkeys(joint.graph.nodes, 0)
    for node, index in zip(joint.groups[2], joint.grads, strict=True):
        leads[node] |= 1 << index
    for node, target in zip(joint.captured, joint.targets, strict=True):
        leads[node] |= sum(1 << i for i in led_to(joint, target))
    for node in reversed(list(joint.graph.nodes)[:-1]):
        for operand in node.all_input_nodes:
            leads[operand] |= leads[node]
    return leads


def beyond_hidden(joint: JointGraph, needs: tuple[tuple[Part, ...], ...], edges: Sequence[Target], leads: Mapping[int, int]) -> tuple[tuple[Part, ...], ...]:
    """`needs` of a stage, with the edges that lead to the same inputs in the place of those that end at another stage. leads: the inputs of the latter, by
    index, as the bits of a number."""
    ends = {e: sum(1 << i for i in led_to(joint, target)) for e, target in enumerate(edges) if target.kind != "hidden"}

    def there(part: Part) -> Part:
        found = [e for e in part[1] if e in ends]
        found += [e for h in part[1] if h in leads for e, inputs in ends.items() if inputs and not inputs & ~leads[h]]
        return part[0], tuple(sorted(set(found)))

    return tuple(tuple(map(there, parts)) for parts in needs)


def stage_marks(
    joint: JointGraph,
    gradients: StageGradients,
    saved_inputs: Sequence[int],
    saved_positions: Sequence[int],
    flags: Sequence[int],
    needs: tuple[tuple[Part, ...], ...],
) -> Marks:
    """flags: those of the joint graph's that the stage's graph takes, by index. needs: as in Marks."""

    def here(part: Part) -> Part:
        return gradients.part(joint, part)

    others, keeps, aliased = watches(joint, saved_inputs, saved_positions, here)
    return Marks(
        watches=others,
        flags=tuple(gradients.arriving(joint.flags[f]) for f in flags),
        parts=tuple(p for p in map(here, joint.history.parts) if all(p)),
        needs=needs,
        keeps=keeps,
        aliased=aliased,
        makers=shorter((here(joint.history.makers[t]) for t in gradients.tangents if joint.history.makers), len(gradients.edges)),
        views=tuple(p for p in map(here, joint.history.views) if all(p)),
    )


def needs_of(graph: torch.fx.Graph, symbols: int, saved: int, gradients: int) -> tuple[tuple[Part, ...], ...]:
    """What of a backward graph reads each saved tensor, as Marks says. The graph takes so many symbols, saved tensors and gradients, in this order."""
    reached: dict[torch.fx.Node, int] = {}
    reads: dict[torch.fx.Node, int] = {}  # of what depends on no gradient: the saved tensors
    order = list(graph.nodes)
    for i, node in enumerate(n for n in order if n.op == "placeholder"):
        reads[node] = 1 << i - symbols if symbols <= i < symbols + saved else 0
        reached[node] = 1 << i - symbols - saved if symbols + saved <= i < symbols + saved + gradients else 0
    for node in order:
        if node.op != "placeholder":
            reached[node] = functools.reduce(operator.or_, (reached[a] for a in node.all_input_nodes), 0)
            reads[node] = functools.reduce(operator.or_, (reads[a] for a in node.all_input_nodes if not reached[a]), 0)
    leads = dict.fromkeys(order, 0)
    results = order[-1].args[0]
    for i, result in enumerate(results):  # type: ignore[arg-type,union-attr]
        leads[result] |= 1 << i  # type: ignore[index]
    for node in reversed(order[:-1]):
        for operand in node.all_input_nodes:
            leads[operand] |= leads[node]
    found: dict[tuple[int, int], int] = {}
    for node in order[:-1]:
        if reads[node] and (reached[node] or node in results):  # type: ignore[operator]
            key = reached[node] or (1 << gradients) - 1, leads[node]
            found[key] = found.get(key, 0) | reads[node]
    return tuple(tuple((bits(key[0]), bits(key[1])) for key, mask in found.items() if mask >> i & 1) for i in range(saved))


def history(roots: Sequence[Node | None]) -> list[Node]:
    """The nodes that gradients flow through, each before those that it gives gradients to."""
    order: list[Node] = []
    entered: set[Node] = set()
    pending: list[tuple[Node, bool]] = [(root, False) for root in roots if root is not None]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif node not in entered:
            entered.add(node)
            pending.append((node, True))
            pending.extend((following, False) for following in next_nodes(node) if following not in entered)
    return order[::-1]


def next_nodes(node: Node) -> Iterator[Node]:
    return (following for following, _ in node.next_functions if following is not None)


def reached_from(order: Sequence[Node], roots: Sequence[Node | None], cut: Collection[tuple[Any, int]] = ()) -> dict[Node, int]:
    """The roots that each node is reached from, by index, as the bits of a number. cut: results of nodes, to which the gradients of others do not pass."""
    reached = dict.fromkeys(order, 0)
    for i, root in enumerate(roots):
        if root is not None:
            reached[root] |= 1 << i
    for node in order:
        for following, result in node.next_functions:
            if following is not None and (following, result) not in cut:
                reached[following] |= reached[node]
    return reached


def leads_to(order: Sequence[Node], leaves: Mapping[int, int], points: Mapping[tuple[Any, int], int]) -> dict[Node, int]:
    """The leaves, and the points, whose gradients each node has a part in. Both with their bits, leaves by the id of the tensor."""
    leads: dict[Node, int] = {}
    for node in reversed(order):
        variable = getattr(node, "variable", None)
        own = 0 if variable is None else leaves.get(id(variable), 0)
        given = (leads[following] | points.get((following, result), 0) for following, result in node.next_functions if following is not None)
        leads[node] = functools.reduce(operator.or_, given, own)
    return leads


def kept_by(node: Node, held: Mapping[Node, Node]) -> Iterator[torch.Tensor | None]:
    """The tensors that a node has kept; None for one that somebody has written since: there the backward pass cannot be traced either.
    held: for a node of a write to a view, the operation's own, which a backward pass frees whatever it keeps: None stands for that."""
    if node in held:
        yield None
        yield from kept_by(held[node], {})
    for name in kept_names(type(node)):
        try:
            value: Any = getattr(node, name)
        except RuntimeError:
            yield None
            continue
        yield from (t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, torch.Tensor))


def refusal(node: Node) -> str | None:
    """What autograd says where the backward pass comes to a node, what it has kept of which was freed, or written since; None: it comes by."""
    for name in kept_names(type(node)):
        try:
            getattr(node, name)
        except RuntimeError as error:
            return str(error)
    return None


def kept_names(kind: type) -> list[str]:
    """The attributes of a kind of node that give kept tensors. Those that give numbers are none of them: reading one makes a symbol a constant."""
    own = [name for name in dir(kind) if name.startswith("_saved_") and hasattr(kind, f"_raw{name}")]
    return own + (["saved_tensors"] if hasattr(kind, "saved_tensors") else [])


def bits(number: int) -> tuple[int, ...]:
    return tuple(i for i in range(number.bit_length()) if number >> i & 1)
