"""contextlib's stacks of managers and small managers, in one graph; what is handled by callers, and seen in handlers."""

from __future__ import annotations

import contextlib
import sys
from contextlib import ExitStack, closing, nullcontext, suppress

import pytest
import torch

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

SAID: list = []
EAGER = {"backend": "eager"}


@contextlib.contextmanager
def noted(value=1):
    SAID.append("in")
    try:
        yield value
    finally:
        SAID.append(("out", value))


class Notes:
    def __enter__(self):
        SAID.append("enter")
        return self

    def __exit__(self, cls, value, traceback):
        SAID.append(("exit", cls, value is None, traceback is None))


class Base(contextlib.AbstractContextManager):
    def __exit__(self, *reason):
        SAID.append(reason[0])


class Deco(contextlib.ContextDecorator):
    def __enter__(self):
        SAID.append("deco in")

    def __exit__(self, *reason):
        SAID.append("deco out")


class Closes:
    size = 3

    def close(self):
        SAID.append("closed")


def autocast(x):
    with ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        y = x @ x.T
    return y, x @ x.T


def no_grad(x):
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        y = x * 2
    return y, x * 3


def several(x, flag):
    with ExitStack() as stack:
        if flag:
            stack.enter_context(torch.no_grad())
        stack.enter_context(nullcontext())
        notes = stack.enter_context(Notes())
        k = stack.enter_context(noted(3))
        y = x * k
    return y, type(notes) is Notes, torch.is_grad_enabled()


def modes(x):
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        inside = torch.is_inference_mode_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(False))
        y = x * 2
        stack.enter_context(torch.enable_grad())
        z = y * x
    return y, z, inside, torch.is_grad_enabled()


def callbacks(x):
    out = []
    with ExitStack() as stack:
        stack.callback(out.append, 1)
        stack.callback(lambda a, b=2: out.append((a, b)), 5, b=7)

        @stack.push
        def leave(*reason):
            out.append(reason[0])

        x = x * 2
    return x, out


def pushed(x):
    out = []

    def leave(cls, value, traceback):
        out.append(cls)
        return cls is ValueError

    with ExitStack() as stack:
        stack.push(leave)
        stack.push(Notes())
        x = x * 2
        raise ValueError("pushed")
    return x, out


def handed_over(x):
    with ExitStack() as stack:
        stack.enter_context(noted(1))
        stack.enter_context(noted(2))
        y = x * 2
        kept = stack.pop_all()
    SAID.append("between")
    y = y + 1
    kept.close()
    return y


def closed(x):
    stack = ExitStack()
    k = stack.enter_context(noted(2))
    stack.enter_context(Base())
    y = x * k
    stack.close()
    stack.close()
    return y


def many(x):
    with ExitStack() as stack:
        ks = [stack.enter_context(noted(i)) for i in range(3)]
        x = x * sum(ks)
    return x


def raises_inside(x):
    try:
        with ExitStack() as stack:
            stack.enter_context(noted(1))
            stack.enter_context(suppress(KeyError))
            x = x * 2
            raise ValueError("v")
    except ValueError as error:
        SAID.append((str(error), error.__context__))
        x = x + 1
    return x


def suppressed(x):
    with ExitStack() as stack:
        stack.enter_context(suppress(ValueError))
        stack.enter_context(noted(1))
        x = x * 2
        raise ValueError("v")
    return x


def raises_out(x):
    with ExitStack() as stack:
        stack.enter_context(noted(1))
        x = x * 2
        raise ValueError("out")


def closes(x):
    with closing(Closes()) as it:
        x = x * it.size
    return x


def closes_a_generator(x):
    def numbers():
        try:
            yield 1
            yield 2
        finally:
            SAID.append("generator closed")

    with closing(numbers()) as it:
        for i in it:
            x = x * i
            break
    return x


def suppresses(x):
    with suppress(KeyError, ValueError):
        x = x * 2
        {}["a"]
        x = x * 3
    with nullcontext(x * 2) as y:
        y = y + 1
    with nullcontext():
        return y


@Deco()
def decorated(x):
    return x * 2


def left_loop(x):
    with noted(2) as k:
        for i in range(4):
            x = x + i
            if i == 2:
                break
        x = x * k
    return x


def what_is_handled(x):
    try:
        raise ValueError("a")
    except ValueError as error:
        cls, value, traceback = sys.exc_info()
        SAID.append((cls, str(value), traceback is None, error is value, sys.exception() is error))
        SAID.append((error.__context__, error.__cause__))
    SAID.append((sys.exc_info(), sys.exception()))
    return x * 2


