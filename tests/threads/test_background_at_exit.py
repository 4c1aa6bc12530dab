"""How processes end, and fork, while compiles run in the background."""

from __future__ import annotations

import time

import pytest

from tests import forked

OPTIONS = {"background": True, "fallback": "none"}


def run_program(text, seconds=120):
    return forked.run(forked.TORCH, "-c", text, timeout=seconds)


ENDING = """
import threading, time, sys, torch, dynacompile
begun = threading.Event()
def backend(graph, inputs):
    begun.set()
    time.sleep(100)
    return graph.forward
c = dynacompile.compile(lambda x: x + 1, backend=backend, options={"background": True})
print(c(torch.ones(1)).item())
assert begun.wait(60)
"""


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise KeyboardInterrupt"], ids=["end", "exit", "interrupt"])
def test_the_process_ends_without_waiting(ending):
    start = time.monotonic()
    ended = run_program(ENDING + ending)
    assert ended.stdout == "2.0\n" and time.monotonic() - start < 90
    assert ended.returncode == (0 if "Interrupt" not in ending else -2), ended.stderr


def test_the_process_ends_while_kernels_are_built():
    text = (
        "import torch, dynacompile, time\n"
        "c = dynacompile.compile(lambda x: (x.sin() * 3).softmax(-1), options={'background': True})\n"
        "print(c(torch.ones(3, 5)).shape)\ntime.sleep(PAUSE)\n"
    )
    for pause in (0.0, 0.0, 0.02, 0.1, 0.3, 0.5):
        ended = run_program(text.replace("PAUSE", str(pause)))
        assert ended.returncode == 0 and "Error" not in ended.stderr, ended.stderr


FORKING = """
import os, threading, torch, dynacompile
from dynacompile.background import BACKGROUND
begun, go_on = threading.Event(), threading.Event()
def backend(graph, inputs):
    begun.set()
    assert go_on.wait(60)
    return graph.forward
c = dynacompile.compile(lambda x: x + 1, backend=backend, isolate_recompiles=True, options={"background": True})
d = dynacompile.compile(lambda x: x * 2, backend="eager", isolate_recompiles=True, options={"background": True})
x = torch.ones(1)
c(x), d(x)
assert begun.wait(60)
child = os.fork()
if child == 0:  # a thread that is no more may hold the locks of these
    begun, go_on = threading.Event(), threading.Event()
go_on.set()
assert c(x).item() == 2.0 and d(x).item() == 2.0
assert c(x).item() == 2.0 and d(x).item() == 2.0
assert dynacompile.wait(60)
assert c(x).item() == 2.0 and d(x).item() == 2.0
assert len(dynacompile.cache_entries(c)) == 1 and len(dynacompile.cache_entries(d)) == 1
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_an_empty_queue_and_compiles_by_itself():
    ended = run_program(FORKING)
    assert ended.stdout == "7\n", ended.stderr
