"""How a frame is interpreted in one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from dynacompile.ir.source import Source


@dataclass(frozen=True)
class Whole:
    """How a marked function is one operation. watched: objects that it has to leave as they were, and what they held `before`. settled: it has had a run
    to fill its caches."""

    watched: tuple[Any, ...]
    before: tuple[Any, ...]
    settled: bool = False


@dataclass(frozen=True)
class Manner:
    """How a frame is interpreted: optimistically at first; an assumption that turns out false is dropped before the next attempt.

    loops: ints that change from round to round of a loop are symbols.
    assumes: how many conditions on tensors the graph takes for true, which residual code asks after it; None: all that come.
    by_hand: torch's managers are entered in the graph also where no with statement does it.
    texts: those that show tensors are made after the graph.
    shares: inputs that are views of one memory.
    values: what depends on the values of tensors may be tried as symbols. if_whole: it is being tried, and any break ends that.
    numbers: ints that inputs hold are guarded where Python needs them, since a frame breaks otherwise.
    asks_inputs: branches on what inputs decide are asked as guards. asked_at: branches, by their code and instruction, of which not both arms are followed.
    hooks_after: calls, likewise, that register hooks of tensors which leave the graph: they are made after it. no_hooks_at: those that can't be, and calls that
    mark leaves which leave the graph: they break.
    writes_at: calls, likewise, that write tensors behind what a checkpoint runs again: they break.
    leaves_leave: the backend runs the graph as it is, so that leaves that it makes may be results.
    with_gradients: the graph begins with gradients, which the frame begins without and turns on.
    bodies_write: functions of transforms write their inputs.
    restarts: operations that may raise what a clause of the frame takes are in the graph; a call in which one does starts again as Python.
    by_rows: a frame of a function that has a row is what the row makes of its arguments.
    whole: functions marked by `torch.compiler.allow_in_graph` that are one operation, since following them ends the graph.
    works: collectives that are begun with `async_op=True` are operations of the graph.
    """

    loops: bool = False
    assumes: int | None = None
    by_hand: bool = True
    texts: bool = True
    shares: tuple[frozenset[Source], ...] = ()
    if_whole: bool = False
    values: bool = True
    numbers: bool = False
    works: bool = True
    by_rows: bool = True
    restarts: bool = True
    leaves_leave: bool = True
    with_gradients: bool = False
    bodies_write: bool = False
    whole: Mapping[FunctionType, Whole] = field(default_factory=dict)
    asks_inputs: bool = True
    asked_at: frozenset[tuple[CodeType, int]] = frozenset()
    hooks_after: frozenset[tuple[CodeType, int]] = frozenset()
    no_hooks_at: frozenset[tuple[CodeType, int]] = frozenset()
    writes_at: frozenset[tuple[CodeType, int]] = frozenset()
