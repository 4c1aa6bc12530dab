"""Frames met, replaced, left alone; errors, closures, generators, recursion, threads."""

from __future__ import annotations

import sys
import threading
import traceback

import pytest

from dynacompile import native
from tests.frame.running import Compiler, first_argument_is, region


def callee(x):
    return x


def test_a_hit_runs_the_replacement():
    def original(a, b=2):
        return a + b

    def replacement(a, b=2):
        return a * 100 + b

    compiler = Compiler({original.__code__: replacement.__code__})
    run = region(original, compiler)
    assert [run(1), run(1, 3), run(b=4, a=5)] == [102, 103, 504]
    assert compiler.asked == ["original"]
    ((bucket, entry),) = native.core().entries(original.__code__)
    assert (bucket, entry.hits) == (-1, 3)
    assert original(1) == 3  # outside a region nothing changes


def test_every_kind_of_parameter():
    def original(a, /, b, *rest, c, d=4, **more):
        return None

    def replacement(a, /, b, *rest, c, d=4, **more):
        def cells():
            return a, b, rest, c, d, more

        return cells()

    run = region(original, Compiler({original.__code__: replacement.__code__}))
    for _ in range(3):
        assert run(1, 2, 3, 4, c=5, e=6) == (1, 2, (3, 4), 5, 4, {"e": 6})


def test_closures_follow_the_function():
    def make(n):
        def original(a):
            return a + n

        def replacement(a):
            unrelated = 10
            return (lambda: a + n * unrelated)()

        return original, replacement

    (first, replacement), (second, _) = make(1), make(2)
    compiler = Compiler({first.__code__: replacement.__code__})
    assert [region(first, compiler)(5), region(second, compiler)(5), region(first, compiler)(5)] == [15, 25, 15]
    assert compiler.asked == ["original", "<lambda>"]


def test_a_guard_that_fails_asks_again_and_entries_move_to_the_front():
    def original(a):
        return "python"

    def as_int(a):
        return "int"

    def as_str(a):
        return "str"

    def on_miss(frame, state):
        value = frame.slots[0]
        chosen = {int: as_int, str: as_str}.get(type(value))
        return native.core().Entry(chosen.__code__.replace(), first_argument_is(type(value)), type(value).__name__) if chosen else native.core().RUN_ONCE

    run = region(original, on_miss)
    assert [run(1), run("x"), run(2), run(1.0), run("y")] == ["int", "str", "int", "python", "str"]
    assert [entry.info for _, entry in native.core().entries(original.__code__)] == ["str", "int"]


def test_callees_meet_the_hook_and_skipped_code_is_not_asked_again():
    def outer(x):
        return middle(x) + 1

    def middle(x):
        return callee(x)

    def ten(x):
        return 10

    compiler = Compiler({callee.__code__: ten.__code__})
    run = region(outer, compiler)
    assert [run(1), run(1)] == [11, 11]
    assert compiler.asked == ["outer", "middle", "callee"]
    native.core().reset_code(callee.__code__)


def test_skip_recursive_turns_the_hook_off_below():
    def outer(x):
        return callee(x)

    asked = []

    def on_miss(frame, state):
        asked.append(frame.code.co_name)
        return native.core().SKIP_RECURSIVE

    run = region(outer, on_miss)
    assert [run(1), run(2)] == [1, 2]
    assert asked == ["outer"]


def test_whole_entries_turn_the_hook_off():
    def original(x):
        return None

    def replacement(x):
        return callee(x)

    for whole, wanted in ((True, ["original"]), (False, ["original", "callee"])):
        native.core().reset_code(original.__code__)
        native.core().reset_code(callee.__code__)
        compiler = Compiler({original.__code__: replacement.__code__}, whole=whole)
        run = region(original, compiler)
        assert [run(1), run(2)] == [1, 2]
        assert compiler.asked == wanted


def test_run_once_remembers_nothing():
    def original(x):
        return x

    asked = []

    def on_miss(frame, state):
        asked.append(frame.slots)
        return native.core().RUN_ONCE

    run = region(original, on_miss)
    assert [run(1), run(2)] == [1, 2]
    assert asked == [(1,), (2,)]


def test_callback_errors_reach_the_caller_and_leave_nothing_behind():
    class Refused(Exception):
        pass

    def original(x, *rest, k=1):
        return x

    def on_miss(frame, state):
        raise Refused

    run = region(original, on_miss)
    argument = object()
    before = sys.getrefcount(argument)
    for _ in range(50):
        with pytest.raises(Refused):
            run(argument, argument, k=argument)
    assert sys.getrefcount(argument) == before
    assert native.core().current_region() is None


def test_errors_in_replaced_code_keep_their_traceback():
    def original(x):
        return x

    def replacement(x):
        raise ValueError(x)

    run = region(original, Compiler({original.__code__: replacement.__code__}))
    for _ in range(3):
        with pytest.raises(ValueError, match="7") as caught:
            run(7)
        assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][-1] == "replacement"
    assert native.core().current_region() is None


def test_wrong_answers_are_named():
    def original(x):
        return x

    with pytest.raises(TypeError, match="must return an Entry"):
        region(original, lambda frame, state: None)(1)

    def other_parameters(x, y):
        return x

    with pytest.raises(ValueError, match="other parameters"):
        region(original, Compiler({original.__code__: other_parameters.__code__}))(1)

    def generator(x):
        yield x

    with pytest.raises(ValueError, match="is a generator"):
        region(original, Compiler({original.__code__: generator.__code__}))(1)


