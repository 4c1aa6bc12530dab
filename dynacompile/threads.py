"""Work on several threads, or on this one where the interpreter is ending and starts no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
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
                return list(pool.map(work, given))
        except Exiting:
            pass  # this thread does it, if it is the program's
    return [work(item) for item in given]


def begin(work: Callable[[], T], name: str) -> Callable[[], T]:
    """Starts `work` on a thread of its own; the result waits for its end, and raises what it raised."""
    if not can_start_threads():
        return work
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=RUNNING.begin_helper)
    running = thread.submit(work)
    thread.shutdown(wait=False)  # it ends when the work has

    def result() -> T:
        try:
            return running.result()
        except Exiting:
            return work()

    return result
