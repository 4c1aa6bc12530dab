"""The memory that CPU programs keep from call to call: reused when free, never while somebody holds it."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

import dynacompile
from dynacompile import native
from tests import forked

LARGE = 1 << 16  # elements: well above the size from which memory is kept


def double():
    return dynacompile.compile(lambda x: x * 2, isolate_recompiles=True, options={"reference": True})


def test_results_that_are_held_are_not_overwritten():
    fn, x = double(), torch.arange(LARGE, dtype=torch.float32)
    held = [fn(x + i) for i in range(4)]
    for i, y in enumerate(held):
        assert torch.equal(y, (x + i) * 2)
    assert len({y.data_ptr() for y in held}) == 4


def test_a_result_that_is_gone_leaves_its_memory():
    fn, x = double(), torch.ones(LARGE)
    y = fn(x)
    place = y.data_ptr()
    view = y[5:]
    del y
    assert fn(x).data_ptr() != place, "a view holds it"
    del view
    assert place in {fn(x).data_ptr() for _ in range(2)}


def test_results_can_grow_and_move():
    y = double()(torch.ones(LARGE))
    y.resize_(2 * LARGE)
    assert torch.equal(y[:LARGE], torch.full((LARGE,), 2.0))
    shared = double()(torch.ones(LARGE)).share_memory_()
    assert shared.is_shared() and shared[7] == 2


def test_reset_keeps_what_is_in_use():
    y = double()(torch.ones(LARGE))
    dynacompile.reset()
    assert torch.equal(y, torch.full((LARGE,), 2.0))


def test_threads_share_it():
    fn, wrong = double(), []
    fn(torch.ones(LARGE))

    def work(number: int) -> None:
        x = torch.full((LARGE,), float(number))
        for _ in range(50):
            if not torch.equal(fn(x), x * 2):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_programs_share_it():
    """Of sizes that differ by little, one after the other."""
    native.core().release_memory()
    first, second = double(), dynacompile.compile(lambda x: x + 1, isolate_recompiles=True, options={"reference": True})
    places = {first(torch.ones(LARGE)).data_ptr()}
    places.add(second(torch.ones(LARGE - 500)).data_ptr())
    assert len(places) == 1


def test_what_is_kept_and_what_is_in_use():
    native.core().release_memory()
    assert native.core().memory()[0] == 0
    fn, x = double(), torch.ones(LARGE)
    y = fn(x)
    used = native.core().memory()[1]
    del y
    kept, in_use = native.core().memory()
    assert kept >= 4 * LARGE and kept + in_use == used
    native.core().release_memory(3600)
    assert native.core().memory() == (kept, in_use), "it was in use a moment ago"
    native.core().release_memory()
    assert native.core().memory() == (0, in_use)


def test_idle_memory_is_freed():
    fn, x = double(), torch.ones(LARGE)
    fn(x)
    time.sleep(2.1)
    native.core().release_memory(1)
    assert native.core().memory()[0] == 0


@pytest.mark.parametrize("who", ["torch", "a-program"])
def test_where_memory_is_short_it_is_freed(who):
    """Under a limit of address space that leaves no room for what is kept and what is asked for then. What is called under it was called before: a compile
    would take address space for threads of its own, more or less of it."""
    program = """
import resource, sys, torch, dynacompile
from dynacompile import native
n = 32 * 2**20
double = dynacompile.compile(lambda x: x * 2, isolate_recompiles=True, dynamic=False)
x, large = torch.ones(n), torch.ones(3 * n // 2)
double(large)
native.core().release_memory()
y = double(x)
del y
assert native.core().memory()[0] >= 4 * n
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * n, used + 3 * n))
z = torch.empty(3 * n // 2, dtype=torch.float32) if sys.argv[1] == "torch" else double(large)
print(native.core().memory()[0], z.numel())
"""
    run = forked.run(forked.TORCH, "-W", "ignore", "-c", program, who, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert run.returncode == 0 and run.stdout.split()[0] == "0", run.stderr[-2000:]
