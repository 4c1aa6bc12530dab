"""What lives no longer than in eager: objects that the program drops, and what capture itself holds on to."""

from __future__ import annotations

import gc
import weakref

import torch

import dynacompile
from dynacompile.capture.values.base import Value
from dynacompile.cpython.instructions import Instr


def test_what_python_drops_ends_after_a_break():
    """Neither the call of a resume function nor capture keeps what the frame before the break would have dropped."""

    class Held:
        pass

    ends = []

    @dynacompile.disable
    def made():
        held = Held()
        weakref.finalize(held, ends.append, "held")
        return held

    def program(x):
        held = made()
        y = x * 2
        dynacompile.graph_break()
        y = y + 1
        del held
        dynacompile.graph_break()
        ends.append("after")
        return y

    dynacompile.compile(program, backend="eager")(torch.ones(2))
    assert ends == ["held", "after"]


def test_a_generator_in_a_variable_ends_with_its_frame():
    """Though nothing reads the variable any more: the block that the generator stopped in runs when eager would run it."""
    said = []
    note = dynacompile.disable(said.append)

    def steps(x):
        yield x
        try:
            note("inside")
            yield x + 1
        finally:
            said.append("end")

    def program(x):
        made = steps(x)
        y = next(made) + next(made)
        note("after")
        y = y * 2
        note("last")
        return y

    compiled = dynacompile.compile(program, backend="eager")
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert said == ["inside", "after", "last", "end"] * 2


def test_memory_of_tensors_ends_after_a_break():
    """A tensor that the rest of the frame does not use is freed when it would be in eager, or before."""
    seen = []

    @dynacompile.disable
    def note(reference):
        seen.append(reference() is None)

    def program(x):
        big = x * 2
        reference = weakref.ref(big)
        dynacompile.graph_break()
        y = big + 1
        del big
        note(reference)
        return y

    compiled = dynacompile.compile(program, backend="eager")
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert seen == [True, True]


def test_captures_with_symbols_keep_no_objects():
    """torch's caches keep symbols, of captures that are long over: these have let go of the globals, and of what they read from code."""

    def once() -> weakref.ref[torch.nn.Module]:
        model = torch.nn.Linear(3, 3)
        names = {"model": model}
        exec("def program(x, n):\n    return model(x * n) + x.shape[0]", names)
        compiled = dynacompile.compile(names["program"], backend="eager", isolate_recompiles=True)
        for size in (2, 3, 5):
            compiled(torch.ones(size, 3), size + 1)
        return weakref.ref(model)

    once()
    dynacompile.reset()
    gc.collect()
    before = sum(isinstance(value, (Instr, Value)) for value in gc.get_objects())
    models = [once() for _ in range(4)]
    dynacompile.reset()
    gc.collect()
    assert [model() for model in models] == [None] * 4
    kept = sum(isinstance(value, (Instr, Value)) for value in gc.get_objects())
    assert kept <= before
