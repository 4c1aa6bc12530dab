"""Long CPU programs and ops let other threads run Python; short ones keep the GIL. Turns of another thread are counted."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import dynacompile
from tests.forked import TORCH, run


@contextmanager
def turns() -> Iterator[list[int]]:
    """Counts how often another thread gets the GIL. Nobody is made to hand it on: it is got where somebody lets go of it."""
    count, stop, started = [0], threading.Event(), threading.Event()

    def turn() -> None:
        while not stop.is_set():
            count[0] += 1
            started.set()
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=turn)
    thread.start()
    started.wait()
    sys.setswitchinterval(1000)
    try:
        yield count
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()


def turns_during(call: Callable[..., Any], *args: Any) -> list[int]:
    """During each of several calls."""
    found = []
    with turns() as count:
        for _ in range(8):
            before = count[0]
            call(*args)
            found.append(count[0] - before)
    return found


def pointwise(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.sin(x) * 1.1 + torch.erf(x)
    return x


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x + 1)


compile_static = {"isolate_recompiles": True, "dynamic": False}
compile_dynamic = {"isolate_recompiles": True, "dynamic": True}


@pytest.mark.parametrize(
    ("function", "shape", "options"),
    [(pointwise, (1 << 20,), compile_static), (pointwise, (1 << 20,), compile_dynamic), (product, (1200, 1200), compile_static)],
    ids=["pointwise", "pointwise-dynamic", "product"],
)
def test_another_thread_runs_beside_a_long_call(function, shape, options):
    compiled, x = dynacompile.compile(function, **options), torch.randn(shape) / 20
    compiled(x)
    assert max(turns_during(compiled, x)) > 0


@pytest.mark.parametrize("options", [compile_static, compile_dynamic], ids=["static", "dynamic"])
def test_a_short_call_keeps_the_gil(options):
    compiled, x = dynacompile.compile(pointwise, **options), torch.randn(64)
    compiled(x)
    assert min(turns_during(compiled, x)) == 0


def test_a_small_product_keeps_the_gil():
    compiled, x = dynacompile.compile(product, **compile_static), torch.randn(8, 8)
    compiled(x)
    assert min(turns_during(compiled, x)) == 0


def test_one_program_on_several_threads():
    """Each run has memory of its own; inputs that others replace meanwhile stay as they were."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    compiled, wrong = dynacompile.compile(model, isolate_recompiles=True), []
    inputs = [torch.randn(256, 256) for _ in range(4)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        compiled(inputs[0])
    stop = threading.Event()

    def run(index: int) -> None:
        with torch.no_grad():
            for _ in range(30):
                if not torch.allclose(compiled(inputs[index]), expected[index], atol=1e-5):
                    wrong.append(index)

    def replace() -> None:
        while not stop.is_set():
            model[0].weight = torch.nn.Parameter(model[0].weight.detach().clone())
            time.sleep(0)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    replacer = threading.Thread(target=replace)
    for thread in (*threads, replacer):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    replacer.join()
    assert not wrong


def test_an_input_that_its_owner_drops_during_the_call():
    """A graph's input that only a module held, replaced by what the call itself runs."""

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(4.0))

    holder = Holder()

    def backend(graph, inputs):
        def run(*args):
            holder.table = torch.zeros(4)
            junk = [torch.full((4,), 7.0) for _ in range(64)]
            return graph.forward(*args) if junk else None

        return run

    def program(x):
        return x + holder.table

    compiled = dynacompile.compile(program, backend=backend, isolate_recompiles=True)
    for _ in range(3):
        holder.table = torch.arange(4.0)
        assert torch.equal(compiled(torch.zeros(4)), torch.arange(4.0))


def test_daemon_threads_inside_of_regions_when_the_process_ends():
    """CPython ends them by unwinding their stacks, through frames of ours. (Inside of operations torch aborts the process then, in eager too.)"""
    program = """
import threading, time, torch, dynacompile
inside = []
@dynacompile.disable
def wait():
    inside.append(1)
    while True:
        time.sleep(0.001)
def work(x):
    y = x + 1
    wait()
    return y
compiled = dynacompile.compile(work, backend="eager", isolate_recompiles=True)
for _ in range(3):
    threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True).start()
while len(inside) < 3:
    time.sleep(0.01)
print("end")
"""
    for _ in range(3):
        done = run(TORCH, "-c", program)
        assert done.returncode == 0 and done.stdout == "end\n", (done.returncode, done.stderr[-2000:])
