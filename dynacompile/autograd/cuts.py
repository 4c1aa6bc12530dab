"""Where an output is computed from another one: there the backward is cut, so that autograd itself passes the gradient between them.

To the caller such outputs are tensors of one autograd graph: a hook of the first, its `retain_grad`, or a gradient that is asked for with respect to it,
sees what the second one's backward brings. So each level of outputs has an autograd node of its own, whose backward ends at the outputs below it. Outputs
that have nothing in common may have levels of their own, too (`levels_apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.functionalize import MutatedInput, storage
from dynacompile.autograd.outputs import Positions
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import Fresh, Made, Output, Settled, Target, ViewOfInput, ViewOfOutput
from dynacompile.ops.backward_steps import TensorHook

Key = tuple[Any, int]  # an autograd node, and which of its results
INPUT = -1  # the level of views of inputs that no graph writes


@dataclass(frozen=True)
class Visible:
    """A tensor that the caller gets to see. position: of the forward output that it is, or that it is a view of; None for a view of an input."""

    tensor: torch.Tensor
    target: Target
    position: int | None


@dataclass
class Cuts:
    """points: what outputs are computed from, that are outputs. levels: of each forward output that is differentiable: one more than of those below.
    captured: by point, the gradient that comes from above."""

    points: tuple[Visible, ...] = ()
    levels: Mapping[int, int] = field(default_factory=dict)
    captured: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def has_views_of_inputs(self) -> bool:
        """Then a gradient of an input that no tangent reaches, in eager neither, is zeros that stand for a path outside of the graph."""
        return any(point.position is None for point in self.points)

    def heads(self, positions: Positions) -> dict[int, int]:
        """Forward outputs that are points themselves, and not views of one: position -> point."""
        return {p.position: i for i, p in enumerate(self.points) if p.position is not None and p.tensor is positions.tensors[p.position]}

    def install(self, positions: Positions, tangents: Mapping[int, torch.Tensor]) -> None:
        """Has autograd note what arrives at each point, and go on with the point's own tangent. A view's gradient goes on outside of the graph."""
        heads = {i: p for p, i in self.heads(positions).items()}
        for i, point in enumerate(self.points):
            hook = self.hook(i, tangents[heads[i]] if i in heads else None)
            point.tensor.register_hook(hook)
            run_first(point.tensor._backward_hooks)

    def hook(self, index: int, tangent: torch.Tensor | None) -> Callable[[torch.Tensor | None], torch.Tensor | None]:
        def capture(grad: torch.Tensor | None) -> torch.Tensor | None:
            if grad is None:
                return None
            self.captured[index] = grad
            return torch.zeros_like(grad) if tangent is None else tangent

        return capture


def run_first(hooks: Any) -> None:
    """Puts the last hook of a tensor before the others, which then get the whole gradient, and not only what comes from above."""
    *others, last = hooks.items()
    hooks.clear()  # autograd goes by the order in which hooks were put in
    hooks.update([last, *others])


def find_cuts(outputs: Sequence[object], rows: Sequence[Output], mutated: Sequence[MutatedInput], positions: Positions) -> Cuts:
    """outputs, rows: of the caller, and what they are."""
    seen = visible(outputs, rows, mutated, positions)
    differentiable = positions.differentiable
    if len({v.position for v in seen}) < 2 or not differentiable:
        return Cuts()
    places = {key(v.tensor): i for i, v in enumerate(seen)}
    reach = Reach(places)
    direct = {p: [i for i in reach.of(positions.tensors[p].grad_fn) if seen[i].position != p] for p in differentiable}
    if not any(direct.values()):
        return Cuts()
    levels: dict[int, int] = {}

    def level(position: int) -> int:
        if position not in levels:
            below = (INPUT if seen[i].position is None else level(seen[i].position) for i in direct.get(position, ()))  # type: ignore[arg-type]
            levels[position] = 1 + max(below, default=INPUT)
        return levels[position]

    for position in differentiable:
        level(position)
    points = dict.fromkeys(i for found in direct.values() for i in found)
    return Cuts(tuple(seen[i] for i in sorted(points)), levels)


def levels_apart(ways: Sequence[tuple[int, ...]], ends: Sequence[bool], tangents: int) -> tuple[int, ...]:
    """The level of each tangent where nothing is to be cut. Empty: there is but one.

    A backward pass runs all that led to the inputs of a node, also without a gradient, and that may raise, as where the program has written what it keeps.
    Eager's pass does not come there from results that have no input in common with others. So these have a level of their own, unless their inputs are leaves.

    ways: of each gradient, the tangents that it comes from; ends: whether it is that of a leaf."""
    groups: list[tuple[set[int], bool]] = []
    for own, is_end in zip(map(set, ways), ends, strict=True):
        same = [group for group in groups if group[0] & own]
        groups = [group for group in groups if not group[0] & own]
        groups.append((own.union(*(found for found, _ in same)), is_end and all(only_leaves for _, only_leaves in same)))
    separate = [group for group, only_leaves in groups if not only_leaves]
    levels = [next((i for i, group in enumerate(separate, 1) if t in group), 0) for t in range(tangents)]
    used = sorted(set(levels))
    return tuple(map(used.index, levels)) if len(used) > 1 else ()


def visible(outputs: Sequence[object], rows: Sequence[Output], mutated: Sequence[MutatedInput], positions: Positions) -> list[Visible]:
    """What has a history of its own, each once."""
    found: dict[Key, Visible] = {}
    written = {m.index: m for m in mutated if not m.in_graph}
    for m in written.values():
        if m.value.requires_grad and m.value.grad_fn is not None:
            found.setdefault(key(m.value), Visible(m.value, Target("written", m.index), positions.of(m.value)))
    for j, (output, row) in enumerate(zip(outputs, rows, strict=True)):
        if not isinstance(output, torch.Tensor) or not isinstance(row, (Fresh, ViewOfInput, ViewOfOutput)):
            continue
        if not has_history(output):
            continue
        if isinstance(row, ViewOfInput):
            position = positions.of(written[row.input].value) if row.input in written else None
        else:
            position = row.position
        found.setdefault(key(output), Visible(output, Target("output", j), position))
    return list(found.values())


def settled_points(
    cuts: Cuts, nodes: Sequence[torch.fx.Node], values: Mapping[torch.fx.Node, Any], writes: Mapping[int, torch.fx.Node]
) -> dict[int, Settled] | None:
    """The points that the graph writes in place, by user output. values: of nodes. writes: by memory, the last node that writes it.

    None where the graph reads the memory of one by another tensor after the last write: in eager that tensor leads to the point, by a node that the write
    makes anew, and here nothing shows where. None also where the memory is an input's, or the point has hooks.
    """
    places = {node: i for i, node in enumerate(nodes)}
    found: dict[int, Settled] = {}
    for point in cuts.points:
        memory = storage(point.tensor)
        if memory not in writes or point.target.kind != "output":
            continue
        last = places[writes[memory]]
        shared = [n for n in nodes[: last + 1] if isinstance(values.get(n), torch.Tensor) and storage(values[n]) == memory]
        same = [n for n in nodes if values.get(n) is point.tensor]
        others = [n for n in shared if n not in same]
        if any(places[user] > last and user.op != "output" for n in others for user in n.users):
            return None
        if any(n.op == "placeholder" for n in shared) or any(isinstance(user.target, TensorHook) for n in same for user in n.users):
            return None
        found[point.target.index] = Settled(tuple(places[n] for n in same), last)
    return found


def refuse_hooked_views(outputs: Sequence[object], rows: Sequence[Output], bases: Sequence[torch.Tensor | None], hooked: Sequence[torch.Tensor]) -> None:
    """Views among the outputs are made again from what they are views of, past the hooks of those that were made between. bases: what they are made from."""
    keys = {key(t) for t in hooked}
    for output, row, base in zip(outputs, rows, bases, strict=True):
        if not keys or base is None or not isinstance(output, torch.Tensor) or row.lineage.made is not Made.GRAD or not output.requires_grad:  # type: ignore[union-attr]
            continue
        pending, end = [key(output)], key(base)
        while pending:
            at = pending.pop()
            if at == end or at[0] is None:
                continue
            if at in keys:
                raise Unsupported("hooks", "an output is a view with hooks of its own, or a view of one", "clone it before its hook is registered")
            pending += at[0].next_functions


def has_history(output: torch.Tensor) -> bool:
    try:
        return output.requires_grad and not output.is_leaf
    except RuntimeError as error:  # in eager, whoever uses it hears that its memory was written since; ours would be made after that write
        reason = "an output is a view that autograd tells nothing of, as its memory was written after it was made"
        raise Unsupported("aliased-outputs", reason, "return it before, or clone it") from error


def key(tensor: torch.Tensor) -> Key:
    return tensor.grad_fn, tensor.output_nr


class Reach:
    """Which visible tensors an autograd node's gradient comes to first."""

    def __init__(self, places: Mapping[Key, int]):
        self.places = places
        self._found: dict[Any, frozenset[int]] = {}

    def of(self, start: Any) -> frozenset[int]:
        pending = [start]
        while pending:
            node = pending[-1]
            if node in self._found:
                pending.pop()
                continue
            edges = [(f, n) for f, n in node.next_functions if f is not None]
            further = [f for f, n in edges if (f, n) not in self.places]
            missing = [f for f in further if f not in self._found]
            if missing:
                pending += missing
                continue
            here = frozenset(self.places[e] for e in edges if e in self.places)
            self._found[node] = here.union(*(self._found[f] for f in further))
            pending.pop()
        return self._found[start]
