"""Warnings that are given once for each cause, and work that goes on where a report of it fails."""

from __future__ import annotations

import sys
import threading
import warnings
from types import TracebackType

from dynacompile.quoting import printable


class Complaints:
    """The causes that this process was warned of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: set[object] = set()

    def warn(self, cause: object, text: str) -> None:
        """Warns with `text`, the first time that there is this cause."""
        with self.lock:
            if cause in self.known:
                return
            self.known.add(cause)
        warn(printable(text, longest=2000))


OURS = ("dynacompile", "torch", "importlib")
"""Packages whose lines say nothing to whoever is warned."""


def warn(text: str) -> None:
    """A RuntimeWarning, told with the line of the program that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        frame, level = frame.f_back, level + (frame.f_globals.get("__name__", "").partition(".")[0] != "importlib")
    warnings.warn(text, RuntimeWarning, stacklevel=level)


COMPLAINTS = Complaints()


class Reporting:
    """A block that reports on work: an error in it is a warning, given once for each `what`, and the work goes on. Interrupts and exits pass through."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        COMPLAINTS.warn(("report", self.what), f"{self.what} failed and the run goes on without it: {type(error).__name__}: {error}")
        return True
