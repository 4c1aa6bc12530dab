"""Graph breaks while an exception is handled, in blocks, and in managers: N breaks make N + 1 graphs, and the exception is still handled after them."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.events import FrameSkipped, GraphBroke
from dynacompile.observe.log import line as line_of
from tests.checking import check

SAID: list = []


@dynacompile.disable
def say(*values):
    SAID.append((values, sys.exc_info()[0]))


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, cls, value, traceback):
        return cls is ValueError


@contextlib.contextmanager
def noted(value):
    SAID.append("in")
    try:
        yield value
    finally:
        SAID.append("out")


def in_except(x):
    y = x + 1
    try:
        y = y * 2
        raise ValueError("no")
    except ValueError as error:
        say("caught", str(error))
        y = y * 3
    return y + 1


def refuses(x):
    if x.shape[0] == 4:
        raise ValueError("bad", 4)
    return x


def raised_in_a_callee(x):
    y = x + 1
    try:
        y = refuses(y * 2)
    except ValueError as error:
        say(error.args)
        y = y * 3
    finally:
        y = y + 10
    return y + 1


def in_else_and_finally(x):
    y = x + 1
    try:
        y = y * 2
    except ValueError:
        y = y * 100
    else:
        say("else")
        y = y + 3
    finally:
        say("finally")
        y = y * 5
    return y + 1


def in_try(x):
    y = x + 1
    try:
        y = y * 2
        say("try")
        y = y * 3
        raise KeyError("k")
    except KeyError:
        y = y - 1
    return y + 1


def in_a_finally_that_an_exception_runs(x):
    y = x + 1
    try:
        try:
            raise ValueError("v")
        finally:
            say("finally")
            y = y * 2
    except ValueError as error:
        y = y + len(error.args)
    return y


def raises_again(x):
    y = x + 1
    try:
        try:
            raise ValueError("v")
        except ValueError:
            say("first")
            y = y * 2
            raise
    except ValueError as error:
        y = y + len(error.args)
        say("second")
    return y * 2


def handler_in_a_handler(x):
    y = x + 1
    try:
        raise ValueError("outer")
    except ValueError as outer:
        try:
            y = y * 2
            raise KeyError("inner")
        except KeyError as inner:
            say("both", inner.__context__ is outer)
            y = y * 3
        say("outer alone")
        y = y + 1
    say("none")
    return y * 2


def chained(x):
    y = x + 1
    try:
        raise ValueError("first")
    except ValueError as error:
        say("handling")
        y = y * 2
        raise RuntimeError("second") from error


def reads_the_state(x):
    y = x + 1
    try:
        raise ValueError("v")
    except ValueError:
        name = sys.exc_info()[0].__name__
        y = y + len(name)
        say(name)
        y = y + 1
    return y, name, sys.exc_info()[0]


def suppressed(x):
    y = x + 1
    with Swallows():
        y = y * 2
        say("in")
        y = y * 3
        raise ValueError("x")
    return y + 1


def suppressed_by_the_library(x):
    y = x + 1
    with contextlib.suppress(ValueError):
        y = y * 2
        say("in")
        raise ValueError("x")
    return y + 1


def several_managers(x):
    y = x + 1
    with noted(3) as k, contextlib.nullcontext(), Swallows():
        y = y * k
        say("in")
        y = y + 1
    return y * 2


def breaks_in_the_callee_of_a_callee(x):
    return middle(x - 1) - 2


def middle(x):
    return inner(x + 1) * 3


def inner(x):
    y = x * 2
    say("deep")
    return y + 1


PROGRAMS = [  # function, graphs, breaks
    (in_except, 2, 1),
    (raised_in_a_callee, 2, 1),
    (in_else_and_finally, 3, 2),
    (in_try, 2, 1),
    (in_a_finally_that_an_exception_runs, 2, 1),
    (raises_again, 3, 2),
    (handler_in_a_handler, 4, 3),
    (chained, 2, 1),
    (reads_the_state, 2, 1),
    (suppressed, 2, 1),
    (suppressed_by_the_library, 2, 1),
    (several_managers, 2, 1),
    (breaks_in_the_callee_of_a_callee, 6, 3),
]


@pytest.mark.parametrize("fn,graphs,breaks", PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_handled(fn, graphs, breaks):
    SAID.clear()
    with contextlib.suppress(RuntimeError):
        fn(torch.arange(1.0, 5.0))
    said = list(SAID)
    SAID.clear()
    events = check(fn, torch.arange(1.0, 5.0), graphs=graphs, breaks=breaks, options={"backend": "eager"})
    assert not [e for e in events if isinstance(e, FrameSkipped)]
    assert SAID == said * 4


def test_what_was_raised_in_a_handler_knows_why():
    compiled = dynacompile.compile(chained, backend="eager")
    with pytest.raises(RuntimeError, match="second") as caught:
        compiled(torch.ones(2))
    cause = caught.value.__cause__
    assert type(cause) is ValueError and cause.args == ("first",) and caught.value.__context__ is cause
    assert cause.__traceback__ is not None


def test_a_break_names_every_frame_that_was_inlined():
    """As an event, in the log, and as the error of fullgraph."""
    events: list = []
    end = dynacompile.subscribe(events.append)
    dynacompile.reset()
    dynacompile.compile(breaks_in_the_callee_of_a_callee, backend="eager", isolate_recompiles=True, fallback="none")(torch.ones(4))
    end()
    first = next(e for e in events if isinstance(e, GraphBroke))
    names = [place.rpartition(" in ")[2] for place in (first.site, *first.callers)]
    assert names == ["inner", "middle", "breaks_in_the_callee_of_a_callee"]
    assert all("test_p61_breaks_in_handlers.py:" in place for place in (first.site, *first.callers))
    with pytest.raises(Unsupported) as refused:
        dynacompile.compile(breaks_in_the_callee_of_a_callee, backend="eager", fullgraph=True)(torch.ones(4))
    told = [line.strip() for line in line_of(first).splitlines()]
    assert [told[0].partition(" [")[2], *told[1:]] == [line.strip().removeprefix("[") for line in str(refused.value).splitlines()]
