"""check_varying(fn, calls, entries): one function, called with sizes and numbers that differ, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import dynacompile
from dynacompile.events import Compiled, Event, FrameSkipped, GraphBroke
from tests.checking import compare, run


def check_varying(fn: Callable, calls: Sequence[tuple], entries: int, breaks: int = 0, backward: bool = True, **options: Any) -> list[Event]:
    """Compares results, gradients, mutated arguments and aliasing of each call with eager's. entries: made over all calls."""
    compiled = dynacompile.compile(fn, isolate_recompiles=True, **{"backend": "eager", **options})
    events: list[Event] = []
    end = dynacompile.subscribe(events.append)
    try:
        for number, args in enumerate(calls):
            ours, eagers = copy.deepcopy(args), copy.deepcopy(args)
            got = run(fn, compiled, ours, {}, backward)
            compare(f"call {number + 1}", got, run(fn, fn, eagers, {}, backward), None, None)
    finally:
        end()
    told = "\n".join(dynacompile.observe.log.line(e) for e in events if isinstance(e, (Compiled, FrameSkipped, GraphBroke)))
    assert not [e for e in events if isinstance(e, FrameSkipped)], told
    assert sum(isinstance(e, GraphBroke) for e in events) == breaks, told
    assert sum(isinstance(e, Compiled) for e in events) == entries, told
    return events
