"""Rounds of loops that are alike: how many instructions are interpreted, and what makes a round one that is followed."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FirstStepLeft, StageFinished


def steps(function, *args, calls=1, **options):
    """Instructions that the last compile interpreted."""
    found = []
    end = dynacompile.subscribe(lambda e: found.append(dict(e.facts)["steps"]) if isinstance(e, StageFinished) and e.stage == "capture" else None)
    compiled = dynacompile.compile(function, backend="eager", isolate_recompiles=True, dynamic=None if options else False, options=options or None)
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


def chosen(ts, factors, out):
    with torch.no_grad():
        for t in ts:
            if t is None or t.dim() == 2:
                t.mul_(0.5)
            flag = t.dim() == 1 or t.is_complex()
            if not flag:
                t.add_(1.0)


def cast(ts, factors, out):
    """To the type that each has, which gives it itself, as in the norm of all gradients."""
    with torch.no_grad():
        return torch.stack([t.sum().to(t.device) for t in ts]), [t.to(torch.float32) for t in ts]


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


def asked_of_all(ts, factors, out):
    """As foreach asks whether it knows the types of all tensors."""
    with torch.no_grad():
        if all(t is None or type(t) in (torch.Tensor, torch.nn.Parameter) for t in ts) and not any(t.dim() == 1 for t in ts):
            torch._foreach_add_(ts, 1.0)


def listed(ts, factors, out):
    with torch.no_grad():
        return list(t + 1.0 for t in ts), tuple(  # noqa: C400 - the generator is what is tested
            t * f for t, f in zip(ts, factors) if t.dim() == 2
        )


@pytest.mark.parametrize("function", [scaled, chosen, cast, carried, counted, read_again, asked_of_all, listed], ids=lambda f: f.__name__)
def test_rounds_that_are_alike_are_interpreted_once(function):
    few, many = (steps(function, tensors(n), tensors(n), []) for n in (8, 40))
    assert (many - few < 32) == (function in (scaled, chosen, cast, asked_of_all, listed))


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


@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=lambda k: k.__name__)
def test_a_step_with_symbolic_rates_takes_as_many_instructions_as_one_with_constants(kind, form):
    def interpreted(count, *varying):
        parameters = [torch.nn.Parameter(t) for t in tensors(count)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer = kind(parameters, lr=0.1, weight_decay=0.1, **form)
        return steps(lambda: optimizer.step(), calls=2, varying=varying)

    rates = ("lr", "weight_decay", "betas[0]", "betas[1]", "momentum")
    few, many, constant = interpreted(6, *rates), interpreted(60, *rates), interpreted(60)
    assert many - few <= 2 * 54 and many <= constant + 64, (few, many, constant)


def with_a_rate(ts, rate, size):
    with torch.no_grad():
        for t in ts:
            if rate:
                t.mul_(1 - rate)
            t.add_(size)


def with_a_size(ts, rate, size):
    with torch.no_grad():
        for t in ts:
            t.add_(torch.zeros(size, 1, 1).sum())
            t.mul_(rate)


def with_another_rate_each_time(ts, rate, size):
    with torch.no_grad():
        for t in ts:
            rate = rate * 0.5
            t.mul_(rate)


@pytest.mark.parametrize("function", [with_a_rate, with_a_size, with_another_rate_each_time], ids=lambda f: f.__name__)
def test_rounds_with_the_same_symbols_are_interpreted_once(function):
    few, many = (steps(function, tensors(n), 0.5, 4, varying=("rate", "size")) for n in (8, 40))
    assert (many - few < 32) == (function is not with_another_rate_each_time)


def by_an_index(ts, third):
    for i, t in enumerate(ts):
        t.mul_(ts[3])
        ts[i].add_(1.0)


def by_a_variable(ts, third):
    for t in ts:
        t.add_(1.0)
        t.mul_(third)


def by_a_pair(ts, third):
    pair = (third, third)
    for t in ts:
        one, other = pair
        t.add_(one)
        t.mul_(other)


def by_a_default(ts, third):
    def update(t, other=third):
        t.add_(other)
        t.mul_(other)

    for t in ts:
        update(t)


def by_a_closure(ts, third):
    def update(t):
        t.add_(third)
        t.mul_(third)

    for t in ts:
        update(t)


@pytest.mark.parametrize("function", [by_an_index, by_a_variable, by_a_pair, by_a_default, by_a_closure], ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", [0, 1, 3, 7])
def test_an_item_that_each_round_reads_is_not_the_item_of_another_round(function, place):
    got, wanted = tensors(8), tensors(8)
    with torch.no_grad():
        function(wanted, wanted[place])

    def run(ts, third):
        with torch.no_grad():
            function(ts, third)

    dynacompile.compile(run, backend="eager", isolate_recompiles=True, dynamic=False)(got, got[place])
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_a_number_that_each_round_computes_is_an_object_of_each_round():
    def numbers(ts, rate):
        out = []
        with torch.no_grad():
            for t in ts:
                out.append(rate * 3)
                t.mul_(2.0)
        return out

    for varying in ((), ("rate",)):
        compiled = dynacompile.compile(numbers, backend="eager", isolate_recompiles=True, options={"varying": varying})
        found = compiled(tensors(6), 0.3)
        assert len({id(number) for number in found}) == len({id(number) for number in numbers(tensors(6), 0.3)})


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
