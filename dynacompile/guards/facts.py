"""What capture asks of the frame that it follows: objects at sources, and whether guards hold of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynacompile.guards.evaluate import MISSING, evaluate
from dynacompile.guards.program import failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.source import Source


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
