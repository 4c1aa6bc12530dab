"""Generators and the managers made of them: send, close, yield from, half-consumed, and alive across graph breaks and in results."""

from __future__ import annotations

import contextlib

import pytest
import torch

import dynacompile
from tests.checking import check

LOG: list = []


@contextlib.contextmanager
def noted(value):
    LOG.append("in")
    try:
        yield value
    finally:
        LOG.append("out")


def pair(x):
    yield x
    yield x + 1
    return 5


def sends(x):
    def total():
        sum_ = 0
        while True:
            value = yield sum_
            if value is None:
                return
            sum_ = sum_ + value

    adder = total()
    next(adder)
    adder.send(x)
    return adder.send(x * 2)


def closes(x):
    LOG.clear()

    def values():
        try:
            yield x
            yield x * 2
        finally:
            LOG.append("closed")

    it = values()
    first = next(it)
    it.close()
    it.close()
    return first + 1, list(LOG), next(it, "ended")


def delegates(x):
    def outer():
        result = yield from pair(x)
        yield x * result

    return torch.stack(list(outer())).sum()


def exit_stack(x):
    LOG.clear()
    with contextlib.ExitStack() as stack:
        value = stack.enter_context(noted(3))
        stack.callback(LOG.append, "callback")
        x = x * value
    return x, list(LOG)


def consumed_partially(x):
    it = (i * 2 for i in range(5))
    return x * next(it) + next(it), list(it)


WHOLE = (sends, closes, delegates, consumed_partially)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check(fn, arg(), options={"backend": "eager"})


def across(x):
    def count():
        k = 1
        while True:
            LOG.append(k)
            yield k
            k += 1

    LOG.clear()
    it = count()
    x = x * next(it)
    print(end="")
    return x * next(it), list(LOG)


def across_with_cells(x):
    step = 2

    def count(start):
        def double(v):
            return v * step

        for i in range(start, start + 3):
            yield double(i) + start

    it = count(1)
    x = x * next(it)
    print(end="")
    step = 3
    return x * next(it), list(it)


def across_yield_from(x):
    def outer():
        yield from pair(x)
        yield 7

    it = outer()
    first = next(it)
    print(end="")
    return first + next(it), list(it)


def unstarted_across(x):
    it = pair(x * 2)
    print(end="")
    return sum(it)


def manager_across(x):
    LOG.clear()
    with noted(2) as value:
        x = x + 1
        print(end="")
        x = x * value
    return x + 3, list(LOG)


def two_managers_across(x):
    LOG.clear()
    with noted(2) as value, noted(3) as other:
        x = x + 1
        print(end="")
        x = x * value * other
    return x + 3, list(LOG)


def manager_raises_after(x):
    LOG.clear()
    try:
        with noted(2):
            x = x + 1
            print(end="")
            raise ValueError("inside")
    except ValueError as error:
        return x * 2, list(LOG), str(error)


def expression_breaks(x):
    def shown(v):
        print(end="")
        return v * 2

    return sum(shown(v) for v in [x, x + 1])


ACROSS = [
    (across, 2),
    (across_with_cells, 2),
    (across_yield_from, None),
    (unstarted_across, None),
    (manager_across, 2),
    (two_managers_across, 2),
    (manager_raises_after, None),
    (expression_breaks, None),
]


@pytest.mark.parametrize("fn, graphs", ACROSS, ids=[row[0].__name__ for row in ACROSS])
def test_alive_across_a_break(fn, graphs):
    recompiles = int(fn is across_with_cells)  # a callee, for its second argument
    check(fn, arg(), graphs=graphs, breaks=None, recompiles=recompiles, options={"backend": "eager"})


def exit_stack_breaks(x):
    return exit_stack(x)


def test_exit_stack():
    check(exit_stack_breaks, arg(), graphs=None, breaks=None, options={"backend": "eager"})


def suspended(x):
    it = pair(x * 2)
    first = next(it)
    return first + 1, it


def guarded():
    try:
        yield 1
        yield 2
    except ValueError as error:
        yield str(error)


def in_a_block(x):
    it = guarded()
    return x * next(it), it


def test_generators_are_results():
    for fn, go_on in ((suspended, list), (in_a_block, lambda it: [it.throw(ValueError("thrown")), *it])):
        compiled = dynacompile.compile(fn, backend="eager", fullgraph=True)
        for _ in range(2):
            (got, got_it), (want, want_it) = compiled(arg()), fn(arg())
            assert torch.equal(got, want) and str(go_on(got_it)) == str(go_on(want_it))
            assert got_it.gi_frame is None and got_it.__name__ == want_it.__name__
