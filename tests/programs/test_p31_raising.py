"""Exceptions that leave the frame: the graph and the side effects first, then eager's own type, message, chain and traceback."""

from __future__ import annotations

import traceback

import pytest
import torch

import dynacompile
from tests.checking import check

LOG: list = []


class Refused(ValueError):
    def __init__(self, what, code=3):
        super().__init__(f"refused {what}")
        self.code = code


class Odd(Exception):
    def __init__(self, a, *, b):
        self.a, self.b = a, b

    def __str__(self):
        return f"{self.a} {self.b}"


def refuse(x):
    LOG.append("in refuse")
    raise Refused("q", 5)


def in_callee(x):
    y = x * 2
    LOG.append(tuple(y.shape))
    refuse(y)


def chained(x):
    try:
        refuse(x)
    except Refused as error:
        raise RuntimeError("outer") from error


def chain_cut(x):
    try:
        refuse(x)
    except Refused:
        raise RuntimeError("outer") from None


def again(x):
    try:
        refuse(x)
    except Refused:
        raise


def during(x):
    try:
        return {}["a"]
    except KeyError:
        raise ValueError("context")  # noqa: B904


def in_with(x):
    with torch.no_grad():
        y = x * 2
        raise KeyError("a", y.ndim)


def through_finally(x):
    try:
        refuse(x * 2)
    finally:
        LOG.append("finally")


def of_a_tensor(x):
    raise ValueError(x.sum() * 2)


def asserted(x):
    if x.ndim != 3:
        raise AssertionError(f"bad {x.ndim}")


def own_init(x):
    raise Odd(1, b=2)


def with_an_attribute(x):
    try:
        raise Odd(1, b=2)
    except Odd as error:
        error.extra = 3
        raise


def numbers():
    yield 1
    raise Refused("generated")


def in_generator(x):
    return sum(numbers()) * x


def in_comprehension(x):
    return [refuse(v) for v in [x]]


def class_alone(x):
    raise NotImplementedError


def stop(x):
    raise StopIteration(3)


RAISING = (in_callee, chained, chain_cut, again, during, in_with, through_finally, of_a_tensor, asserted, own_init, with_an_attribute)
RAISING += (in_generator, in_comprehension, class_alone, stop)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def shown(error):
    """All that a user sees of an exception."""
    links = [type(e).__name__ + str(e) if e is not None else None for e in (error.__cause__, error.__context__)]
    return type(error), str(error), error.__dict__, links, error.__suppress_context__


def caught(call, *args):
    LOG.clear()
    with pytest.raises(Exception) as info:
        call(*args)
    return (*shown(info.value), list(LOG), torch.is_grad_enabled())


@pytest.mark.parametrize("fn", RAISING, ids=lambda fn: fn.__name__)
def test_raises_as_eager(fn):
    compiled = dynacompile.compile(fn, fullgraph=True, backend="eager")
    for _ in range(2):
        assert caught(compiled, arg()) == caught(fn, arg())


@pytest.mark.parametrize("fn", [in_callee, chained, again, in_generator, in_comprehension])
def test_traceback_names_the_inlined_frames(fn):
    compiled = dynacompile.compile(fn, fullgraph=True, backend="eager")
    places = []
    for call in (fn, compiled):
        with pytest.raises(Exception) as info:
            call(arg())
        places.append([(f.filename, f.lineno, f.name) for f in traceback.extract_tb(info.value.__traceback__)])
    assert places[1][-1] == places[0][-1] or fn is again and places[0][-1] in places[1]


def links_seen(x):
    try:
        raise TypeError("first")
    except TypeError as first:
        try:
            raise KeyError("second")
        except KeyError as second:
            return x * 2, type(second.__context__).__name__, second.__cause__, first.__cause__


def test_links_are_read_in_the_graph():
    check(links_seen, arg(), options={"backend": "eager"})


def outermost_link(x):
    try:
        raise TypeError("first")
    except TypeError as first:
        return x * 2, type(first.__context__).__name__


def test_what_callers_handle_is_guarded():
    check(outermost_link, arg(), options={"backend": "eager"})
    compiled = dynacompile.compile(outermost_link, backend="eager", isolate_recompiles=True)
    compiled(arg())
    try:
        raise KeyError("a caller's")
    except KeyError:
        assert compiled(arg())[1] == outermost_link(arg())[1] == "KeyError"


def raises_on_negative(x, limit):
    y = x + 1
    if limit < 0:
        raise ValueError(f"limit {limit}")
    return y * limit


def test_arguments_decide():
    check(raises_on_negative, arg(), -2, options={"backend": "eager"})
    check(raises_on_negative, arg(), 2, options={"backend": "eager"})
