"""Weak references that a frame makes, and gives back: to what the program holds, and to what is gone when the frame ends."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dynacompile
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


class Held:
    def __init__(self, value, other=None):
        self.value = value
        self.other = other


class Both:
    """Two objects that refer to each other, one of them weakly, as transforms of distributions and their inverses do in torch 2.11."""

    def __init__(self):
        self._inverse = None

    @property
    def inverse(self):
        found = self._inverse() if self._inverse is not None else None
        if found is None:
            found = Inverse(self)
            self._inverse = weakref.ref(found)
        return found


class Inverse:
    def __init__(self, forth):
        self.forth = forth


def held(x):
    h = Held(x + 1)
    return h, weakref.ref(h)


def held_inside(x):
    h = Held(x + 1)
    return [weakref.ref(h), {"h": (h, 1)}, weakref.ref(h)]


def gone(x):
    h = Held(x + 1)
    return x * 2, weakref.ref(h)


def gone_with_another(x):
    inner = Held(x * 3)
    outer = Held(x, inner)
    return weakref.ref(inner), weakref.ref(outer), x + 1


def one_inside_the_other(x):
    inner = Held(x * 3)
    outer = Held(x, inner)
    return weakref.ref(inner), weakref.ref(outer), inner


def inverse_gone(x):
    b = Both()
    y = x + (b.inverse.forth is b)
    return b, y


def around_a_break(x):
    h = Held(x + 1)
    kept, lost = weakref.ref(h), weakref.ref(Held(x))
    dynacompile.graph_break()
    return h, kept() is h, lost() is None


def seen(value):
    if isinstance(value, weakref.ref):
        return "gone" if value() is None else type(value()).__name__
    if isinstance(value, (Held, Both, Inverse)):
        return type(value).__name__, {name: seen(part) if not isinstance(part, (Both, Inverse)) else type(part).__name__ for name, part in vars(value).items()}
    if isinstance(value, (list, tuple)):
        return [seen(part) for part in value]
    if isinstance(value, dict):
        return {key: seen(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("fn", [held, held_inside, gone, gone_with_another, one_inside_the_other, inverse_gone, around_a_break], ids=lambda fn: fn.__name__)
def test_as_in_eager(fn):
    def story(wrap):
        call = wrap(fn)
        for k in range(2):
            yield seen(call(torch.ones(2) + k))

    check_same(story, **EAGER)


def test_identity():
    result = dynacompile.compile(held_inside, options={"fallback": "none"}, **EAGER)(torch.ones(2))
    assert result[0]() is result[1]["h"][0] is result[2]()
    assert result[0] is result[2]


def test_what_only_the_garbage_collector_ends():
    """Capture does not decide when that happens: such a frame runs as Python."""

    def circle(x):
        h = Held(x)
        h.other = h
        return weakref.ref(h), x + 1

    gc.disable()
    try:
        assert dynacompile.compile(circle, **EAGER)(torch.ones(2))[0]() is not None
    finally:
        gc.enable()


class Slotted:
    __slots__ = ()


@pytest.mark.parametrize("target", [3, "text", None, (1,), [1], {}, slice(1), Slotted()], ids=lambda target: type(target).__name__)
def test_what_has_no_weak_references(target):
    def story(wrap):
        def made(x):
            y = x + 1
            try:
                return weakref.ref(target), y
            except TypeError as error:
                return str(error), y

        called = wrap(made)
        yield called(torch.ones(2))
        yield called(torch.zeros(2))

    check_same(story, least=None, **EAGER)


@pytest.mark.parametrize("kind", [weakref.ref, weakref.proxy], ids=["reference", "proxy"])
def test_a_weak_reference_that_is_dropped_before_its_target_calls_nothing(kind):
    def story(wrap):
        told = []

        def replaced(x, holders):
            y = x + 1
            reference = kind(holders[0], lambda gone: told.append("gone"))
            reference = None
            holders.pop(0)
            told.append("end")
            return y, reference

        def kept(x, holders):
            y = x + 1
            reference = kind(holders[0], lambda gone: told.append("gone"))
            holders.pop(0)
            told.append("end")
            return y, reference is None

        for function in (replaced, kept):
            called = wrap(function)
            for _ in range(2):
                called(torch.ones(2), [Held(1)])
                yield list(told)

    check_same(story, least=None, **EAGER)
