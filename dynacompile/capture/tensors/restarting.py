"""Operations that may raise, by their values, what a clause of the frame takes: a graph has them, too, where a call in which one does can start again.

A graph runs after the frame was followed, so what it raises comes past the frame's clauses. Where nothing has changed by then that can't be changed back, the
call runs as Python from its start, which meets the error where the clause takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.fx

from dynacompile.capture.refused_types import is_of_torch
from dynacompile.capture.tensors.assumptions import name_of
from dynacompile.capture.tensors.random_state import DRAWING, RandomState
from dynacompile.capture.tensors.settings import Settings
from dynacompile.ir.captured import GraphInput, Restarts
from dynacompile.ir.looks import made
from dynacompile.ir.rounds import is_again
from dynacompile.ops.collectives import is_collective

if TYPE_CHECKING:
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
    """names: of the operations of the graph that may raise what a clause takes."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}


def may_restart(cx: Context, name: str) -> bool:
    """Whether an operation that may raise what a clause takes comes into the graph."""
    if cx.manner.restarts:
        cx.state(MayRaise).names[name] = None
    return cx.manner.restarts


def restarts_of(cx: Context, graph: torch.fx.GraphModule | None, inputs: Sequence[GraphInput], written: Sequence[GraphInput]) -> Restarts | None:
    """How calls of a captured frame start again; None where they need not. inputs: of the graph. written: those that the frame has written.

    Raises CannotRestart.
    """
    names = cx.state(MayRaise).names
    if not names or graph is None:
        return None
    if (
        cx.state(Settings).used
        or cx.state(Settings).calls
        or cx.state(RandomState).first
        or any(item.wrapper is not None or item.is_pending for item in inputs)
    ):
        raise CannotRestart
    draws = False
    for node in operations(graph):
        if not is_of_torch(node.target) or is_collective(node.target) or name_of(node) in CHANGES_MORE:
            raise CannotRestart
        draws |= name_of(node) in DRAWING
    places = {item.name: n for n, item in enumerate(inputs)}
    changed = [made(item.given) for item in written]
    if not all(map(is_small, changed)) or len(changed) > MOST_WRITTEN or draws and any(on_gpu(item.given) for item in inputs):
        raise CannotRestart
    return Restarts(tuple(places[item.name] for item in written), draws, tuple(names))


def operations(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for node in graph.graph.nodes:
        if is_again(node):
            yield from node.target.nodes
        elif node.op.startswith("call"):
            yield node


def is_small(given: object) -> bool:
    """Whether a tensor is copied in no time."""
    dense = isinstance(given, torch.Tensor) and given.layout == torch.strided and all(type(n) is int for n in given.shape)
    return dense and given.numel() * given.itemsize <= MOST_BYTES  # type: ignore[attr-defined]


def on_gpu(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.device.type != "cpu"
