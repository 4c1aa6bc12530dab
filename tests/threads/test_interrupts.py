"""What a signal handler raises while something is compiled, checked or reset reaches the caller, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from typing import ClassVar

import pytest
import sympy  # noqa: F401 - its first import adds a filter of warnings
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _python_dispatch

import dynacompile
from dynacompile.capture.entry import SavedModes
from dynacompile.events import FrameSkipped
from dynacompile.session import SESSION
from dynacompile.threads import begin, on_threads
from tests.fuzz import interrupts
from tests.fuzz.ticking import Outcome, interrupted


def test_interrupts_spread_over_all_scenarios(capsys):
    """In processes of their own, for torch may end them."""
    names = [name for name in interrupts.SCENARIOS if name not in interrupts.SLOW]
    assert interrupts.watch(20000, 20000 + 6 * len(names), names, False) == 0, capsys.readouterr().out


@pytest.mark.parametrize("leave", [FakeTensorMode.__exit__, _python_dispatch.TorchDispatchMode.__exit__, SavedModes.__exit__], ids=["fake", "any", "saved"])
@pytest.mark.parametrize("nth", [1, 3])
def test_an_interrupt_where_a_mode_is_left(leave, nth):
    """Where __exit__ has begun and done nothing, the mode is still on torch's stack."""
    case = interrupts.break_and_resume()
    before = interrupts.torch_state()
    left = nth

    def trace(frame, event, argument):
        nonlocal left
        if event == "call" and frame.f_code is leave.__code__:
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise interrupts.Stopped

    sys.settrace(trace)
    try:
        with pytest.raises(interrupts.Stopped):
            case.run()
    finally:
        sys.settrace(None)
    assert interrupts.torch_state() == before
    assert interrupts.same(case.eager(), case.run())
    assert len(dynacompile.cache_entries(case.compiled)) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_python_code_is_asked_which_device_a_fake_is_on(backend):
    """torch asks in C++ that must not throw: an interrupt of Python code would end the process."""
    asked = []

    def profile(frame, event, argument):
        if event == "call" and any(value is torch.ops.prim.device.default for value in frame.f_locals.values()):
            asked.append(frame.f_code.co_qualname)

    def loss(x, w):
        return (x.sin() @ w).softmax(-1).sum()

    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    sys.setprofile(profile)
    try:
        compiled = dynacompile.compile(loss, backend=backend, isolate_recompiles=True)
        compiled(x, w).backward()
    finally:
        sys.setprofile(None)
    assert len(dynacompile.cache_entries(compiled)) == 1
    assert asked == []


def test_modes_of_the_program_are_asked_which_device_a_fake_is_on():
    class Seen(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    dynacompile.compile(torch.sin, backend="eager")(torch.ones(3))
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(3, requires_grad=True))
    assert torch.ops.prim.device.default(x) == torch.device("cpu")
    mode.in_kernel_invocation = True
    assert torch.ops.prim.device.default(x) == torch.device("meta")
    mode.in_kernel_invocation = False
    with mode, Seen():
        assert x.sin().grad_fn is not None
    assert torch.ops.prim.device.default in seen


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_an_interrupt_where_warnings_are_caught(method):
    """At each line of the manager's: the filters and writers are the process's, and stay as they were."""
    code, fired = getattr(warnings.catch_warnings, method).__code__, 1

    def backend(graph, inputs):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("error")
        return graph.forward

    def state():
        return warnings.filters, list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl

    while fired:
        numbers = itertools.count(1)
        fn, left, fired = interrupts.source("def f(x):\n    return x.sin() + 1"), fired, 0
        compiled, x, before = interrupts.compiled(fn, backend=backend), torch.ones(3), state()

        def lines(frame, event, argument, numbers=numbers, last=left):
            nonlocal fired
            if event == "line" and next(numbers) == last:
                sys.settrace(None)
                fired = last + 1
                raise interrupts.Stopped
            return lines

        sys.settrace(lambda frame, event, argument, lines=lines: lines if frame.f_code is code else None)
        try:
            compiled(x)
        except interrupts.Stopped:
            pass
        finally:
            sys.settrace(None)
        after = state()
        assert all(now is then for now, then in zip((after[0], *after[2:]), (before[0], *before[2:]))) and after[1] == before[1], left
        torch.testing.assert_close(compiled(x), fn(x))
    assert left > 4


def call_that_queues():
    case = interrupts.in_the_background()
    return lambda: case.compiled(torch.ones(3), torch.ones(3))


def work_on_threads():
    assert on_threads(2, lambda item: -item, [1, 2, 3]) == [-1, -2, -3]
    assert begin(lambda: 7, "dynacompile-probe")() == 7


PARTS = {
    "queue": call_that_queues,
    "wait": lambda: dynacompile.wait,
    "reset": lambda: dynacompile.reset,
    "work-on-threads": lambda: work_on_threads,
}


