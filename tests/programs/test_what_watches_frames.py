"""Trace functions, profile functions and tools of sys.monitoring see the frames that run after they were set, as in eager."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import dynacompile


def leaf(x):
    y = x + 1
    return y


def branch(x):
    a = leaf(x)
    return leaf(a)


def tracing(x):
    events = []

    def trace(frame, event, argument):
        events.append((event, frame.f_code.co_name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    y = branch(x)
    sys.settrace(None)
    return events, branch(y)


def profiling(x):
    events = []
    sys.setprofile(lambda frame, event, argument: events.append((event, frame.f_code.co_name)))
    y = branch(x)
    sys.setprofile(None)
    return events, branch(y)


def tracing_by_another_function(x):
    """Whose frame the trace function does not see: only those that begin later."""
    events = []

    def start():
        sys.settrace(lambda frame, event, argument: events.append((event, frame.f_code.co_name)))

    start()
    y = branch(x)
    sys.settrace(None)
    return events, y


def a_thread_that_profiles(x):
    events = []
    threading.setprofile(lambda frame, event, argument: events.append((event, frame.f_code.co_name)) if frame.f_code.co_name == "leaf" else None)
    thread = threading.Thread(target=branch, args=(x,))
    thread.start()
    thread.join()
    threading.setprofile(None)
    return events, branch(x)


def monitoring(x):
    tool, events = sys.monitoring.PROFILER_ID, []

    def begun(code, at):
        if code.co_name in ("branch", "leaf"):
            events.append(code.co_name)

    sys.monitoring.use_tool_id(tool, "test")
    sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, begun)
    sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)
    y = branch(x)
    sys.monitoring.set_events(tool, 0)
    sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, None)
    sys.monitoring.free_tool_id(tool)
    return events, branch(y)


@pytest.mark.parametrize("fn", [tracing, profiling, tracing_by_another_function, a_thread_that_profiles, *([monitoring] if hasattr(sys, "monitoring") else [])])
def test_who_begins_to_watch_in_a_region_sees_what_eager_shows(fn):
    call = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    expected = fn(3)
    assert call(3) == expected and call(3) == expected
    assert expected[0]


def test_who_watches_around_a_region_sees_its_code():
    """A profiler or coverage that is on before the call: what is compiled goes on to run, and the program is profiled as it is."""
    call, x = dynacompile.compile(branch, backend="eager", isolate_recompiles=True), torch.ones(2)
    call(x)
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(frame.f_code.co_name) if event == "call" else None)
    try:
        assert torch.equal(call(x), x + 2)
    finally:
        sys.setprofile(None)
    assert "branch" in events and "leaf" not in events


def test_breakpoints_show_the_function_itself(monkeypatch):
    """Its frame, with all its variables, and no compiled code."""
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sorted(sys._getframe(1).f_locals)))

    def program(x):
        first = x + 1  # noqa: F841
        breakpoint()
        return x * 2

    x = torch.ones(2)
    assert torch.equal(dynacompile.compile(program, backend="eager")(x), x * 2)
    assert seen == [["first", "x"]]


def test_a_compile_has_room_near_the_recursion_limit():
    def deep(n, x):
        return late(x) if n == 0 else dynacompile.disable(deep)(n - 1, x)

    def late(x):
        return [x + 1, len(x)]

    def left(depth=0):
        try:
            return left(depth + 1)
        except RecursionError:
            return depth

    def run(call, x):
        before, depth = sys.getrecursionlimit(), 0
        frame = sys._getframe()
        while frame:
            frame, depth = frame.f_back, depth + 1
        sys.setrecursionlimit(depth + 25)
        try:
            return call(x)
        finally:
            sys.setrecursionlimit(before)

    x = torch.ones(2)
    made = run(dynacompile.compile(late, backend="eager"), x)
    assert torch.equal(made[0], x + 1) and made[1] == 2
    assert left() > 100
