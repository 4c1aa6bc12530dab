"""Iterators that exist before the frame, read in one graph: what they give, how far they are afterwards, and how many entries serve all their steps."""

from __future__ import annotations

import itertools

import pytest
import torch

from dynacompile.events import Compiled
from tests.scenarios import attempt, check_same


def x():
    return torch.arange(6.0).reshape(2, 3)


class Holder:
    def __init__(self, iterator):
        self.iterator = iterator


GIVEN = {
    "range": lambda: iter(range(2, 30, 3)),
    "range, reversed": lambda: reversed(range(9)),
    "range of large numbers": lambda: iter(range(2**70, 2**70 + 5)),
    "empty": lambda: iter(range(0)),
    "list": lambda: iter([1, 2.5, True, None, "text", 3]),
    "list of tensors": lambda: iter([x() + i for i in range(6)]),
    "list, reversed": lambda: reversed([1, 2, 3, 4, 5]),
    "tuple": lambda: iter((x(), x() + 1, 3)),
    "text": lambda: iter("abc\u03b1"),
    "count": lambda: itertools.count(3, 2),
    "count by halves": lambda: itertools.count(3, 0.5),
    "zip": lambda: zip(itertools.count(), [x(), x() + 1, x() + 2], range(9)),
}


def takes_two(x, iterator):
    return x + 1, next(iterator, "end"), next(iterator, "end"), iterator


def takes_three(x, iterator):
    found = []
    for item in iterator:
        found.append(item)
        if len(found) == 3:
            break
    return x + 1, found


def takes_along(x, iterator):
    return x + 1, list(zip(iterator, [x, x * 2]))


def from_an_attribute(x, iterator):
    return x + 1, next(iterator.iterator, "end"), next(iterator.iterator, None)


def plain(value, iterator):
    if isinstance(value, (tuple, list)):
        return [plain(item, iterator) for item in value]
    return "the iterator" if value is iterator else value


@pytest.mark.parametrize("fn", [takes_two, takes_three, takes_along, from_an_attribute], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("make", GIVEN.values(), ids=GIVEN)
def test_as_in_eager(make, fn):
    def story(wrap):
        call = wrap(fn)
        for iterator in (make(), make()):
            for _ in range(2):
                yield plain(call(x(), Holder(iterator) if fn is from_an_attribute else iterator), iterator)
            yield plain(list(itertools.islice(iterator, 3)), None)

    check_same(story, least=None, fullgraph=True, backend="eager")


def whole(x, iterator):
    for item in iterator:
        x = x + item
    return x, list(iterator)


def until_the_end(x, iterator):
    try:
        while True:
            x = x * 2 + next(iterator)
    except StopIteration:
        return x


@pytest.mark.parametrize("fn", [whole, until_the_end])
def test_to_the_end(fn):
    def story(wrap):
        call = wrap(fn)
        for iterator in (iter(range(3)), iter(range(1, 4)), iter([x(), x() + 1]), iter([]), zip(()), iter((1, 2.5))):
            if not isinstance(iterator, zip):
                yield call(x(), iterator)
            yield call(x(), iterator)

    check_same(story, least=None, fullgraph=True, backend="eager")


STEPS = {
    "range": (lambda x, it: x + next(it), GIVEN["range"], 2),  # the second entry is of any number
    "count": (lambda x, it: x + next(it), GIVEN["count"], 2),
    "list of tensors": (lambda x, it: x + next(it), GIVEN["list of tensors"], 1),
    "zip": (lambda x, it: x * next(it)[1] + 1, lambda: zip(range(9), [x() + i for i in range(6)]), 2),
}


@pytest.mark.parametrize(("fn", "make", "entries"), STEPS.values(), ids=STEPS)
def test_entries_of_all_steps(fn, make, entries):
    def story(wrap):
        call, iterator = wrap(fn), make()
        for _ in range(6):
            yield call(x(), iterator)

    events = check_same(story, fullgraph=True, backend="eager")
    assert sum(isinstance(e, Compiled) for e in events) == entries


def test_strict_zip_beside_one_that_is_not():
    def story(wrap):
        call = wrap(takes_three)
        for strict in (False, True, False):
            iterator = zip([1, 2], (4, 5, 6), strict=strict)
            yield attempt(call, x(), iterator), list(iterator)

    check_same(story, backend="eager")


def test_one_iterator_twice():
    def both(x, one, other):
        return x + next(one) * 10 + next(other)

    def story(wrap):
        for order in (0, 1):
            call = wrap(both)
            for shared in (order, not order):
                one = iter(range(1, 9))
                yield call(x(), one, one if shared else iter(range(1, 9)))

    check_same(story, fullgraph=True, backend="eager")


def test_what_is_iterated_over_changes():
    numbers = [1, 2, 3]

    def grows_behind(x, iterator):
        numbers.append(next(iterator))
        return x + numbers[-1]

    def grows_before(x, iterator):
        numbers.append(9)
        return x + next(iterator)

    def story(wrap):
        for fn in (grows_behind, grows_before):
            call, numbers[:] = wrap(fn), [1, 2, 3]
            iterator = iter(numbers)
            for _ in range(3):
                yield call(x(), iterator), list(numbers)

    check_same(story, backend="eager")


def test_breaks_and_writes():
    def breaks(x, iterator):
        x = x + next(iterator)
        print(end="")
        for item in iterator:
            x = x + item
            print(end="")
            if item == 3:
                break
        return x + next(iterator)

    def writes(x, iterator):
        next(iterator).add_(1)
        next(iterator).mul_(2)
        return x + 1

    def loss(x, iterator):
        return (x * next(iterator) * next(iterator)).sum()

    def story(wrap):
        iterator = iter(range(9))
        yield wrap(breaks)(x(), iterator), list(iterator)
        call = wrap(writes)
        for pair in ([x(), x()], [x()] * 2):
            yield call(x(), iter(pair)), pair
        weights = [x().requires_grad_(), torch.ones(3, requires_grad=True)]
        wrap(loss)(x(), iter(weights)).backward()
        yield [weight.grad for weight in weights]

    check_same(story)


def test_held_by_a_closure_and_a_module():
    iterator = iter(range(3, 9))

    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.numbers = itertools.count()

        def forward(self, x):
            return x * next(self.numbers) + next(iterator)

    def story(wrap):
        nonlocal iterator
        iterator = iter(range(3, 9))
        module = Steps()
        call = wrap(module)
        for _ in range(3):
            yield call(x())
        yield next(iterator), next(module.numbers)

    check_same(story, fullgraph=True, backend="eager")
