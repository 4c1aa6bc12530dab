"""Operations that may raise, by their values, what a clause of the frame takes, and branches of which one arm is rare: a graph has them, too, where a call
that meets such an error or arm can start again.

A graph runs after the frame was followed, so what it raises comes past the frame's clauses. Where nothing has changed by then that can't be changed back, the
call runs as Python from its start, which meets the error where the clause takes it. What follows a branch runs before its condition is asked: so it has to be
harmless, or to raise.

Where no clause is around and the graph writes nothing or little that was there before, a call in which it raises is made again as Python, too (`repeats_of`):
so the error comes from the statement that it comes from in eager, behind all that the frame does before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.fx

from dynacompile.capture.refused_types import is_of_torch
from dynacompile.capture.tensors.assumptions import Inside, name_of, passes, raising_behind
from dynacompile.capture.tensors.raising import DIVISIONS, FILLS, OF_MATRICES, RAISING
from dynacompile.capture.tensors.random_state import DRAWING, RandomState
from dynacompile.capture.tensors.settings import Settings
from dynacompile.ir.captured import GraphInput, Repeats, Restarts
from dynacompile.ir.looks import given_by, sample_of
from dynacompile.ir.rounds import is_again
from dynacompile.ops.collectives import is_collective
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.base import Value
    from dynacompile.capture.values.context import Context

MOST_BYTES = 1 << 16  # of an input that the graph writes, which is copied before it runs
MOST_WRITTEN = 32
CHANGES_MORE = frozenset(
    """
    resize_ resize_as_ set_ requires_grad_ detach_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ rename_ share_memory_ retain_grad
    manual_seed
    """.split()
)
"""Operations that change more of a tensor than its elements, or of the process."""


class CannotRestart(Exception):
    """The graph changes what can't be changed back: operations that may raise within a clause are to be left to Python."""


