"""Facts that change between calls in ways that are easily missed: each row is a function, and what happens to it; eager is asked anew each time."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled


class Thing:
    def __init__(self, number=2.0):
        self.number = number


def check_story(fn, *steps, entries):
    """Calls fn after each step, compiled and plain: a step gives the arguments."""
    dynacompile.reset()
    made = []
    end = dynacompile.subscribe(lambda e: made.append(e) if isinstance(e, Compiled) else None)
    run = dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True})
    try:
        for step in steps:
            args = step()
            ours, theirs = run(*args), fn(*args)
            assert type(ours) is type(theirs) and torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    finally:
        end()
    assert len(made) == entries, [e.frame for e in made]


def test_a_property_hides_an_attribute():
    class Local(Thing):
        pass

    thing, x = Local(), torch.ones(2)

    def hide():
        Local.number = property(lambda self: 41.0)
        return x, thing

    def show():
        del Local.number
        return x, thing

    check_story(lambda x, thing: x * thing.number, lambda: (x, thing), hide, show, entries=2)


def test_an_attribute_hides_a_parameter():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return (x * self.weight).detach()

    net, x = Net(), torch.ones(2)

    def hide():
        net.__dict__["weight"] = torch.full((2,), 3.0)
        return net, x

    check_story(lambda net, x: net(x), lambda: (net, x), hide, lambda: net.__dict__.pop("weight") is None or (net, x), entries=2)


def test_an_object_that_died_is_not_none():
    x, seen = torch.ones(2), {}

    def fn(x, key):
        return x + TABLE[key]

    def first():
        seen["key"] = type("Key", (), {})
        TABLE.clear()
        TABLE.update({seen["key"]: 1, None: 5})
        return x, seen["key"]

    def second():
        TABLE.pop(seen.pop("key"))
        gc.collect()
        return x, None

    check_story(fn, first, second, entries=2)


TABLE: dict = {}


def test_a_weak_reference_dies():
    holder, x = [Thing()], torch.ones(2)
    ref = weakref.ref(holder[0])

    def die():
        holder.clear()
        gc.collect()
        return x, ref

    # the reference is called by Python: the frame is compiled up to there, and what follows once for each answer
    check_story(lambda x, ref: x if ref() is None else x * 2, lambda: (x, ref), die, entries=3)


def test_a_mutable_default_is_mutated():
    def fn(x, factors=[1.0]):  # noqa: B006  (that is the point)
        return x * factors[-1]

    x = torch.ones(2)

    def grow():
        fn.__defaults__[0].append(3.0)
        return (x,)

    check_story(fn, lambda: (x,), grow, entries=2)


def test_submodules_that_nobody_reads_come_and_go():
    net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def add():
        net.add_module("more", torch.nn.ReLU())
        return net, x

    check_story(lambda net, x: torch.nn.functional.linear(x, net.weight, net.bias).detach(), lambda: (net, x), add, lambda: (net.eval(), x), entries=1)


@pytest.mark.parametrize("change", ["forward", "_conv_forward"])
def test_a_method_of_torchs_own_modules_is_patched_on_the_instance(change):
    net, x = torch.nn.Conv1d(1, 1, 1), torch.ones(1, 1, 3)

    def patch():
        net.__dict__[change] = lambda *args: x * 9
        return net, x

    check_story(lambda net, x: net(x).detach(), lambda: (net, x), patch, lambda: net.__dict__.pop(change) is None or (net, x), entries=2)


def test_arguments_without_a_tensor_are_read_twice():
    """A slice and a bound method: one object, reached by two reads of one name."""
    x = torch.arange(6.0)
    steps = [lambda: (x, slice(2), x[:2].add), lambda: (x, slice(2), x[:2].add), lambda: (x, slice(1), x[:1].add)]
    check_story(lambda x, rows, add: x[rows] + add(x[rows]) * (add(1.0) if isinstance(rows, slice) else 0), *steps, entries=2)


def test_one_slice_in_two_places():
    x, rows, both = torch.arange(6.0), slice(2), [slice(2), slice(2)]
    check_story(lambda x, a, b: x[a] + x[b] * 2, lambda: (x, rows, rows), lambda: (x, rows, rows), lambda: (x, *both), entries=2)
