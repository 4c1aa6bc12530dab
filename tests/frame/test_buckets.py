"""Buckets: isolation, fallback, limits, and how long entries live."""

from __future__ import annotations

import gc
import weakref

import pytest

from dynacompile import native
from tests.frame.running import Compiler, always, first_argument_is, region


def make():
    """A function with a code object of its own."""
    namespace = {}
    exec("def original(x):\n    return 'python'\n", namespace)
    return namespace["original"]


def answer(text):
    namespace = {}
    exec(f"def replacement(x):\n    return {text!r}\n", namespace)
    return namespace["replacement"].__code__


def buckets(code):
    return [bucket for bucket, _ in native.core().entries(code)]


def test_isolated_buckets_do_not_share():
    function = make()
    regions = [region(function, Compiler({function.__code__: answer(f"bucket {b}")}), bucket=b, fallback=False) for b in (7, 3, 5)]
    assert [run(1) for run in regions * 2] == ["bucket 7", "bucket 3", "bucket 5"] * 2
    assert buckets(function.__code__) == [3, 5, 7]
    native.core().remove_bucket(function.__code__, 3)
    assert buckets(function.__code__) == [5, 7]
    native.core().remove_bucket(None, 5)
    assert buckets(function.__code__) == [7]


def test_fallback_reads_the_default_bucket_and_writes_its_own():
    function = make()
    shared = region(function, Compiler({function.__code__: answer("shared")}, guards=lambda: first_argument_is(int)))
    own = region(function, Compiler({function.__code__: answer("own")}), bucket=11)
    alone = region(function, Compiler({function.__code__: answer("alone")}), bucket=12, fallback=False)
    assert [shared(1), own(1), own("x"), own(1), alone(1)] == ["shared", "shared", "own", "own", "alone"]
    assert buckets(function.__code__) == [-1, 11, 12]


def test_at_its_limit_one_region_alone_runs_eagerly():
    function = make()
    asked = []

    def on_miss(frame, state):
        asked.append((type(frame.slots[0]).__name__, frame.limit_reached, len(frame.entries)))
        if frame.limit_reached:
            return native.core().RUN_ONCE
        return native.core().Entry(answer(asked[-1][0]), first_argument_is(type(frame.slots[0])))

    small = region(function, on_miss, bucket=21, limit=2, fallback=False)
    large = region(function, on_miss, bucket=22, limit=9, fallback=False)
    values = (1, "a", 2.0, b"", 3, None)
    assert [small(v) for v in values] == ["int", "str", "python", "python", "int", "python"]
    assert asked == [("int", "", 0), ("str", "", 1), ("float", "recompile_limit", 2)]
    assert [large(v) for v in values] == ["int", "str", "float", "bytes", "int", "NoneType"]
    native.core().reset_code(function.__code__)
    assert [small(2.0), small(b"")] == ["float", "bytes"]


def test_accumulated_limit():
    function = make()
    seen = []

    def on_miss(frame, state):
        seen.append(frame.limit_reached)
        return native.core().RUN_ONCE if frame.limit_reached else native.core().Entry(answer("new"), always())

    regions = [region(function, on_miss, bucket=b, fallback=False, accumulated_limit=2) for b in (31, 32, 33)]
    assert [run(1) for run in regions] == ["new", "new", "python"]
    assert seen == ["", "", "accumulated_recompile_limit"]


def test_entries_of_an_isolated_bucket_die_with_its_last_region():
    function = make()
    first, second = (region(function, Compiler({function.__code__: answer("x")}), bucket=41) for _ in range(2))
    first(1)
    assert buckets(function.__code__) == [41]
    del first
    gc.collect()
    assert buckets(function.__code__) == [41]
    del second
    gc.collect()
    assert buckets(function.__code__) == []


def test_regions_and_functions_are_collected():
    class Marker:
        pass

    def build():
        function = make()
        marker = Marker()
        function.marker = marker
        run = region(function, Compiler({function.__code__: answer("x")}), owner=marker)
        marker.cycle = run
        run(1)
        return weakref.ref(marker), weakref.ref(run), weakref.ref(function.__code__)

    gone = build()
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_skip_rules(tmp_path):
    core = native.core()
    compiler = Compiler()

    def function_in(path):
        namespace = {}
        exec(compile("def f(x):\n    return g(x)\ndef g(x):\n    return x\n", path, "exec"), namespace)
        return namespace["f"]

    core.add_skip_prefix("/somewhere/skipped")
    core.add_skip_prefix("/somewhere/skipped/kept_off", recursive=True)
    for path, wanted in (
        ("/somewhere/skipped/a.py", []),
        ("/somewhere/skipped.py", ["f", "g"]),
        ("/somewhere/skipped_too/a.py", ["f", "g"]),
        ("/somewhere/else.py", ["f", "g"]),
        ("/somewhere/skipped/kept_off/a.py", []),
    ):
        compiler.asked.clear()
        assert region(function_in(path), compiler)(1) == 1
        assert compiler.asked == wanted, path
    with pytest.raises(ValueError, match="empty"):
        core.add_skip_prefix("")


def test_skip_code_is_not_met():
    function = make()
    native.core().skip_code(function.__code__)
    compiler = Compiler({function.__code__: answer("x")})
    assert region(function, compiler)(1) == "python" and compiler.asked == []
    native.core().reset_code(function.__code__)
    assert region(function, compiler)(1) == "x"


def test_bad_options_are_named():
    core = native.core()
    with pytest.raises(ValueError, match="bucket must be -1 or more"):
        core.RegionState(-2)
    with pytest.raises(ValueError, match="limit"):
        core.RegionState(1, limit=0)
    with pytest.raises(TypeError, match="two callables and a RegionState"):
        core.Region(make(), lambda frame, state: None, None)
    with pytest.raises(TypeError, match="GuardProgram"):
        core.Entry(make().__code__, None)
