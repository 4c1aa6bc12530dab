"""Classes that derive from functools.partial, and frames that ask who called them."""

import copy
import functools
import inspect
import sys

import pytest
import torch
from torch import nn

import dynacompile
from tests.checking import check


class Bound(functools.partial):
    """Hides `func` behind a slot, as pyro's handlers do."""

    __slots__ = ("func",)

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.func, instance)


class Named(functools.partial):
    """Has attributes, a method, and a call of its own."""

    calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return super().__call__(*args, **kwargs)

    def twice(self, x):
        return self(self(x))


def scale(x, by, more=1):
    return x * by + more


class Handler:
    def __init__(self):
        self.entered = 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *reason):
        return None

    def wrap(self, fn):
        return Bound(functools.partial(within, self, fn))


def within(context, fn, *args, **kwargs):
    with context:
        return fn(*args, **kwargs)


def handlers(x):
    inner, outer = Handler(), Handler()
    fn = outer.wrap(functools.update_wrapper(inner.wrap(scale), scale, updated=()))
    y = fn(x, 2, more=x.sum())
    return y, inner.entered, outer.entered, isinstance(fn, functools.partial), callable(fn), fn.func.args[0] is outer


class Model(nn.Module):
    method = Bound(functools.partial(scale, more=3))

    def forward(self, x):
        return self.method(x) if False else Model.method.func(x, 2)


def made_with_attributes(x):
    made = Named(scale, x, more=2)
    made.tag = "tagged"
    y = made(3)
    return y, made.calls, made.tag, made.func is scale, len(made.args), made.keywords["more"]


def calls_twice(x):
    named = Named(torch.add, x)
    return named.twice(x), named.calls


def partials_of_partials(x):
    """Arguments are taken over from those that are called as partial is, and have no attributes."""
    plain = functools.partial(scale, more=5)
    tagged = functools.partial(scale, more=6)
    tagged.tag = 1
    made = [functools.partial(of, x) for of in (plain, tagged, Bound(plain), Named(scale, more=7))]
    return [one(2) for one in made], [one.func is scale for one in made], [len(one.args) for one in made], [sorted(one.keywords) for one in made]


def gives_one_back(x):
    made = Bound(functools.partial(scale, x, more=1))
    named = Named(scale, x)
    named.tag = x + 1
    return made, named, made(2), named(3)


def copies(x):
    made = Named(scale, x)
    made.tag = 3
    return copy.copy(made)(2), copy.copy(made).tag


@pytest.mark.parametrize("program", [handlers, made_with_attributes, calls_twice, partials_of_partials])
def test_classes_of_partials(program):
    check(program, torch.ones(3, requires_grad=True))


def test_a_bound_partial_of_a_class():
    check(Model(), torch.ones(3, requires_grad=True))


def test_copies_of_partials():
    check(copies, torch.ones(3), graphs=None, breaks=None)


def test_results_are_called_after_the_frame():
    def outside(compiled, x):
        made, named, *rest = compiled(x)
        return type(made), type(named), made(4), named(5), named.calls, named.tag, made.func(6), *rest

    compiled = dynacompile.compile(gives_one_back, fullgraph=True, isolate_recompiles=True)
    x = torch.ones(2)
    for _ in range(2):
        for got, want in zip(outside(compiled, x), outside(gives_one_back, x), strict=True):
            assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


NAMED = Named(scale, more=4)


def uses_a_global(x):
    return NAMED(x, 2), NAMED.calls, NAMED.keywords["more"]


def test_one_that_was_there_before():
    NAMED.calls = 0
    compiled = dynacompile.compile(uses_a_global, fullgraph=True, isolate_recompiles=True)
    assert compiled(torch.ones(2))[1:] == (1, 4)
    assert uses_a_global(torch.ones(2))[1:] == (2, 4)
    assert compiled(torch.ones(2))[1:] == (3, 4)


# frames


def where(depth=1):
    frame = sys._getframe(depth)
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, frame.f_globals["__name__"]


def here():
    frame = inspect.currentframe()
    return frame.f_lineno, frame.f_back.f_lineno, frame.f_back.f_code.co_name


class Layer(nn.Module):
    def forward(self, x):
        return (
            x + 1,
            where(),
            self.told(),
        )

    def told(self):
        return where(0), where(1), where(2), here()


def asks(x):
    y, *told = Layer().forward(x)
    told += [where(1), where(depth=0)]
    told.append(
        where(
            1,
        )
    )
    return y * 2, told


def test_callers_by_file_and_line():
    check(asks, torch.ones(2))


def names_its_caller(n):
    return where(n)[2]


def through_what_python_calls_back(x):
    """Who is between is not known: a module's own call, functions that call back, generators, operators."""
    layer = Layer()
    return layer(x)[0], layer(x)[1][1:], list(map(names_its_caller, [1])), [where(1)[2] for _ in range(2)], sorted([1], key=lambda n: where(1)[1])


def test_callers_beyond_what_is_followed():
    check(through_what_python_calls_back, torch.ones(2), graphs=None, breaks=None)


def beyond(x):
    return x + 1, where(2)[2]


def test_callers_of_the_captured_frame_are_pythons():
    check(beyond, torch.ones(2), graphs=None, breaks=None)


def keeps_the_frame(x):
    frame = sys._getframe()
    y = x + 1
    return y, sorted(frame.f_locals)


def test_variables_of_frames_are_pythons():
    check(keeps_the_frame, torch.ones(2), graphs=None, breaks=None)