@pytest.mark.parametrize("part", PARTS)
def test_an_interrupt_leaves_no_lock_taken(part):
    """At each place of what locks the queue of compiles, or waits for threads of the compiler. Another thread that wants the same locks gets them."""
    place, outcome = 1, interrupted(PARTS[part](), 1, interrupts.Stopped())
    while outcome.fired:
        if part != "queue" or "background.py" in outcome.where:
            ended: list[int] = []
            other = threading.Thread(target=lambda into=ended: (dynacompile.wait(), work_on_threads(), SESSION.known_codes(), into.append(1)), daemon=True)
            other.start()
            other.join(30)
            assert ended, f"a thread waits for ever after an interrupt of {outcome.where}"
            assert threading.main_thread().is_alive(), outcome.where
        place += 1
        tries = (interrupted(PARTS[part](), place, interrupts.Stopped()) for _ in range(3))  # threads are not as fast each time
        outcome = next((one for one in tries if one.fired), Outcome())
    assert place > 5


def test_an_interrupt_in_a_guard_reaches_the_caller():
    """The guard calls Python, which is interrupted at each of its bytecodes where that can be."""
    case = interrupts.guards()
    for place in range(1, interrupts.places_of("guards") + 1):
        error = interrupts.Plain("late")
        outcome = interrupted(case.run, place, error)
        assert outcome.raised is error or not outcome.fired
    assert len(dynacompile.cache_entries(case.compiled)) == 1


def test_a_handler_runs_torch_in_the_midst_of_a_compile():
    """It sees real tensors, and what it does is no part of the graph."""
    seen = []
    counter = torch.zeros(2)

    def handle(number, frame):
        counter.add_(1)
        seen.append((type(torch.ones(2) + 1), torch.is_grad_enabled(), (torch.ones(2, requires_grad=True) * 2).requires_grad))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for turn in range(20):
            case = interrupts.modes()
            count = 6000
            outcome = interrupted(case.run, 1 + (turn * 2654435761) % count, None, sent=signal.SIGUSR1)
            assert outcome.raised is None
            assert interrupts.same(case.eager(), outcome.result)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) > 10
    assert set(seen) == {(torch.Tensor, True, True)}
    assert counter.tolist() == [len(seen), len(seen)]


def test_a_handler_is_not_compiled():
    """One that runs between the graphs of a program belongs to no region."""
    ran = []

    def handle(number, frame):
        ran.append(torch.ones(2).sum().item())

    def program(x):
        y = x + 1
        os.kill(os.getpid(), signal.SIGUSR1)
        return y * 2

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [4, 4]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ran == [2.0]
    assert not [e for e in dynacompile.cache_entries(compiled) if "<locals>.handle" in e.frame]


class Cyclic:
    """Garbage that only a collection finds."""

    ended: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.me = self

    def __del__(self):
        self.ended.append(helped(2.0))


def helped(number):
    return torch.full((2,), number).sum().item()


class Reports:
    def __call__(self, unraisable):
        Cyclic.ended.append(helped(3.0))


@pytest.mark.parametrize("place", [0, None], ids=["first", "last"])
def test_what_the_collector_calls_is_not_compiled(place):
    """Its callbacks are called with times and phases, as those of hypothesis are: each would have an entry of its own, in whatever region has run."""
    ran = []

    def watch(phase, facts):
        ran.append((phase, helped(time.perf_counter())))

    def program(x):
        y = x + 1
        Cyclic()
        gc.collect()
        return y * 2

    gc.collect()
    Cyclic.ended.clear()
    gc.callbacks.insert(len(gc.callbacks) if place is None else place, watch)
    try:
        compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
        for _ in range(3):
            assert compiled(torch.ones(2)).tolist() == [4, 4]
    finally:
        gc.callbacks.remove(watch)
    assert len(ran) >= 6  # a compile may set off more
    assert Cyclic.ended == [4.0] * 3
    assert not [e for e in dynacompile.cache_entries(compiled) if any(name in e.frame for name in ("watch", "__del__", "helped"))]


def test_what_reports_errors_of_finalizers_is_not_compiled(monkeypatch):
    class Fails:
        def __del__(self):
            raise ValueError("of a finalizer")

    def program(x, held):
        y = x + 1
        held.clear()
        return y * 2

    monkeypatch.setattr(sys, "unraisablehook", Reports())
    Cyclic.ended.clear()
    compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2), [Fails()]).tolist() == [4, 4]
    assert Cyclic.ended == [6.0] * 3
    assert not [e for e in dynacompile.cache_entries(compiled) if "__call__" in e.frame or "helped" in e.frame]


def test_a_program_that_drops_the_collectors_callbacks_in_a_collection_is_still_compiled():
    class Drops:
        def __init__(self):
            self.me = self

        def __del__(self):
            gc.callbacks.clear()

    def program(x):
        Drops()
        gc.collect()
        return x + 1

    def later(x):
        return x * 2

    kept = list(gc.callbacks)
    try:
        dynacompile.compile(program, isolate_recompiles=True, backend="eager")(torch.ones(2))
        assert not gc.callbacks
        compiled = dynacompile.compile(later, isolate_recompiles=True, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    finally:
        gc.callbacks[:] = kept
    assert len(dynacompile.cache_entries(compiled)) == 1


def test_an_error_that_recurs_is_still_the_programs():
    """A construct that fails on fakes each time breaks the graph, as before."""
    case = interrupts.refused()
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        assert interrupts.same(case.eager(), case.run())
    finally:
        end()
    assert not [e for e in events if isinstance(e, FrameSkipped)]