class MayRaise:
    """names: of what may have a call start again: operations of the graph that may raise what a clause takes, and branches."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}


def may_restart(cx: Context, name: str) -> bool:
    """Whether an operation that may raise what a clause takes comes into the graph."""
    if cx.manner.restarts:
        cx.state(MayRaise).names[name] = None
    return cx.manner.restarts


def may_require(cx: Context, name: str) -> bool:
    """Whether the frame may go on at one side of a branch, where the call starts again if the other one is taken."""
    return not cx.bodies and may_restart(cx, name)


def restarts_of(
    cx: Context, graph: torch.fx.GraphModule | None, inputs: Sequence[GraphInput], written: Sequence[GraphInput], outputs: Sequence[Value]
) -> Restarts | None:
    """How calls of a captured frame start again; None where they need not. inputs: of the graph. written: those that the frame has written. outputs: what
    the graph gives.

    Raises CannotRestart.
    """
    names = cx.state(MayRaise).names | dict.fromkeys(raising_behind(cx))
    if not names or graph is None:
        return None
    if changes_others(cx, graph, inputs):
        raise CannotRestart
    draws = any(name_of(node) in DRAWING for node in operations(graph))
    places = {item.name: n for n, item in enumerate(inputs)}
    if not may_be_copied(written) or draws and any(on_gpu(item.given) for item in inputs):
        raise CannotRestart
    required = tuple(next(n for n, given in enumerate(outputs) if given is one) for one in cx.effects.required)
    if required and not runs_through(cx, graph, any(on_gpu(item.given) for item in inputs)):
        raise CannotRestart
    return Restarts(tuple(places[item.name] for item in written), draws, tuple(names), required)


def repeats_of(cx: Context, graph: torch.fx.GraphModule | None, inputs: Sequence[GraphInput], written: Sequence[GraphInput]) -> Repeats | None:
    """How calls are made again in which the graph raises by the values of its operands; None where it can't raise so, or has changed by then what is not to
    be changed back. Little that is written is copied at each call, where an operation is known to raise."""
    if graph is None or not may_be_copied(written):
        return None
    inside, test = cx.state(Inside).nodes, is_known_to_raise if written else may_raise
    if not any(node not in inside and test(node) for node in operations(graph)) or changes_others(cx, graph, inputs):
        return None
    draws = any(name_of(node) in DRAWING for node in operations(graph))
    if (draws or written) and any(on_gpu(item.given) for item in inputs):
        return None
    places = {item.name: n for n, item in enumerate(inputs)}
    return Repeats(draws, tuple(places[item.name] for item in written))


def may_be_copied(written: Sequence[GraphInput]) -> bool:
    """Whether what a graph writes may be copied before it runs, and be put back."""
    if len(written) > MOST_WRITTEN:
        return False
    changed = [sample_of(item.given) for item in written]
    return all(map(is_small, changed)) and not any(map(has_history, changed))


def is_known_to_raise(node: torch.fx.Node) -> bool:
    """Whether an operation raises by what its operands hold: those of matrices on each device; on CPUs those of numbers and places, and ints divided by 0."""
    name = name_of(node).removeprefix("linalg_")
    if name in OF_MATRICES:
        return True
    if name in ("getitem", "setitem"):
        return any(isinstance(part, torch.fx.Node) for part in of_torch.tree_leaves(node.args[1])) and is_on_cpu(node)
    if name in DIVISIONS:
        return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_of(node)) and is_on_cpu(node)
    return name in RAISING and is_on_cpu(node)


def may_raise(node: torch.fx.Node) -> bool:
    """Whether an operation is known to raise, or, on CPUs, not known to be harmless."""
    fills = name_of(node) in FILLS and isinstance(node.args[-1], torch.fx.Node)
    return is_known_to_raise(node) or (fills or not passes(node)) and is_on_cpu(node)


def is_on_cpu(node: torch.fx.Node) -> bool:
    return not any(map(on_gpu, tensors_of(node)))


def tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """Fakes of what an operation is given and gives."""
    values = [sample_of(given_by(given)) for given in (node, *node.all_input_nodes)]
    return [part for part in of_torch.tree_leaves(values) if isinstance(part, torch.Tensor)]


def changes_others(cx: Context, graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether what comes before the end of the graph changes more than elements of tensors and the state of generators, or may be seen by others."""
    state = cx.state(Settings).used or cx.state(Settings).calls or cx.state(RandomState).first
    return bool(state) or any(item.wrapper is not None or item.is_pending for item in inputs) or any(map(changes_more, operations(graph)))


def changes_more(node: torch.fx.Node) -> bool:
    return not is_of_torch(node.target) or is_collective(node.target) or name_of(node) in CHANGES_MORE


def runs_through(cx: Context, graph: torch.fx.GraphModule, with_gpu: bool) -> bool:
    """Whether all that follows a required condition may run where it does not hold: it is harmless, or raises."""
    flags, inside, begun = {one.node for one in cx.effects.required}, cx.state(Inside).nodes, False  # type: ignore[attr-defined]
    for node in operations(graph):
        if begun and node not in inside and not passes(node) and (with_gpu or name_of(node).removeprefix("linalg_") not in RAISING):
            return False
        begun |= node in flags
    return True


def operations(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for node in graph.graph.nodes:
        if is_again(node):
            yield from node.target.nodes
        elif node.op.startswith("call"):
            yield node


def has_history(given: object) -> bool:
    """Whether autograd has a history of what the graph has written, which is not put back with the elements."""
    return isinstance(given, torch.Tensor) and given.requires_grad and not given.is_leaf


def is_small(given: object) -> bool:
    """Whether a tensor is copied in no time."""
    dense = isinstance(given, torch.Tensor) and given.layout == torch.strided and all(type(n) is int for n in given.shape)
    return dense and given.numel() * given.itemsize <= MOST_BYTES  # type: ignore[attr-defined]


def on_gpu(given: object) -> bool:
    given = sample_of(given)
    return isinstance(given, torch.Tensor) and given.device.type != "cpu"
