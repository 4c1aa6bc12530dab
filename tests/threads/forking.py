"""python -m tests.threads.forking NAME [SCENARIO]: one of the checks of test_forks, in a process of its own that sees no CUDA device.

torch refuses a backward in a child of a process that sees a device and in which any backward has run, or was traced by a compile.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading
import time

import torch

from tests.fuzz import forks
from tests.fuzz.interrupts import Case, compiled, places_of, source


def forks_spread_over_a_compile(name):
    count = places_of(name)
    for turn in range(4):
        place = 1 + (turn * 2654435761 + 31) % count
        told = forks.check(name, place)
        assert not told, f"place {place}: {told}"


def a_fork_while_a_backend_runs_on_another_thread():
    inside, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        inside.set()
        assert go_on.wait(60)
        return graph.forward

    fn = source("def f(x):\n    return x * 2")
    c, x = compiled(fn, backend=backend), torch.ones(2)
    thread = threading.Thread(target=c, args=(x,))
    thread.start()
    assert inside.wait(60)
    go_on_in_child = Case(lambda: (go_on.set(), c(x))[1], lambda: fn(x), c)
    told = forks.forked(go_on_in_child)
    go_on.set()
    thread.join()
    assert not told, told


def a_fork_while_a_compile_imports():
    """A child needs the module whose import another thread of its parent had begun in a compile."""
    begun = threading.Event()

    class Slow:
        def find_spec(self, name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, self) if name == "slowly_imported" else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            begun.set()
            time.sleep(0.3)

    sys.meta_path.insert(0, Slow())

    def imports(graph, inputs):
        importlib.import_module("slowly_imported")
        return graph.forward

    fn = source("def f(x):\n    return x * 2")
    c, x = compiled(fn, backend=imports), torch.ones(2)
    thread = threading.Thread(target=c, args=(x,))
    thread.start()
    assert begun.wait(60)
    told = forks.forked(Case(lambda: fn(x), lambda: compiled(fn, backend=imports)(x), c))
    thread.join()
    assert not told, told


def a_backend_forks():
    """The child goes on with the compile, as the parent does."""
    children = []

    def backend(graph, inputs):
        children.append(os.fork())
        return graph.forward

    c = compiled(source("def f(x):\n    return x * 2"), backend=backend)
    result = None
    try:
        result = c(torch.ones(2))
    finally:
        if children == [0]:
            os._exit(0 if result is not None and result.tolist() == [2, 2] and c(torch.ones(2)).tolist() == [2, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def a_backward_whose_kernels_were_being_built_at_the_fork():
    fn = source("def f(x):\n    return (x.sin() * 2.125).sum()")
    c, x = compiled(fn, backend="default"), torch.ones(5, requires_grad=True)
    loss = c(x)
    case = Case(lambda: torch.autograd.grad(loss, x), lambda: torch.autograd.grad(fn(x), x), c)
    told = forks.forked(case)
    assert not told, told
    assert torch.allclose(torch.autograd.grad(loss, x)[0], torch.autograd.grad(fn(x), x)[0])


CHECKS = {
    check.__name__: check
    for check in (
        forks_spread_over_a_compile,
        a_fork_while_a_backend_runs_on_another_thread,
        a_fork_while_a_compile_imports,
        a_backend_forks,
        a_backward_whose_kernels_were_being_built_at_the_fork,
    )
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
