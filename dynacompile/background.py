"""Compiles that no call waits for: a queue, and one thread of this process that works on it.

The call that asks for an entry goes on as Python; calls of the same code run so, too, with no question asked, until the compile has ended and its answer
holds for them. What the compile needs of the call goes along: its arguments, torch's state of the thread, context variables, the device. The thread gives
way to the program's (`frame/turns.cpp`), and what it starts runs with low priority.
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FunctionType, ModuleType
from typing import Any

import torch

from dynacompile.compilers import RUNNING, Exiting
from dynacompile.errors import DynacompileError
from dynacompile.events import BuiltInBackground, FrameSkipped
from dynacompile.guards.facts import FrameCopy
from dynacompile.ir.guard_facts import global_state
from dynacompile.native import core as native_core
from dynacompile.private import of_python, of_torch
from dynacompile.recompiles import frame_name
from dynacompile.region_info import RegionInfo
from dynacompile.session import SESSION
from dynacompile.threads import can_start_threads

Compile = Callable[[FrameCopy, Any], Any]  # of a frame, for a RegionState: an answer for the native core
MOST_LOOKED_AT = 20_000  # objects among which gradients are looked for
DEEPEST = 2  # attributes of attributes of what a frame is given
UNTIL_IT_ENDS = 2.0  # seconds for which the exit of the program waits, where a compile is in a call that takes as long
ASKED_AGAIN = 0.1  # seconds
LOOKED_AGAIN = 1000  # microseconds


class Ending(BaseException):
    """Raised in the thread where the program exits: whatever a compile is about, it ends there."""


class Job:
    """One compile. The region may be gone before it ends; then its result is dropped."""

    def __init__(self, frame: Any, state: Any, compile: Compile):
        slots = tuple(frame.slots)
        self.frame = FrameCopy(frame.code, frame.function, slots, frame.closure, frame.globals, frame.builtins, gradients(frame, slots), frame.ticket)
        self.state = weakref.ref(state)
        self.compile = compile
        self.caller = native_core().caller_state()
        self.context = contextvars.copy_context()
        self.device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self.resets = SESSION.resets
        self.asked = time.perf_counter()

    def run(self) -> None:
        """Compiles on this thread, and has the region follow the answer."""
        core, code = native_core(), self.frame.code
        state = self.live_state()
        if state is None:
            return
        info: RegionInfo = state.owner
        start = time.perf_counter()
        self.frame.ticket.owner = threading.get_ident()  # type: ignore[attr-defined]
        del state  # the region may go meanwhile
        answer, error = self.attempt()
        seconds = time.perf_counter() - start
        state = self.live_state()
        if state is None:
            return
        if error is not None:
            self.failed(error, info)
        elif answer is not None:
            core.settle(code, state, answer, code is info.target)
            if isinstance(answer, core.Entry):
                eager = time.perf_counter() - self.asked
                SESSION.bus.emit(BuiltInBackground(region=info.name, bucket=info.bucket, frame=frame_name(code), seconds=seconds, eager_seconds=eager))

    def attempt(self) -> tuple[Any, BaseException | None]:
        """The answer, or what was raised."""
        try:
            with nullcontext() if self.device is None else torch.cuda.device(self.device):
                return self.context.run(native_core().compile_apart, self.caller, self.answer), None
        except Exiting:
            return None, None
        except Ending:
            raise
        except BaseException as raised:  # noqa: BLE001  (it is the next call's)
            assert raised.__traceback__ is not None
            return None, raised.with_traceback(raised.__traceback__.tb_next)  # without this frame, which knows the job

    def answer(self) -> Any:
        """The answer for calls of the region; None where the region is gone."""
        state = self.state()
        return None if state is None else self.compile(self.frame, state)

    def failed(self, error: BaseException, info: RegionInfo) -> None:
        """The next call raises the error. One that is not of the compiler's making may come of the program's changes meanwhile, and is given another chance."""
        code = self.frame.code
        if isinstance(error, Exception) and not isinstance(error, DynacompileError) and not info.races[code]:
            info.races[code] += 1
            told = f"[changing] {type(error).__name__} in a compile beside the program: the next call asks again"
            SESSION.bus.emit(FrameSkipped(region=info.name, bucket=info.bucket, site=frame_name(code), reason=told))
            return
        info.errors[code] = error

    def live_state(self) -> Any:
        """The RegionState, where its region is there still and nothing was reset since."""
        return self.state() if self.resets == SESSION.resets else None

    def end(self) -> None:
        """Calls of the code are met again, and find an entry, or ask."""
        state, self.frame.ticket = self.state(), None
        if state is not None:
            native_core().run_meanwhile(self.frame.code, state, False)


class Background:
    """The queue. lock: guards jobs, the one that runs, and the numbers, Python's and the system's, of the thread, which ends when there is nothing to do.
    Who waits for a change looks again and again: see `dynacompile.threads`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.jobs: deque[Job] = deque()
        self.running: Job | None = None
        self.thread: tuple[int, int] | None = None
        self.stopped = False  # the program ends

    def takes_calls(self) -> bool:
        """Whether the compile of a call on this thread, as it is now, may be left to the background: not under modes (but for a default device) and
        transforms, which compiles refuse at once, and not while the program ends."""
        state = global_state(native_core().function_modes())
        return not (state.has_modes or state.functorch or state.dispatch_modes) and can_start_threads()

    def add(self, frame: Any, state: Any, compile: Compile) -> Any:
        """Queues the compile of a frame that has the ticket of its code and bucket, and gives the answer for this call."""
        core = native_core()
        job = Job(frame, state, compile)
        with self.lock:
            if self.stopped:
                job.end()
                return core.RUN_PLAINLY
            self.jobs.append(job)
            self.start()
            core.run_meanwhile(frame.code, state, True)
        return core.RUN_PLAINLY

    def start(self) -> None:
        """Has a thread work on what is queued."""
        with self.lock:
            if self.jobs and self.thread is None:
                self.thread = _thread.start_new_thread(self.work, ()), 0  # it knows the system's number itself

    def work(self) -> None:
        try:
            self.work_off()
        except Ending:
            pass
        finally:  # whatever ended it, those that wait do not wait for this thread
            with self.lock:
                if self.is_thread():
                    self.thread = None

    def is_thread(self) -> bool:
        """Whether this thread is the one that works."""
        return self.thread is not None and self.thread[0] == threading.get_ident()

    def work_off(self) -> None:
        """All that is queued."""
        with self.lock:
            if self.thread is not None and not self.is_thread():  # an interrupt came before the first one was noted
                return
            self.thread = threading.get_ident(), threading.get_native_id()
        threading.current_thread().name = "dynacompile-background"
        if self.jobs:
            begin_thread()
        while True:
            with self.lock:
                if not self.jobs:
                    of_python.active_threads.pop(threading.get_ident(), None)  # what `current_thread` has made
                    self.thread = None
                    return
                self.running = job = self.jobs.popleft()
            try:
                job.run()
            finally:
                job.end()
                del job
                with self.lock:
                    self.running = None

    def waiting(self) -> frozenset[str]:
        """The names of the regions that have a compile queued or under way."""
        with self.lock:
            jobs = [*self.jobs] + ([] if self.running is None else [self.running])
        states = (job.live_state() for job in jobs)
        return frozenset(state.owner.name for state in states if state is not None)

    def wait(self, timeout: float | None) -> bool:
        """Until nothing is queued and nothing runs; False after `timeout` seconds."""
        self.start()
        with self.lock:
            thread = self.thread
            if thread is None and not self.jobs:
                return True
        if thread is not None and thread[0] == threading.get_ident():
            return False
        with self.priority_of_caller():
            return self.has_ended(timeout)

    def has_ended(self, timeout: float | None) -> bool:
        """Waits for the end of all jobs, and looks every millisecond."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.thread is not None or self.jobs:
            if end is not None and time.monotonic() >= end:
                return False
            self.start()  # the thread may have ended by an error
            native_core().rest_in_hurry(LOOKED_AGAIN)
        return True

    @contextmanager
    def priority_of_caller(self) -> Iterator[None]:
        """Inside it the compiles' thread has the priority of the one that waits, where the system lets it have that."""
        thread = self.thread
        try:
            before = 0 if thread is None else os.getpriority(os.PRIO_PROCESS, thread[1])
            if thread is not None:
                os.setpriority(os.PRIO_PROCESS, thread[1], os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        except (PermissionError, ProcessLookupError):
            yield
            return
        try:
            yield
        finally:
            with self.lock:
                if thread is not None and self.thread == thread:
                    os.setpriority(os.PRIO_PROCESS, thread[1], before)

    def drop(self) -> None:
        """Nothing is queued any more; the result of what runs is dropped by whoever asked for this."""
        with self.lock:
            dropped = [*self.jobs] + ([] if self.running is None else [self.running])
            self.jobs.clear()
        for job in dropped:
            job.end()

    def stop(self) -> None:
        """Before the interpreter ends: it would end the thread wherever that takes the interpreter's lock, and within torch's C++ that ends the process by
        SIGABRT (its destructors may not be left by the unwinding of `pthread_exit`)."""
        with self.lock:
            self.stopped = True  # threads of the program, which the interpreter waits for, may still call
            if self.thread is None:
                return
        RUNNING.end_all()  # whoever waits for a compiler goes on
        self.drop()
        sys.unraisablehook = told_but_of_endings(sys.unraisablehook)
        end, ask = time.monotonic() + UNTIL_IT_ENDS, 0.0
        with self.priority_of_caller():
            while self.thread is not None and (now := time.monotonic()) < end:
                if now >= ask:
                    self.ask_to_end()
                    ask = now + ASKED_AGAIN
                native_core().rest_in_hurry(LOOKED_AGAIN)

    def ask_to_end(self) -> None:
        """Raises Ending in a compile; before and between compiles the thread looks itself."""
        with self.lock:
            if self.thread is not None and self.running is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread[0]), ctypes.py_object(Ending))

    def begin_child(self) -> None:
        """In a forked process, which has no such thread."""
        jobs, running = self.jobs, self.running
        self.lock, self.jobs, self.running, self.thread = threading.RLock(), deque(), None, None
        for job in (*jobs, *([] if running is None else [running])):
            job.end()


