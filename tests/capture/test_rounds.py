"""Rounds of loops that are alike: how many instructions are interpreted, and what makes a round one that is followed."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FirstStepLeft, StageFinished


def steps(function, *args, calls=1):
    """Instructions that the last compile interpreted."""
    found = []
    end = dynacompile.subscribe(lambda e: found.append(dict(e.facts)["steps"]) if isinstance(e, StageFinished) and e.stage == "capture" else None)
    compiled = dynacompile.compile(function, backend="eager", isolate_recompiles=True, dynamic=False)
    try:
        for _ in range(calls):
            compiled(*args)
    finally:
        end()
    return found[-1]


def tensors(count, shape=(3, 2)):
    torch.manual_seed(0)
    return [torch.rand(shape) for _ in range(count)]


def scaled(ts, factors, out):
    with torch.no_grad():
        for i, t in enumerate(ts):
            factor = factors[i]
            t.mul_(factor)
            t.add_(1.0)
            if t.dim() == 2:
                t.sqrt_()


def carried(ts, factors, out):
    total = 0.0
    with torch.no_grad():
        for t in ts:
            total = total + t.sum()
            t.mul_(total)


def counted(ts, factors, out):
    with torch.no_grad():
        for i, t in enumerate(ts):
            t.mul_(i)
            t.add_(1.0)


def read_again(ts, factors, out):
    with torch.no_grad():
        for t in ts:
            out.append(t * 2.0)
            t.add_(out[-1])


@pytest.mark.parametrize("function", [scaled, carried, counted, read_again], ids=lambda f: f.__name__)
def test_rounds_that_are_alike_are_interpreted_once(function):
    few, many = (steps(function, tensors(n), tensors(n), []) for n in (8, 40))
    assert (many - few < 32) == (function is scaled)


@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
def test_a_step_of_many_parameters_takes_as_many_instructions_as_one_of_few(form):
    def interpreted(count):
        parameters = [torch.nn.Parameter(t) for t in tensors(count)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer = torch.optim.AdamW(parameters, **form)
        return steps(lambda: optimizer.step(), calls=2)

    few, many = interpreted(6), interpreted(60)
    assert many - few <= 2 * 54, (few, many)


def test_the_call_in_which_an_optimizer_makes_its_state_runs_as_python():
    events = []
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    step = dynacompile.compile(lambda: optimizer.step(), isolate_recompiles=True, backend="eager", fullgraph=True)
    end = dynacompile.subscribe(events.append)
    try:
        for _ in range(3):
            parameter.grad = torch.ones(3)
            step()
    finally:
        end()
    assert [type(e) for e in events if isinstance(e, (FirstStepLeft, Compiled))] == [FirstStepLeft, Compiled]


def test_an_optimizer_that_makes_its_state_in_each_call_is_compiled():
    events = []
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])

    def update():
        optimizer.step()
        optimizer.state.clear()

    step = dynacompile.compile(update, isolate_recompiles=True, backend="eager")
    end = dynacompile.subscribe(events.append)
    try:
        for _ in range(8):
            parameter.grad = torch.ones(3)
            step()
    finally:
        end()
    assert sum(isinstance(e, FirstStepLeft) for e in events) == 4
    assert sum(isinstance(e, Compiled) for e in events) >= 1
