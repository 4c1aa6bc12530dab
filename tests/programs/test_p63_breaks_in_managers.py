"""Graph breaks in blocks of managers: one made of a generator goes on in the graph that follows, one of torch is entered again by it."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped
from tests.checking import check

SAID: list = []
EAGER = {"backend": "eager"}


@dynacompile.disable
def say(*values):
    SAID.append((values, sys.exc_info()[0]))


@dynacompile.disable
def look():
    SAID.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))


@dynacompile.disable
def fail(kind=ValueError):
    raise kind("from a call")


@contextlib.contextmanager
def noted(value=1):
    SAID.append("in")
    try:
        yield value
    finally:
        SAID.append("out")


@contextlib.contextmanager
def bare(value=1):
    SAID.append("in")
    yield value
    SAID.append("out")


@contextlib.contextmanager
def swallows(kind=ValueError):
    try:
        yield kind
    except kind as error:
        SAID.append(str(error))
    SAID.append("after")


@contextlib.contextmanager
def translates():
    try:
        yield
    except ValueError as error:
        raise KeyError("translated") from error


class Notes:
    def __enter__(self):
        SAID.append("enter")
        return self

    def __exit__(self, cls, value, traceback):
        SAID.append(("exit", cls))


@contextlib.contextmanager
def outer(value):
    SAID.append("outer in")
    with noted(value + 1) as inner, Notes():
        try:
            yield inner, value
        finally:
            SAID.append("outer out")


@contextlib.contextmanager
def described(a, *rest, b=3, **named):
    """Arguments of every kind."""
    try:
        yield a + b
    finally:
        SAID.append((a, rest, b, sorted(named)))


@contextlib.contextmanager
def doubled(tensor):
    twice, step = tensor * 2, 0
    try:
        yield twice
        step = 5
    finally:
        tensor.mul_(2)
        SAID.append((step, tuple(twice.shape)))


@contextlib.contextmanager
def yields_twice():
    yield 1
    yield 2


class Scaled(torch.nn.Module):
    scale = 1

    @contextlib.contextmanager
    def scaled(self, by):
        before, self.scale = self.scale, by
        try:
            yield self
        finally:
            self.scale = before

    def forward(self, x):
        with self.scaled(3) as module:
            x = x * module.scale
            say("scaled", self.scale)
            x = x + self.scale
        return x * self.scale


def one(x):
    y = x + 1
    with noted(2) as k:
        y = y * k
        say("one")
        y = y + k
    return y * 3


def without_a_block(x):
    y = x + 1
    with bare(2) as k:
        y = y * k
        say("bare")
        y = y + k
    return y * 3


def nested(x):
    y = x + 1
    with noted(2) as k, Notes():
        with bare(4) as n:
            y = y * k
            say("nested")
            y = y + n
    return y * 3


def two_items(x):
    with noted(2) as k, noted(4) as n:
        y = x * k
        say("two")
        y = y + k * n
    return y * 3


def manager_in_a_manager(x):
    with outer(2) as (a, b):
        y = x * a
        say("inside")
        y = y * b
    return y + 1


def arguments(x):
    with described(2, 7, b=5, z=1) as k:
        y = x * k
        say("arguments")
        y = y * k
    return y


def tensors(x):
    y = x.detach() * 1
    with doubled(y) as k:
        z = k + y
        say("tensors")
        z = z + y
    return z, y


def raises_after(x):
    with swallows():
        y = x * 2
        say("before")
        y = y * 2
        raise ValueError("after")
    return y * 3


def raises_out(x):
    with noted():
        y = x * 2
        say("before")
        y = y * 2
        raise ValueError("out")
    return y


def call_raises(x):
    with swallows():
        y = x * 2
        fail()
        y = y * 7
    return y - 1


def call_raises_out(x):
    with noted():
        y = x * 2
        fail()
    return y


def is_translated(x):
    y = x + 1
    try:
        with translates():
            y = y * 2
            say("before")
            raise ValueError("v")
    except KeyError as error:
        SAID.append((str(error), repr(error.__cause__), repr(error.__context__)))
        y = y + 3
    return y


def stop_iteration(x):
    with noted():
        y = x * 2
        say("before")
        raise StopIteration("stop")
    return y


def call_stops(x):
    with bare():
        y = x * 2
        fail(StopIteration)
    return y


def two_yields(x):
    with yields_twice() as k:
        y = x * k
        say("between")
        y = y * 2
    return y


def several_breaks(x):
    with noted():
        y = x * 2
        say("first")
        y = y * 2
        say("second")
        y = y - 2
    return y * 3


def in_rounds(x):
    for k in range(4):
        with noted(k):
            x = x * 2
            say("round")
            x = x + 1
    return x * 3


def returns(x):
    with noted():
        y = x * 2
        say("return")
        return y * 2


def with_cells(x):
    seen, depth = [], 0

    @contextlib.contextmanager
    def counted(k):
        nonlocal depth
        depth += k
        seen.append("in")
        try:
            yield depth
        finally:
            depth -= 1
            seen.append("out")

    with counted(3) as k:
        y = x * depth
        say("cells", depth)
        y = y * k + depth
    return y * depth, seen


def in_a_variable(x):
    manager = noted(3)
    with manager as k:
        y = x * k
        say("variable")
        y = y * k
    return y


@noted(4)
def decorated(x):
    y = x * 3
    say("decorated")
    return y + 2


def branches(x):
    with noted(2) as k:
        y = x * 2
        y = y + k if y.sum() > 0 else y - k
    return y


def needs_a_number(x):
    with noted(2) as k:
        y = x * 2
        number = y.sum().item()
        y = y + k
    return y + number


def read_later(x):
    manager = noted(3)
    with manager as k:
        y = x * k
        say("read later")
        y = y * k
    return y, type(manager).__name__


PROGRAMS = [  # function, graphs, breaks
    (one, 2, 1),
    (without_a_block, 2, 1),
    (nested, 2, 1),
    (two_items, 2, 1),
    (manager_in_a_manager, 2, 1),
    (arguments, 2, 1),
    (tensors, 2, 1),
    (raises_after, 2, 1),
    (raises_out, 2, 1),
    (call_raises, 2, 1),
    (call_raises_out, 1, 1),
    (is_translated, 2, 1),
    (stop_iteration, 1, 1),
    (call_stops, 1, 1),
    (two_yields, 2, 1),
    (several_breaks, 3, 2),
    (in_rounds, 3, 2),
    (returns, 2, 1),
    (with_cells, 2, 1),
    (in_a_variable, 2, 1),
    (decorated, 2, 1),
    (branches, 2, 1),
    (needs_a_number, 1, 0),
    (read_later, 2, 2),  # the variable leads to the generator: Python goes on with it
]


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def check_all_calls(fn, *args, graphs, breaks):
    """check, and what was said on the way is the same in every call."""
    SAID.clear()
    with contextlib.suppress(Exception):
        fn(*args)
    said = list(SAID)
    SAID.clear()
    events = check(fn, *args, graphs=graphs, breaks=breaks, options=EAGER)
    assert not [e for e in events if isinstance(e, FrameSkipped)]
    assert SAID == said * 4


@pytest.mark.parametrize("fn,graphs,breaks", PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_breaks_inside(fn, graphs, breaks):
    check_all_calls(fn, arg(), graphs=graphs, breaks=breaks)


def test_a_manager_that_is_a_method():
    check_all_calls(Scaled().forward, arg(), graphs=2, breaks=1)


def test_the_chain_of_what_a_manager_raises():
    def translated(x):
        with translates():
            y = x * 2
            say("before")
            raise ValueError("v")
        return y

    found = []
    for fn in (translated, dynacompile.compile(translated, **EAGER)):
        with pytest.raises(KeyError, match="translated") as caught:
            fn(arg())
        error = caught.value
        found.append((type(error.__cause__), error.__cause__.args, error.__context__ is error.__cause__, error.__suppress_context__))
    assert found[0] == found[1]


AUTOCAST = torch.autocast("cpu", torch.bfloat16)
NO_GRAD = torch.no_grad()


@contextlib.contextmanager
def without_gradients():
    with torch.no_grad():
        yield


def no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y * 2
        look()
        z = z * 3
    return y * 2 + z


def in_a_generator(x):
    y = x * 2
    with without_gradients():
        z = y * 2
        look()
        z = z * 3
    look()
    return y * 2 + z


def enable_grad(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
            look()
            y = y * 3
        z = x * 3
    return y * 2 + z, z.requires_grad


def set_grad_enabled(x, mode):
    with torch.set_grad_enabled(mode):
        y = x * 2
        look()
        y = y * 3
    return y * x


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.T
        look()
        z = x @ x.T
    return y, z, x @ x.T


def autocast_off_inside(x):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = x @ x.T
            look()
            y = y @ y
        z = x @ x.T
    return y, z


def autocast_of_an_object(x):
    with AUTOCAST as manager:
        y = x @ x.T
        look()
        z = x @ x.T
    return y, z, x @ x.T, manager is AUTOCAST


def no_grad_of_an_object(x):
    with NO_GRAD:
        y = x * 2
        z = y * 2
    return z, x * 2, NO_GRAD.prev


def inference(x):
    with torch.inference_mode():
        y = x @ x.T
        look()
        z = y + 1
    return z.shape, x @ x.T


def all_of_them(x):
    with torch.no_grad(), noted(3), torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        y = x @ x.T
        look()
        y = y @ y
    return y, torch.is_grad_enabled()


def left_by_an_exception(x):
    y = x * 2
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            z = y @ y.T
            fail()
    except ValueError:
        look()
        z = y * 3
    return z * x, torch.is_grad_enabled()


def handled_inside(x):
    with torch.no_grad():
        try:
            y = x * 2
            fail()
        except ValueError:
            y = x * 3
            look()
            y = y + 1
        y = y * 2
    return y * x, torch.is_grad_enabled()


def rounds_without_gradients(x):
    for _ in range(5):
        with torch.no_grad():
            x = x * 2
            look()
            x = x + 1
    return x


def returned_inside(x):
    with torch.no_grad():
        y = x * 2
        look()
        return y + 1


@torch.no_grad()
def decorated_by_no_grad(x):
    y = x * 2
    look()
    return y + 2


TORCH = [  # function, graphs, breaks
    (no_grad, 2, 1),
    (in_a_generator, 3, 2),
    (enable_grad, 2, 1),
    (autocast, 2, 1),
    (autocast_off_inside, 2, 1),
    (autocast_of_an_object, 2, 1),
    (no_grad_of_an_object, 1, 0),
    (inference, 2, 1),
    (all_of_them, 2, 1),
    (left_by_an_exception, 2, 1),
    (handled_inside, 3, 2),
    (rounds_without_gradients, 3, 2),
    (returned_inside, 2, 1),
    (decorated_by_no_grad, 2, 1),
]


@pytest.mark.parametrize("fn,graphs,breaks", TORCH, ids=[p[0].__name__ for p in TORCH])
def test_breaks_inside_managers_of_torch(fn, graphs, breaks):
    check_all_calls(fn, arg(), graphs=graphs, breaks=breaks)


@pytest.mark.parametrize("mode", [False, True])
def test_breaks_inside_set_grad_enabled(mode):
    check_all_calls(set_grad_enabled, arg(), mode, graphs=2, breaks=1)


def test_modes_are_left_where_gradients_are_off():
    def outside(x):
        with torch.no_grad():
            return set_grad_enabled(x, False), torch.is_grad_enabled()

    check_all_calls(outside, arg(), graphs=2, breaks=2)
