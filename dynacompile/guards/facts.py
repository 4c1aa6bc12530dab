"""What capture asks of the frame that it follows: objects at sources, and whether guards hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch

from dynacompile.guards.evaluate import MISSING, evaluate
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Captured, Guard
from dynacompile.ir.guard_facts import Disjoint, ShapeFacts
from dynacompile.ir.source import Attr, Source


class FrameFacts:
    """frame: a FrameProxy, FrameValues, or a mapping from the names of roots to values; it has not run yet."""

    def __init__(self, frame: Any):
        self.frame = frame
        self._values: dict[Source, Any] = {}

    def value(self, source: Source) -> Any:
        """The object at a source; raises LookupError where there is none."""
        found = self._values.get(source, MISSING)
        if found is MISSING:
            found = self._values[source] = evaluate(source, self.frame)
            if found is MISSING:
                raise LookupError(f"nothing is at {source.text()}")
        return found

    def hold(self, guards: Sequence[Guard]) -> bool:
        return not failures(guards, self.frame)


class Outdated(Exception):
    """The program has changed, while a frame was captured, what the capture relied on. guards: those that the capture made."""

    def __init__(self, guards: Sequence[Guard]):
        self.guards = tuple(guards)
        super().__init__("the program changed what was read while it was captured")


class SetsProcess(Exception):
    """The graph needs settings of the process while it is compiled, which other threads would see."""


@dataclass(eq=False)
class FrameCopy:
    """What a FrameProxy shows, kept beyond its call: for a compile that the call does not wait for.

    grads: the gradients of tensors as the call had them, by the tensors' ids: the program clears and fills them in every step. ticket: see `Session.claim`.
    """

    code: CodeType
    function: FunctionType | None
    slots: tuple
    closure: tuple | None
    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    grads: Mapping[int, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)
    ticket: object = None

    def end_capture(self, captured: Captured) -> None:
        """Raises Outdated where the facts that were read, each at a moment of its own, do not hold together now."""
        if captured.settings:
            raise SetsProcess
        relevant = [guard for guard in captured.guards if not (self.grads and any(map(is_of_gradient, sources_of(guard))))]
        if not compile_guards(relevant).check(self.slots, self.closure, self.globals, self.builtins):
            raise Outdated(captured.guards)


def is_of_gradient(source: Source) -> bool:
    return any(isinstance(step, Attr) and step.name == "grad" for step in source.steps())


def sources_of(guard: Guard) -> Iterator[Source]:
    """All that a guard looks at."""
    waiting: list[Any] = [guard.source, guard.expected]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Source):
            yield value
        elif isinstance(value, tuple):
            waiting += value
        elif isinstance(value, Disjoint):
            waiting += [value.written, value.others]
        elif isinstance(value, ShapeFacts):
            waiting += [quantity.source for quantity in value.quantities]
