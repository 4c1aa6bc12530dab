"""Threads that compile at once: what they wait for, what they never wait for, and what they see of each other's compiles."""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped
from tests.fuzz.interrupts import compiled, source

LONG = 60.0


@pytest.fixture
def events():
    found = []
    end = dynacompile.subscribe(found.append)
    yield found
    end()


def in_thread(run):
    """Starts a thread; gives a function that waits for its end and gives what `run` gave."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return lambda: future.result(LONG)


def test_a_backend_joins_a_thread_that_misses_the_same_frame(events):
    """The other call runs as Python, rather than wait for a compile that waits for it."""
    results = []

    def backend(graph, inputs):
        results.append(in_thread(lambda: c(torch.ones(3)))())
        return graph.forward

    c = compiled(source("def f(x):\n    return x * 2 + 1"), backend=backend)
    assert c(torch.ones(3)).tolist() == [3, 3, 3]
    assert [r.tolist() for r in results] == [[3, 3, 3]]
    assert [e for e in events if isinstance(e, FrameSkipped) and "being-compiled" in e.reason]
    assert len(dynacompile.cache_entries(c)) == 1


def test_a_subscriber_joins_a_thread_that_compiles_another_frame():
    other = compiled(source("def f(x):\n    return x.sin()"))
    joined = []

    def subscriber(event):
        if isinstance(event, Compiled) and not joined:
            joined.append(True)
            joined.append(in_thread(lambda: other(torch.zeros(2)).tolist())())

    end = dynacompile.subscribe(subscriber)
    try:
        compiled(source("def f(x):\n    return x.cos()"))(torch.zeros(2))
    finally:
        end()
    assert joined == [True, [0, 0]]


def test_buckets_are_shown_while_another_thread_compiles():
    inside, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        inside.set()
        assert go_on.wait(LONG)
        return graph.forward

    c = compiled(source("def f(x):\n    return x * 2"), backend=backend)
    wait = in_thread(lambda: c(torch.ones(2)))
    assert inside.wait(LONG)
    try:
        assert dynacompile.cache_entries(c) == ()
        dynacompile.reset()
        assert compiled(source("def f(x):\n    return x * 3"))(torch.ones(2)).tolist() == [3, 3]
    finally:
        go_on.set()
    assert wait().tolist() == [2, 2]


def test_threads_that_miss_one_frame_share_its_entry(events):
    c = compiled(source("def f(x):\n    y = x\n    for n in range(40):\n        y = y.sin() + n\n    return y"), backend="aot_eager")
    start = threading.Barrier(4)

    def call():
        start.wait(LONG)
        return c(torch.ones(3))

    with ThreadPoolExecutor(4) as pool:
        results = [f.result(LONG) for f in [pool.submit(call) for _ in range(4)]]
    assert all(torch.equal(r, results[0]) for r in results)
    assert len(dynacompile.cache_entries(c)) == 1
    assert sum(isinstance(e, Compiled) for e in events) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_threads_compile_different_frames_at_once(backend):
    """With symbols, modes, gradients: each gives what eager gives."""
    texts = [f"def f(x, k):\n    with torch.no_grad():\n        z = x * {n}\n    return ((x * k).sin() * {n} + z).sum()" for n in range(1, 13)]

    def work(text):
        fn = source(text)
        c = compiled(fn, backend=backend)
        for size in (3, 4, 5):
            x = torch.arange(size, dtype=torch.float32).requires_grad_()
            (found,), (wanted,) = torch.autograd.grad(c(x, size), x), torch.autograd.grad(fn(x, size), x)
            assert torch.allclose(found, wanted)
        return True

    before = (torch.is_grad_enabled(), gc.isenabled(), list(warnings.filters))
    with ThreadPoolExecutor(4) as pool:
        assert all(f.result(LONG) for f in [pool.submit(work, text) for text in texts])
    assert (torch.is_grad_enabled(), gc.isenabled(), list(warnings.filters)) == before


def test_a_compile_is_invisible_to_other_threads():
    """Collections of garbage go on, warnings are heard, torch has what it had."""
    seen = []

    def backend(graph, inputs):
        def look():
            cycle = type("Cycle", (), {})()
            cycle.itself = cycle
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                warnings.warn("heard", UserWarning, stacklevel=1)
            seen.append((gc.isenabled(), len(heard), torch.is_grad_enabled(), type(torch.ones(2) + 1), "torch._dynamo" in sys.modules))

        in_thread(look)()
        return graph.forward

    loaded = "torch._dynamo" in sys.modules
    compiled(source("def f(x):\n    return x * 2"), backend=backend)(torch.ones(2))
    assert seen == [(True, 1, True, torch.Tensor, loaded)]


def test_finalizers_in_the_midst_of_a_compile_see_real_tensors():
    """Garbage of the program that a compile's allocations have collected."""
    seen = []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append((type(torch.ones(2) * 2), torch.is_grad_enabled()))

    fn = source("def f(x):\n    with torch.no_grad():\n        for n in range(200):\n            x = x.sin() + n\n    return x")
    threshold = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        end = dynacompile.subscribe(lambda event: [Cycle() for _ in range(5)] and None)
        c = compiled(fn, backend="aot_eager")
        for _ in range(30):
            Cycle()
        assert torch.allclose(c(torch.ones(2)), fn(torch.ones(2)))
        end()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert set(seen) == {(torch.Tensor, True)}


def test_a_backward_is_compiled_once_by_threads_that_need_it():
    stages = []
    c = compiled(source("def f(x):\n    return (x.sin() * 2).sum()"), backend="default", options={"reference": True})
    x = torch.ones(3, requires_grad=True)
    results = [c(x) for _ in range(3)]
    end = dynacompile.subscribe(lambda event: stages.append(event) or time.sleep(0.01))
    try:
        with ThreadPoolExecutor(3) as pool:
            grads = [f.result(LONG)[0] for f in [pool.submit(torch.autograd.grad, r, x) for r in results]]
    finally:
        end()
    assert all(torch.allclose(g, 2 * torch.cos(torch.ones(3))) for g in grads)
    assert sum(getattr(e, "stage", "") == "link" for e in stages) == 1


def test_equal_code_of_different_functions_is_told_apart():
    one, two = (compiled(source("def f(x):\n    return x * 2")) for _ in range(2))
    for c in (one, two):
        c(torch.ones(2))
    assert [len(dynacompile.cache_entries(c)) for c in (one, two)] == [1, 1]
    dynacompile.reset()
    assert [len(dynacompile.cache_entries(c)) for c in (one, two)] == [0, 0]
