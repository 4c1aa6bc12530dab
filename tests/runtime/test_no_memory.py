"""Allocations that fail, CPython's own and those of the core: MemoryError or the right result, and the next call is right."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from tests.fuzz import allocations

PROGRAM = """
import sys, _testcapi, torch, dynacompile
def program(x, factor, *more, scale=2):
    y = torch.sin(x) * factor + scale
    {cut}
    return y, y.sum(0), more
x = torch.ones(3, 4)
compiled = dynacompile.compile(program, isolate_recompiles=True, dynamic=False, backend="eager")
expected = program(x, 2.0, 1)
for _ in range(3):
    compiled(x, 2.0, 1)
failed = 0
for n in range(1, 120):
    _testcapi.set_nomemory(n, n + 1)
    try:
        result = compiled(x, 2.0, 1)
        _testcapi.remove_mem_hooks()
    except (MemoryError, RuntimeError):  # torch has an error of its own
        _testcapi.remove_mem_hooks()
        failed += 1
        result = expected
    assert torch.equal(result[0], expected[0]) and torch.equal(result[1], expected[1]) and result[2] == (1,), n
    again = compiled(x, 2.0, 1)
    assert torch.equal(again[0], expected[0]), n
print("failed", failed)
"""


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this CPython has no _testcapi")
@pytest.mark.parametrize("cut", ["", "dynacompile.graph_break()"], ids=["whole", "with-a-break"])
def test_each_allocation_of_a_hit(cut):
    program = PROGRAM.format(cut=cut)
    run = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0 and int(run.stdout.split()[1]) > 3, (run.stdout, run.stderr[-2500:])


COMPILES = """
import gc, os, signal, sys, torch, dynacompile
from tests.fuzz.allocations import LIBRARY, Failing, collects
from tests.fuzz.interrupts import torch_state
def backend(graph, inputs):
    {midst}
    return graph.forward
def handled(number, frame):
    pass
signal.signal(signal.SIGUSR1, handled)
def program(x, y):
    def inner(x):
        return x.sin()
    return inner(x) + y
x, failing, failed = torch.ones(3), Failing(os.environ[LIBRARY]), 0
dynacompile.compile(program, backend=backend, isolate_recompiles=True)(x, x)
before = torch_state()
gc.freeze()  # so that collections look at what came since
for number in range(40):
    for onward in (False, True):
        count = sys.getrefcount(x)
        result, raised = failing.run(lambda: dynacompile.compile(program, backend=backend, isolate_recompiles=True)(x, x), number, onward=onward)
        failed += bool(failing.failed)
        assert raised.startswith("MemoryError") or (not raised and torch.equal(result, program(x, x))), raised
        del result
        assert collects(), (number, onward)
        assert torch_state() == before and sys.getrefcount(x) == count, (number, onward, sys.getrefcount(x), count)
print("failed", failed)
"""
MIDST = {
    "a-collection": "gc.collect()",
    "a-signal": "os.kill(os.getpid(), signal.SIGUSR1)",
    "a-dispatch-mode": "torch.fx.experimental.proxy_tensor.make_fx(graph, tracing_mode='fake')(*inputs)",
}


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="it builds a library")
@pytest.mark.parametrize("midst", MIDST.values(), ids=MIDST)
def test_allocations_of_the_core_in_the_midst_of_a_compile(tmp_path, midst):
    library = str(allocations.build(tmp_path))
    program = COMPILES.format(midst=midst)
    env = dict(os.environ, LD_PRELOAD=library, PYTHONPATH=str(allocations.ROOT), **{allocations.LIBRARY: library})
    run = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", program], capture_output=True, text=True, env=env)
    assert run.returncode == 0 and int(run.stdout.split()[1]) > 10, (run.stdout, run.stderr[-2500:])
