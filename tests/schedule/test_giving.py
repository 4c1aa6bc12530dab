"""Where a backward stops: after the last step that touches the memory of gradients, which leave there, and never at its end."""

from __future__ import annotations

from dataclasses import replace

import torch

from dynacompile.autograd import differentiate
from dynacompile.ir.loops import Extern, root
from dynacompile.ir.schedule import Give, Launch, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from dynacompile.schedule.giving import final_steps, give_early, memory_of
from tests.autograd.recording import record
from tests.lower.tracing import ENV


def layers(x, *parameters):
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = torch.nn.functional.linear(x, weight, bias).tanh()
    return x


def backward(least: int = 1) -> Schedule:
    """With its stops."""
    parameters = [torch.empty(*size, requires_grad=True) for _ in range(6) for size in ((16, 16), (16,))]
    graph, fakes, _ = record(layers, [torch.empty(4, 16), *parameters])
    pair = differentiate(graph, fakes, ENV)
    assert pair.backward is not None
    first = len(pair.contract.symbols) + len(pair.contract.saved_inputs)
    saved = range(first, first + len(pair.contract.saved_positions))
    return schedule(lower(pair.backward, ENV), ENV.with_config(gradient_bytes=least), saved, early=range(12))


def without_stops(plan: Schedule) -> Schedule:
    return replace(plan, steps=tuple(s for s in plan.steps if not isinstance(s, Give)))


def test_no_later_step_touches_what_is_given():
    plan = backward()
    assert len(plan.gives()) >= 4
    for i, step in enumerate(plan.steps):
        if isinstance(step, Give):
            later = [memory_of(s, plan.buffers) for s in plan.steps[i + 1 :] if not isinstance(s, Give)]
            assert set(step.buffers).isdisjoint(set().union(*later))
            assert {root(plan.buffers, name) for p in step.outputs if (name := plan.outputs[p]) is not None} == set(step.buffers)


def test_the_steps_are_otherwise_the_same():
    plan = without_stops(backward())
    assert without_stops(give_early(plan, range(12), 1)) == plan


def test_nothing_is_given_behind_the_last_kernel():
    plan = backward()
    end = max(i for i, s in enumerate(plan.steps) if isinstance(s, Launch | Extern))
    assert all(i < end for i, s in enumerate(plan.steps) if isinstance(s, Give))


def test_each_output_is_given_once():
    given = [p for positions in backward().gives() for p in positions]
    assert len(given) == len(set(given))


def test_groups_have_the_bytes_that_are_asked_for():
    assert 0 < len(backward(1 << 11).gives()) < len(backward().gives())
    assert not backward(1 << 20).gives()


def test_outputs_that_may_not_leave_early_stay():
    plan = without_stops(backward())
    assert all(p < 2 for positions in give_early(plan, range(2), 1).gives() for p in positions)
    assert not final_steps(plan, ())
