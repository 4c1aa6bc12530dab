"""A region holds for the Python stack that called it: greenlets switch stacks within a thread, unseen by anybody."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import greenlet
import pytest
import torch

import dynacompile
from dynacompile import native
from dynacompile.events import Compiled
from tests.frame.running import Compiler, region


def here() -> str | None:
    """The name of the region that the caller is in."""
    state = native.core().current_region()
    return None if state is None else state.name


def switch() -> None:
    greenlet.getcurrent().parent.switch()


def named(function: Callable[..., Any], name: str) -> Any:
    return region(function, Compiler(), name=name)


def steps(log: list[str | None], depth: int = 0) -> None:
    """Notes the region that it is in, before and after each of two switches, `depth` calls further in."""
    if depth:
        steps(log, depth - 1)
        log.append(here())
        return
    for _ in range(2):
        log.append(here())
        switch()
    log.append(here())


def test_the_caller_of_a_suspended_region_is_in_none():
    log: list[str | None] = []
    made = greenlet.greenlet(named(steps, "a"))
    made.switch(log)
    assert here() is None
    made.switch()
    assert here() is None
    made.switch()
    assert made.dead and here() is None and log == ["a", "a", "a"]


def test_regions_that_end_in_the_order_of_their_beginning():
    logs: list[list[str | None]] = [[], [], []]
    made = [greenlet.greenlet(named(steps, name)) for name in "abc"]
    for g, log in zip(made, logs, strict=True):
        g.switch(log)
    for _ in range(2):
        for g in made:
            g.switch()
            assert here() is None
    assert all(g.dead for g in made) and logs == [["a"] * 3, ["b"] * 3, ["c"] * 3]


def test_a_region_inside_of_a_region_and_greenlets_inside_of_both():
    log: list[str | None] = []

    def outer() -> None:
        inner = greenlet.greenlet(named(steps, "inner"))
        part: list[str | None] = []
        inner.switch(part)
        log.append(here())
        inner.switch()
        inner.switch()
        log.append(here())
        log.extend(part)

    named(outer, "outer")()
    assert here() is None and log == ["outer", "outer", "inner", "inner", "inner"]


def test_a_greenlet_that_a_region_starts_is_in_none():
    """It may outlive the region."""
    log: list[str | None] = []
    made = greenlet.greenlet(steps)
    named(lambda: made.switch(log), "a")()
    made.switch()
    made.switch()
    assert made.dead and log == [None, None, None]


def test_code_that_runs_plainly_stays_plain_after_a_switch():
    """Code that is skipped with all that it calls, suspended inside of a region, while another stack is in a region too."""
    asked = []

    def ask(frame, state):
        asked.append((state.name, frame.code.co_name))
        return native.core().SKIP_RECURSIVE if frame.code is plain.__code__ else native.core().SKIP

    def called() -> None:
        pass

    def plain() -> None:
        switch()
        called()

    def other() -> None:
        switch()
        called()

    first = greenlet.greenlet(region(plain, ask, name="first"))
    second = greenlet.greenlet(region(other, ask, name="second"))
    first.switch()
    second.switch()
    first.switch()
    assert ("first", "called") not in asked
    second.switch()
    assert ("second", "called") in asked


def test_frames_far_from_the_call_of_the_region():
    """The data stack grows by chunks, and chunks end: hundreds of frames further in, the region is the same."""
    logs: list[list[str | None]] = [[], []]
    made = [greenlet.greenlet(named(steps, name)) for name in "ab"]
    for g, log in zip(made, logs, strict=True):
        g.switch(log, 500)
    for _ in range(2):
        for g in made:
            g.switch()
    assert logs == [["a"] * 503, ["b"] * 503] and here() is None


def test_a_greenlet_that_is_dropped_inside_of_its_region():
    class Held:
        pass

    kept = []

    def body() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        switch()

    def start(name: str) -> Any:
        made = greenlet.greenlet(named(body, name))
        made.switch()
        return made

    a, b = start("a"), start("b")
    del a
    gc.collect()
    assert here() is None and kept[0]() is None
    b.switch()
    assert b.dead and here() is None


def test_a_thread_that_ends_with_a_region_suspended():
    left = []

    def work() -> None:
        log: list[str | None] = []
        left.append(greenlet.greenlet(named(steps, "a")))
        left[-1].switch(log)

    for _ in range(8):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    left.clear()
    gc.collect()
    assert here() is None


def function(factor: int) -> Callable[..., torch.Tensor]:
    """With a code object of its own."""
    namespace: dict[str, Any] = {"switch": switch}
    exec(f"def body(x):\n    y = x * {factor}\n    switch()\n    return y + {factor}\n", namespace)
    return namespace["body"]


def test_compiled_greenlets_that_interleave():
    """Each compiles what it runs before and after the switch, once; what runs meanwhile outside of regions is not compiled."""
    said: list[Compiled] = []
    remove = dynacompile.subscribe(lambda event: said.append(event) if isinstance(event, Compiled) else None)
    x = torch.ones(3)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    compiled = [dynacompile.compile(function(k), backend="eager", isolate_recompiles=True) for k in range(2, 6)]
    for round_ in range(3):
        made = [greenlet.greenlet(c) for c in compiled]
        for g in made:
            g.switch(x)
            plain(x)
        results = []
        for g in made:
            results.append(g.switch())
            plain(x)
        assert [r[0].item() for r in results] == [2 * k for k in range(2, 6)], round_
        assert len(said) == 2 * len(compiled), "a part before the switch, and a part behind it"
    assert not native.core().entries(plain.__code__)
    remove()


def test_a_compile_that_another_greenlet_waits_for():
    """A backend that switches while it compiles: the other stack is not compiling."""
    inside = []

    def backend(graph, inputs):
        switch()
        inside.append(native.core().is_compiling_frame())
        return graph.forward

    made = greenlet.greenlet(dynacompile.compile(lambda x: x + 1, backend=backend, isolate_recompiles=True))
    made.switch(torch.ones(2))
    assert not native.core().is_compiling_frame()
    result = made.switch()
    assert torch.equal(result, torch.full((2,), 2.0)) and inside == [True] and not native.core().is_compiling_frame()


def test_generators_that_are_suspended_in_a_region():
    """Their frames are not on the stack of the region: resumed elsewhere, also by another thread, they are in no region."""
    log: list[str | None] = []

    def numbers():
        while True:
            log.append(here())
            yield len(log)

    def use(made) -> int:
        return next(made)

    made = numbers()
    named(use, "a")(made)
    next(made)
    thread = threading.Thread(target=next, args=(made,))
    thread.start()
    thread.join()
    named(use, "b")(made)
    assert log == ["a", None, None, "b"]


def test_where_the_process_ends_with_a_region_suspended():
    program = """
