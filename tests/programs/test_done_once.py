"""What breaks a graph once, behind a question whether an object has a name, breaks none when the object has it."""

from __future__ import annotations

import threading

import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, GraphBroke

LOCK = threading.Lock()


def install(module: nn.Module) -> None:
    if getattr(module, "installed", False):
        return
    with LOCK:
        module.installed = True


def prepare(module: nn.Module) -> None:
    if "installed" not in vars(module):
        install(module)


def by_callee(module, x):
    y = x + 1
    install(module)
    return module(y)


def by_callee_of_callee(module, x):
    y = x + 1
    prepare(module)
    return module(y)


def counts(function, calls=3):
    """By call, the graphs with operations and the breaks."""
    module, x, events, found = nn.Linear(2, 2), torch.ones(1, 2), [], []
    dynacompile.reset()
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    try:
        for _ in range(calls):
            events.clear()
            assert torch.equal(compiled(module, x), module(x + 1))
            found.append((sum(isinstance(e, Compiled) and e.ops > 0 for e in events), any(isinstance(e, GraphBroke) for e in events)))
    finally:
        end()
    return found


def test_the_next_call_is_one_graph():
    assert counts(by_callee) == [(2, True), (1, False), (0, False)]
    assert counts(by_callee_of_callee) == [(2, True), (1, False), (0, False)]
