"""Work on several threads, or on this one where the interpreter is ending and starts no more.

Of `threading`, the compiler uses the locks alone, and these in `with` statements, which no interrupt comes between. What a signal handler raises in the
Python code of a `Condition`, where that has just taken its lock or is about to release it, leaves the lock taken for ever, and whoever wants it waits for
ever. `Thread.start`, `Event`, `Semaphore`, `Timer`, `queue.Queue`, `Future` and `ThreadPoolExecutor` use conditions.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Generic, TypeVar, cast

from dynacompile.compilers import RUNNING, Exiting
from dynacompile.private import of_python

A = TypeVar("A")
T = TypeVar("T")

LOOKED_AGAIN = 0.001  # seconds


def can_start_threads() -> bool:
    """False from when the main thread has ended: in atexit handlers, and in threads that the interpreter waits for. The main thread itself is not asked:
    an interrupt of CPython 3.11's `Thread.is_alive` marks a thread that runs as one that has ended."""
    return not RUNNING.is_exiting


class Task(Generic[T]):
    """A piece of work that a thread of the compiler's own does, and others wait for."""

    def __init__(self, work: Callable[[], T]):
        self.work = work
        self.made: T | None = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.waiting: deque[_thread.LockType] = deque()  # the taken lock of each that waits: it waits to take it again

    def run(self) -> None:
        try:
            if RUNNING.is_exiting:
                raise Exiting("the program is exiting: who wants this result makes it")
            self.made = self.work()
        except BaseException as error:  # noqa: BLE001  (it is raised where the result is asked for)
            assert error.__traceback__ is not None
            self.error = error.with_traceback(error.__traceback__.tb_next)  # without this frame, which knows the task
        finally:
            self.has_ended = True
            while self.waiting:
                self.waiting.popleft().release()

    def wait(self) -> None:
        """Returns when the task has ended. An interrupt leaves a lock behind that nobody else wants."""
        lock = _thread.allocate_lock()
        lock.acquire()
        self.waiting.append(lock)
        if not self.has_ended:
            lock.acquire()

    def result(self) -> T:
        """What the work gave, when it has ended; raises what it raised."""
        self.wait()
        if self.error is None:
            return cast(T, self.made)
        try:
            raise self.error
        finally:
            del self  # the error knows this frame


class Helper:
    """A thread of the compiler's own, which does tasks as long as there are any. The exit of the program waits for it."""

    running: set[Helper] = set()

    def __init__(self, name: str, tasks: deque[Task[Any]]):
        self.name, self.tasks = name, tasks

    def start(self) -> bool:
        """False where the interpreter starts no more threads, or the system none."""
        if not can_start_threads():
            return False
        try:
            _thread.start_new_thread(self.work, ())
        except RuntimeError:
            return False
        return True

    def work(self) -> None:
        """A thread that the exit of the program does not yet find among those that run finds that the program exits, before it does a task."""
        self.running.add(self)
        RUNNING.begin_helper()
        threading.current_thread().name = self.name
        try:
            while (task := taken(self.tasks)) is not None:
                task.run()
        finally:
            of_python.active_threads.pop(threading.get_ident(), None)  # what `current_thread` has made
            self.running.discard(self)


def taken(tasks: deque[Task[Any]]) -> Task[Any] | None:
    """The next of the tasks, which is no other thread's then."""
    try:
        return tasks.popleft()
    except IndexError:
        return None


def end_helpers() -> None:
    """Before the interpreter ends, which would end the threads wherever they are."""
    RUNNING.end_all()
    while Helper.running:
        time.sleep(LOOKED_AGAIN)


of_python.register_atexit(end_helpers)
os.register_at_fork(after_in_child=Helper.running.clear)


def on_threads(count: int, work: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """[work(item) for item in items], by `count` threads. However it ends, none of them is at work then, unless that waiting is interrupted."""
    given = list(items)
    tasks = [Task(functools.partial(work, item)) for item in given]
    waiting: deque[Task[Any]] = deque(tasks)
    try:
        started = [Helper("dynacompile-helper", waiting).start() for _ in range(min(count, len(tasks)))]
        if any(started):
            return [task.result() for task in tasks]
    except Exiting:
        pass  # this thread does it, if it is the program's
    finally:
        dropped = set(iter(functools.partial(taken, waiting), None))
        for task in tasks:
            if task not in dropped:
                task.wait()
    return [work(item) for item in given]


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
    task = Task(work)
    if not Helper(name, deque([task])).start():
        return work

    def result() -> T:
        try:
            return task.result()
        except Exiting:
            return work()

    return result


def after(seconds: float, work: Callable[[], object]) -> Callable[[], None]:
    """Does `work` on a thread of its own when so much time is over, unless what it returns is called before, once. The exit of the program does not wait."""
    lock = _thread.allocate_lock()
    lock.acquire()

    def wait() -> None:
        if not lock.acquire(timeout=seconds):
            work()

    _thread.start_new_thread(wait, ())
    return lock.release
