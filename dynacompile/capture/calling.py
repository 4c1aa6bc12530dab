"""Where a call has its callable, and the NULL that stands for a bound argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dynacompile.cpython import RUNNING


class CallWriter:
    """Writes the callable of a call, with the NULL on its side of it; arguments and the call follow."""

    def const(self, value: Any) -> None:
        raise NotImplementedError

    def push_null(self) -> None:
        raise NotImplementedError

    @contextmanager
    def calling(self) -> Iterator[None]:
        """What is pushed inside is the callable."""
        if RUNNING.null_first:
            self.push_null()
        yield
        if not RUNNING.null_first:
            self.push_null()

    def callee(self, function: Any) -> None:
        """Pushes a constant as the callable."""
        with self.calling():
            self.const(function)


def callable_first(*ops: str) -> tuple[str, ...]:
    """The instructions that push a callable, with the one for the NULL."""
    return ("PUSH_NULL", *ops) if RUNNING.null_first else (*ops, "PUSH_NULL")


def with_null(value: Any, null: Any) -> list:
    """A callable and the NULL, as they lie on the stack."""
    return [null, value] if RUNNING.null_first else [value, null]


def called(first: Any, second: Any, null: Any) -> tuple[Any, list]:
    """The callable and the bound argument, if there is one, of the two values below the arguments of a call."""
    if first is null:
        return second, []
    return first, [] if second is null else [second]