def told_but_of_endings(tell: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A hook for what can not be raised, as in callbacks of weak references. A compile may be in one when it is to end; it is asked again then."""

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is not Ending:
            tell(unraisable)

    return hook


def begin_thread() -> None:
    """What this thread starts ends with the program, and runs where the program leaves a processor idle: but for torch's threads for backward passes, which
    belong to the process, begin with the first pass, and are begun here before."""
    RUNNING.begin_helper()
    with suppress(RuntimeError), torch.enable_grad():  # torch refuses passes, and begins no threads, in a process forked from one that had some
        torch.autograd.backward(torch.zeros((), device="cpu", requires_grad=True) * 1)
    native_core().lower_priority()


def gradients(frame: Any, slots: tuple) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
    """The gradients of the parameters of optimizers that the frame is given, closes over or names: by the time of the compile the program has cleared them."""
    cells = [cell.cell_contents for cell in frame.closure or () if is_filled(cell)]
    named = [frame.globals[name] for name in frame.code.co_names if name in frame.globals]
    found: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
    with of_torch.DisableTorchFunctionSubclass():
        for optimizer in optimizers((*slots, *cells, *named)):
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if p.is_leaf:
                    found[id(p)] = p, p.grad
    return found


def is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (reading it is the question)
    except ValueError:
        return False
    return True


def optimizers(values: tuple) -> Iterator[torch.optim.Optimizer]:
    """Optimizers among the values: in lists, tuples and dicts, and in the attributes of objects that are given, which may wrap them."""
    seen: set[int] = set()
    waiting = [(value, 0) for value in values]
    while waiting and len(seen) < MOST_LOOKED_AT:
        value, depth = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.optim.Optimizer):
            yield value
        elif type(value) in (list, tuple):
            waiting += [(item, depth) for item in value]
        elif type(value) is dict:
            waiting += [(item, depth) for item in value.values()]
        elif depth < DEEPEST and not isinstance(value, (type, FunctionType, ModuleType, torch.Tensor, torch.nn.Module)):
            own = getattr(type(value), "__dict__", {}).get("__dict__") and vars(value)
            waiting += [(item, depth + 1) for item in (own or {}).values()]


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.begin_child)
of_python.register_atexit(BACKGROUND.stop)
