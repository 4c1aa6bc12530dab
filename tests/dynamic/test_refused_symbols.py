"""Where a stage has no symbolic form, the entry is for constants, and that is told."""

from __future__ import annotations

import math

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.events import Compiled, SymbolsRefused
from dynacompile.observe.log import line


def told(run, calls):
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        for args in calls:
            run(*args)
    finally:
        end()
    return events


def test_what_is_refused_has_its_reason():
    seen = []

    def refuses_symbols(graph, fakes):
        if any(isinstance(n, torch.SymInt) for fake in fakes for n in getattr(fake, "shape", ())):
            raise Unsupported("symbolic-shape", "a size is 3*s0, which this backend does not evaluate")
        seen.append(fakes)
        return graph.forward

    run = dynacompile.compile(lambda x: x.sin() + 1, backend=refuses_symbols, dynamic=True, isolate_recompiles=True)
    events = told(run, [(torch.ones(3),), (torch.ones(3),)])
    (event,) = [e for e in events if isinstance(e, SymbolsRefused)]
    assert (event.refused, event.code) == ("sizes and numbers", "symbolic-shape") and len(seen) == 1
    assert line(event).startswith("constants ") and line(event).endswith(f"are not symbolic: [symbolic-shape] {event.reason}")


@pytest.mark.parametrize("rounded, entries", [(math.ceil, 1), (math.floor, 2)])  # a size of 0 has an entry of its own
def test_quotients_that_are_rounded(rounded, entries):
    """As the sizes of what attention keeps for its backward are on CUDA."""

    def fn(x):
        return x.new_ones(rounded(x.shape[0] / 8) * 8) * x.sum()

    run = dynacompile.compile(fn, dynamic=True, isolate_recompiles=True)
    sizes = [5, 8, 17, 64, 63]  # 5 // 8: nothing is in the example's result
    events = told(lambda n: torch.testing.assert_close(run(torch.ones(n)), fn(torch.ones(n))), [(n,) for n in sizes])
    assert sum(isinstance(e, Compiled) for e in events) == entries and not any(isinstance(e, SymbolsRefused) for e in events)


def test_an_example_of_nothing():
    """The first call gives some loops no rounds."""

    def fn(x):
        few = x[: x.shape[0] // 8]
        return few * 2 + x.sum(), few.sum(0), few.softmax(-1)

    run = dynacompile.compile(fn, dynamic=True, isolate_recompiles=True)
    for rows in (5, 8, 17, 64, 3):
        torch.testing.assert_close(run(torch.ones(rows, 6)), fn(torch.ones(rows, 6)))
    assert len(dynacompile.cache_entries(run)) == 3  # for none, one, and more
