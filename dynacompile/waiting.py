"""Waiting for another thread that compiles the same code, as long as that can't be waiting for this one."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from types import CodeType, FrameType

from dynacompile.backends import CALLS_PROGRAM
from dynacompile.native import core as native_core
from dynacompile.session import LIBRARIES, Ticket

PATIENCE = 5.0  # seconds for which a thread that compiles may stand still before another one that waits for it goes on


def ends_soon(other: weakref.ref[Ticket], outermost: CodeType) -> bool:
    """Waits for the end of another thread's compile, whose frames begin at `outermost`. False where it may never come while this thread waits: that thread
    runs the program's code, which may wait for this one, or does not move for long, as where it waits for what this one holds."""
    before: tuple[int, int] | None = None
    moved = time.monotonic()
    pause = 0.0005
    while (ticket := other()) is not None:
        owner = ticket.owner
        del ticket  # it would live on here
        if owner == threading.get_ident():
            return False
        innermost = sys._current_frames().get(owner)
        if innermost is not None:
            if runs_program(innermost, outermost):
                return False
            place = id(innermost), innermost.f_lasti
            if place != before:
                before, moved = place, time.monotonic()
        if time.monotonic() - moved > PATIENCE:
            return False
        del innermost
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


def runs_program(frame: FrameType | None, outermost: CodeType) -> bool:
    """Whether a thread that compiles, in this frame, runs code of the program's: a backend, a subscriber, a function that capture calls."""
    while frame is not None and frame.f_code is not outermost:
        if frame.f_code in CALLS_PROGRAM or not is_library(frame):
            return True
        frame = frame.f_back
    return False


def is_library(frame: FrameType) -> bool:
    """Whether a compile calls such code by itself. Code without a file is that of the module whose globals it has, if that has a name: torch makes some."""
    module = str(frame.f_globals.get("__name__", "torch")).partition(".")[0]
    return module in LIBRARIES or (module in ("torch", "dynacompile") if frame.f_code.co_filename[:1] == "<" else native_core().is_skipped(frame.f_code))
