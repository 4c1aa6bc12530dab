"""Entries for the tests of the hook: a frame's code is replaced by that of a Python function, under hand-made guards."""

from __future__ import annotations

from types import CodeType
from typing import Any

from dynacompile import native


def always() -> Any:
    """Guards that hold for every call."""
    return native.core().GuardProgram([], [], [])


def first_argument_is(kind: type) -> Any:
    return native.core().GuardProgram([("slot", -1, 0)], [("type", 0, kind, 0)], [])


class Compiler:
    """A region's callback that runs `replacement` for frames of `original`, leaves other code to Python, and records what it was asked."""

    def __init__(self, replacements: dict[CodeType, CodeType] | None = None, *, guards: Any = always, whole: bool = False) -> None:
        self.replacements, self.guards, self.whole = dict(replacements or {}), guards, whole
        self.asked: list[str] = []

    def __call__(self, frame: Any, state: Any) -> Any:
        self.asked.append(frame.code.co_name)
        if frame.code not in self.replacements:
            return native.core().SKIP
        return native.core().Entry(self.replacements[frame.code].replace(), self.guards(), None, self.whole)


def region(function: Any, compiler: Any, bucket: int = -1, **state: Any) -> Any:
    return native.core().Region(function, compiler, native.core().RegionState(bucket, **state))
