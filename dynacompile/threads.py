"""Work on several threads, or on this one where the interpreter is ending and starts no more."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import TypeVar

from dynacompile.compilers import RUNNING, Exiting

A = TypeVar("A")
T = TypeVar("T")


def can_start_threads() -> bool:
    """False from when the main thread has ended: in atexit handlers, and in threads that the interpreter waits for."""
    return threading.main_thread().is_alive() and not RUNNING.is_exiting


def on_threads(count: int, work: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """[work(item) for item in items], by `count` threads."""
    given = list(items)
    if can_start_threads():
        try:
            with ThreadPoolExecutor(count, initializer=RUNNING.begin_helper) as pool:
                running = [submitted(pool, work, item) for item in given]
                try:
                    return [work(item) if one is None else one.result() for item, one in zip(given, running)]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        except Exiting:
            pass  # this thread does it, if it is the program's
    return [work(item) for item in given]


def submitted(pool: ThreadPoolExecutor, work: Callable[[A], T], item: A) -> Future[T] | None:
    """None where the pool takes nothing more, since the main thread has ended just now, or no thread can be started."""
    try:
        return pool.submit(work, item)
    except RuntimeError:
        return None


def let_imports_end(seconds: float = 1.0) -> None:
    """Waits until no other thread that compiles is in the midst of an import, or for `seconds`. A child that is forked meanwhile would find the module's lock
    held by a thread that it does not have, and wait for ever where it needs the module, too: torch imports parts of itself when they are first used."""
    end = time.monotonic() + seconds
    mine = threading.get_ident()
    while any(imports_for_us(frame) for thread, frame in sys._current_frames().items() if thread != mine) and time.monotonic() < end:
        time.sleep(0.001)


def imports_for_us(frame: FrameType | None) -> bool:
    """Whether the thread with this frame imports a module below code of the compiler."""
    is_importing = False
    while frame is not None:
        is_importing = is_importing or frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        if is_importing and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "dynacompile":
            return True
        frame = frame.f_back
    return False


def begin(work: Callable[[], T], name: str) -> Callable[[], T]:
    """Starts `work` on a thread of its own; the result waits for its end, and raises what it raised."""
    if not can_start_threads():
        return work
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=RUNNING.begin_helper)
    running = submitted(thread, lambda _: work(), None)
    thread.shutdown(wait=False)  # it ends when the work has
    if running is None:
        return work

    def result() -> T:
        try:
            return running.result()
        except Exiting:
            return work()

    return result