def test_the_proxy_shows_the_frame_and_ends():
    n = 3

    def original(a, *rest, k=5, **more):
        local = n
        return local

    seen = []

    def on_miss(frame, state):
        seen.append(frame)
        assert frame.code is original.__code__ and frame.function is original
        assert frame.globals is globals() and frame.builtins["len"] is len
        assert frame.slots[:4] == (1, 7, (2,), {"z": 4})
        assert frame.slots[4] is native.core().NULL
        assert frame.closure[0].cell_contents == 3
        assert frame.entries == () and frame.limit_reached == ""
        return native.core().SKIP

    assert region(original, on_miss)(1, 2, k=7, z=4) == 3
    with pytest.raises(RuntimeError, match="only during the callback"):
        _ = seen[0].code


def test_frames_met_while_compiling_run_plainly():
    def original(x):
        return x

    def replacement(x):
        return 9

    inner = Compiler({original.__code__: replacement.__code__})
    run_inner = region(original, inner, bucket=5, fallback=False)

    def outer(x):
        return x

    def on_miss(frame, state):
        assert native.core().is_compiling_frame()
        assert run_inner(1) == 1
        return native.core().SKIP

    region(outer, on_miss)(1)
    assert inner.asked == [] and not native.core().is_compiling_frame()
    assert run_inner(1) == 9


def test_generators_coroutines_and_class_bodies_are_left_to_python():
    def numbers(n):
        for i in range(n):
            yield callee(i)

    async def coroutine(x):
        return callee(x)

    def body(x):
        class Inner:
            value = x

        return list(numbers(x)), Inner.value, [i + 0 for i in range(x)]

    compiler = Compiler()
    assert region(body, compiler)(3) == ([0, 1, 2], 3, [0, 1, 2])
    assert "numbers" not in compiler.asked and "Inner" not in compiler.asked
    call = region(coroutine, Compiler())(4)
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == 4
    suspended = region(numbers, Compiler())(2)
    assert list(suspended) == [0, 1]  # resumed outside the region


def test_recursion_and_deep_stacks():
    namespace = {}
    wide = "".join(f"    v{i} = n\n" for i in range(400))
    exec(f"def wide(n, *rest, key=0):\n{wide}    return v399, rest, key\n", namespace)

    def original(n, *rest, key=0):
        return None

    run = region(original, Compiler({original.__code__: namespace["wide"].__code__}))

    def descend(depth):
        assert run(depth, 1, 2, key=3) == (depth, (1, 2), 3)
        return descend(depth - 1) if depth else run

    assert descend(200) is run

    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    assert region(count, Compiler())(300) == 300
    with pytest.raises(RecursionError):
        region(count, Compiler())(10**6)


def test_threads_have_regions_of_their_own():
    def original(x):
        return 0

    def replacement(x):
        return x * 2

    run = region(original, Compiler({original.__code__: replacement.__code__}))
    wrong = []

    def inside():
        wrong.extend(i for i in range(2000) if run(i) != i * 2)

    def outside():
        wrong.extend(i for i in range(2000) if original(i) != 0)

    threads = [threading.Thread(target=t) for t in (inside, outside, inside, outside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert native.core().current_region() is None


def test_tracing_and_profiling_go_on():
    def original(x):
        return x

    def replacement(x):
        return x + 1

    run = region(original, Compiler({original.__code__: replacement.__code__}))
    run(1)
    events = []
    sys.setprofile(lambda frame, event, arg: events.append((event, frame.f_code.co_name)))
    try:
        assert run(1) == 2
    finally:
        sys.setprofile(None)
    assert ("call", "replacement") in events and ("return", "replacement") in events


def test_what_watches_the_program_is_no_part_of_it():
    """Audit hooks, which stay for the life of the process and come with libraries, and profilers: with what they call, they run plainly."""
    seen, watching = [], []

    def watched(event):
        seen.append(event)

    def audit(event, arguments):
        if watching and event.startswith("dynacompile"):
            watched(event)

    def profile(frame, event, argument):
        if event == "call":
            watched(frame.f_code.co_name)

    def inner(x):
        return x

    def original():
        sys.audit("dynacompile.test")
        return inner(1)

    sys.addaudithook(audit)
    watching.append(True)
    compiler = Compiler({})
    run = region(original, compiler)
    try:
        assert run() == 1 and seen == ["dynacompile.test"]
        sys.setprofile(profile)
        assert run() == 1
    finally:
        sys.setprofile(None)
        watching.clear()
    assert compiler.asked == ["original", "inner"] and {"original", "inner"} < set(seen)


def test_the_region_is_seen_inside_and_restored():
    seen = []

    def inner(x):
        seen.append(native.core().current_region())
        return x

    def outer(x):
        seen.append(native.core().current_region())
        run_inner(x)
        seen.append(native.core().current_region())
        with pytest.raises(ZeroDivisionError):
            run_failing(x)
        seen.append(native.core().current_region())
        run_off(x)
        seen.append(native.core().current_region())
        return x

    def failing(x):
        return x / 0

    run_inner, run_failing = region(inner, Compiler(), name="inner"), region(failing, Compiler(), name="failing")
    run_off = native.core().Region(inner)
    run = region(outer, Compiler(), name="outer")
    run(1)
    assert [state and state.name for state in seen] == ["outer", "inner", "outer", "outer", None, "outer"]
