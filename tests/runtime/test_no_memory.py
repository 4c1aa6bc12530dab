"""CPython's own allocations that fail during a call: MemoryError or the right result, and the next call is right."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

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