import greenlet, torch, dynacompile
def body(x):
    greenlet.getcurrent().parent.switch()
    return x + 1
made = [greenlet.greenlet(dynacompile.compile(body, backend="eager", isolate_recompiles=True)) for _ in range(3)]
for g in made:
    g.switch(torch.ones(2))
print("end")
"""
    run = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "end\n", run.stderr[-2000:]


def test_graphs_that_switch_keep_their_own_arguments():
    """The graph of one stack runs to its end while a call of another one is under way, and the reverse; then the call of each raises, and is made again."""
    waits = True

    def pack(tensor):
        if waits:
            other.switch()
        return tensor

    def one(x, places, log):
        log.append(len(log))
        return (x.sin() * x.exp())[places]

    def two(x, places, log):
        log.append("begin")
        y = (x * 2)[places]
        log.append("middle")
        dynacompile.graph_break()
        if waits:
            first.switch()
        return (y * 2)[places]

    compiled = [dynacompile.compile(f, backend="aot_eager", isolate_recompiles=True) for f in (one, two)]
    good, bad, logs = torch.tensor([0, 1]), torch.tensor([0, 9]), ([], [])
    found = []

    def run_other():
        found.append(compiled[1](torch.ones(2), good, logs[1]))
        with pytest.raises(IndexError):
            compiled[1](torch.ones(2), bad, logs[1])

    first, other = greenlet.getcurrent(), greenlet.greenlet(run_other)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found.append(compiled[0](torch.ones(2, requires_grad=True), good, logs[0]))
    waits = False
    with pytest.raises(IndexError):
        compiled[0](torch.ones(2, requires_grad=True), bad, logs[0])
    other.switch()
    assert other.dead and len(found) == 2
    assert logs == ([0, 1], ["begin", "middle", "begin"])
