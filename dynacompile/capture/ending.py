"""How a captured frame ends: with its return, or at a break that Python runs and a resume function follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType

import torch

from dynacompile.capture.breaks import Raised
from dynacompile.capture.frames.interpreter import FrameContext, SymbolicFrame
from dynacompile.capture.handling import make_raised, raise_again, raise_out
from dynacompile.capture.residual import Builder, is_loadable, outputs_in, parameter_count, reached
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.contexts import ExitValue, entered_by_hand
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.mapping import DictLike
from dynacompile.capture.values.positions import StateValue
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.ir.source import Applied, Local, Source


@dataclass
class Ending:
    """outputs: tensors the graph returns. emit: writes the residual code; takes the roots of the graph's inputs, None where there is no graph."""

    outputs: list[TensorValue]
    keeps_cells: bool
    emit: Callable[[Builder, Sequence[Source] | None], None]
    resumes: list[CodeType] = field(default_factory=list)


def uncounted(cx: FrameContext) -> list[GraphTensor]:
    """Inputs whose version is to stay as it is. Inference tensors have none: in inference mode a guard tells them from others."""
    found = cx.recorder.uncounted()
    for value in found if cx.recorder.begins_in_inference else ():
        cx.guard("EQUALS", Applied(value.source, torch.Tensor.is_inference, ".is_inference()"), value.real.is_inference())  # type: ignore[arg-type, union-attr]
    return [value for value in found if not value.real.is_inference()]  # type: ignore[union-attr]


def start(cx: FrameContext, out: Builder, roots: Sequence[Source] | None, outputs: list[TensorValue], values: list[Value], keep: bool) -> None:
    """Calls the graph, builds all values that later effects could change, and replays the effects. keep: build them in any case."""
    out.outputs = {value: i for i, value in enumerate(outputs)}
    cx.effects.settings.replay(out, before=True)
    cx.effects.random.replay(out, before=True)
    if roots is not None:
        begin = len(out.instrs)
        out.call_graph(roots, uncounted(cx))
        if cx.effects.settings.calls and cx.effects.settings.is_seen:
            cx.effects.settings.restore(out, out.instrs[begin])
    stored = cx.effects.values()
    out.count([*values, *stored])
    for value in reached([*values, *stored]):
        if isinstance(value, ExceptionValue) and value.raised and value.can_be_made() and value.source is None and not out.has(value):
            make_raised(out, value)
    kept = dict.fromkeys((*stored, *values)) if stored or keep else {}
    late = after_effects(list(kept))
    for part in reached_in(list(kept), late):
        if part not in late and not isinstance(part, (ExitValue, StateValue)):
            out.prepare(part)
    cx.effects.replay(out)
    for value in kept:
        if value in late:
            out.prepare(value)


def after_effects(values: list[Value]) -> set[Value]:
    """Iterators, which go by the sizes that the effects leave, and the containers that hold them."""
    everything = reached(values)
    late: set[Value] = {value for value in everything if isinstance(value, IteratorValue) and not is_loadable(value)}
    holders = [value for value in everything if isinstance(value, (SequenceValue, DictLike)) and not is_loadable(value)] if late else []
    while found := [value for value in holders if value not in late and not late.isdisjoint(value.children())]:
        late.update(found)
    return late


def reached_in(values: list[Value], late: set[Value]) -> list[Value]:
    """The values, and the parts of those that are made late, in their order."""
    seen: dict[Value, None] = {}
    work = values[::-1]
    while work:
        value = work.pop()
        if value not in seen:
            seen[value] = None
            work.extend(reversed(value.children()) if value in late else ())
    return list(seen)


def decide_cells(cx: FrameContext, values: Sequence[Value], forced: bool) -> bool:
    """Whether the residual code needs the frame's own cells, since something that outlives the frame holds one."""
    cx.effects.own_cells = forced or any(isinstance(v, CellValue) and v.slot is not None for v in reached([*values, *cx.effects.values()]))
    return cx.effects.own_cells


def spent(frame: SymbolicFrame, cells: Sequence[str]) -> list[str]:
    """Parameters whose place in the frame has another value by now, or none."""
    names = frame.decoded.slots[: parameter_count(frame.code)]
    return [n for s, n in enumerate(names) if n not in cells and getattr(frame.slots[s], "source", None) != Local(n, s)]


def refuse_open(cx: FrameContext, blocks: Sequence[ExitValue] = ()) -> None:
    """Of torch's managers, only those of with blocks may be entered where the graph ends. Their grad mode is followed for itself."""
    open_ones = sum(block.context.opens() for block in blocks)
    if len(cx.modes.autocasts) != open_ones:
        raise entered_by_hand("a manager")


def finish_return(cx: FrameContext, frame: SymbolicFrame, value: Value) -> Ending:
    refuse_open(cx)
    frame.refuse_pending(reached([value, *cx.effects.values()]))
    before = frame.entry_grad_mode
    after = cx.modes.is_grad_enabled()
    keeps = decide_cells(cx, [value], False)
    outputs = outputs_in([value, *cx.effects.values(), *cx.effects.asked()])

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        start(cx, out, roots, outputs, [value], False)
        if after != before:
            out.grad_mode(after)
        out.value(value)
        cx.effects.modes.restore(out)
        out.emit("RETURN_VALUE")

    return Ending(outputs, keeps, emit)


def finish_raise(cx: FrameContext, frame: SymbolicFrame, reason: Raised) -> Ending:
    """The exception leaves the frame: effects first, then it is raised through code that stands for the inlined frames, for its traceback."""
    frame.refuse_pending()
    refuse_open(cx)
    value: ExceptionValue = reason.value
    during = value if cx.handling is value else None
    before, after = frame.entry_grad_mode, cx.modes.is_grad_enabled()
    made = list(value.children()) if value.source is None else [value]
    keeps = decide_cells(cx, made, False)
    outputs = outputs_in([*made, *cx.effects.values(), *cx.effects.asked()])

    def emit(out: Builder, roots: Sequence[Source] | None) -> None:
        start(cx, out, roots, outputs, [v for v in made if not isinstance(v, ExceptionValue)], True)
        if after != before:
            out.grad_mode(after)
        cx.effects.modes.restore(out)
        gone = spent(frame, out.cells)  # the traceback keeps the frame
        raise_again(out, value, reason.trail, during, gone) if out.has(value) or value.source is not None else raise_out(out, value, gone)

    return Ending(outputs, keeps, emit)