WHOLE = (
    autocast,
    no_grad,
    modes,
    callbacks,
    pushed,
    handed_over,
    closed,
    many,
    raises_inside,
    suppressed,
    raises_out,
    closes,
    closes_a_generator,
    suppresses,
    decorated,
    left_loop,
    what_is_handled,
)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def check_all_calls(fn, *args, graphs=1, breaks=0, **more):
    """check, and what was said on the way is the same in every call."""
    SAID.clear()
    with suppress(Exception):
        fn(*args)
    said = list(SAID)
    SAID.clear()
    check(fn, *args, graphs=graphs, breaks=breaks, options=EAGER, **more)
    assert SAID == said * 4


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check_all_calls(fn, arg())


@pytest.mark.parametrize("flag", [False, True])
def test_managers_that_a_condition_chooses(flag):
    check_all_calls(several, arg(), flag)


def breaks_inside(x):
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        k = stack.enter_context(noted(3))
        y = x * k
        print(end="")
        y = y * 2
    return y * x, torch.is_grad_enabled()


def breaks_inside_autocast(x):
    with ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        y = x @ x.T
        print(end="")
        y = y @ y
    return y, x @ x.T


def given_back(x):
    stack = ExitStack()
    stack.enter_context(noted(3))
    stack.callback(SAID.append, "called")
    return x * 2, stack


def test_breaks_inside_stacks():
    """Python goes on with the generators and managers that a stack holds."""
    check_all_calls(breaks_inside, arg(), graphs=3, breaks=2)
    check_all_calls(breaks_inside_autocast, arg(), graphs=3, breaks=3)


def test_a_stack_that_a_caller_filled():
    def closes(x, stack):
        y = x @ x.T
        stack.close()
        return y, x @ x.T, torch.is_autocast_enabled("cpu")

    def story(wrap):
        call = wrap(closes)
        for _ in range(2):
            stack = ExitStack()
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            yield call(arg(), stack), torch.is_autocast_enabled("cpu")

    check_same(story)


def test_a_stack_is_a_result():
    compiled = dynacompile.compile(given_back, **EAGER)
    told = []
    for fn in (given_back, compiled, compiled):
        SAID.clear()
        y, stack = fn(arg())
        assert torch.equal(y, arg() * 2)
        stack.close()
        told.append(list(SAID))
    assert told[0] == told[1] == told[2] == ["in", "called", ("out", 3)]


def entered_and_not_left(x):
    torch.autocast("cpu", torch.bfloat16).__enter__()
    return x @ x.T


def entered_around_a_break(x):
    manager = torch.autocast("cpu", torch.bfloat16)
    manager.__enter__()
    y = x @ x.T
    print(end="")
    y = y @ y, torch.is_autocast_enabled("cpu")
    manager.__exit__(None, None, None)
    return y, x @ x.T


def entered_without_gradients(x):
    manager = torch.no_grad()
    manager.__enter__()
    y = x * 2
    print(end="")
    y = y * 3, torch.is_grad_enabled()
    manager.__exit__(None, None, None)
    return y, x * 2


def inferred(x):
    torch.inference_mode().__enter__()
    return x.shape


@pytest.mark.parametrize("fn", [entered_and_not_left, entered_around_a_break, entered_without_gradients, inferred], ids=lambda fn: fn.__name__)
def test_entered_by_hand(fn):
    """What the frame enters, and does not leave or leaves after a break, the caller finds entered."""

    def story(wrap):
        call = wrap(fn)
        for _ in range(2):
            with torch.autocast("cpu", enabled=False), torch.no_grad():
                pass
            enabled, grad = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
            try:
                yield call(arg().detach())
                yield torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            finally:
                torch.set_autocast_enabled("cpu", enabled)
                torch._C._set_grad_enabled(grad)

    check_same(story, least=None)


def asks(x):
    return x * 2, sys.exc_info()[0], sys.exception() is None


def raises_within(x):
    try:
        raise KeyError("inner")
    except KeyError as error:
        return x * 2, repr(error.__context__)


@pytest.mark.parametrize("fn", [asks, raises_within], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("first", [False, True])
def test_what_a_caller_handles_is_seen(fn, first):
    """A frame that was captured where nothing was handled is another one where a caller handles an exception, and the other way round."""

    def handling(call):
        try:
            raise ValueError("outer")
        except ValueError:
            return call(torch.ones(2))[1:]

    compiled = dynacompile.compile(fn, isolate_recompiles=True, **EAGER)
    for in_handler in (first, not first, first, not first):
        call = handling if in_handler else lambda call: call(torch.ones(2))[1:]
        assert call(compiled) == call(fn)
