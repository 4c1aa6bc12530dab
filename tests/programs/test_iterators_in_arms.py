"""Iterators and sets of the frame's own that one arm of a branch, or the function of a transform, advances or changes: eager does it in the arm that it takes
alone, so that both arms are not followed."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch

import dynacompile
from tests.checking import check


def an_iterator(x, is_taken):
    it = iter([1, 2, 3])
    if is_taken:
        next(it)
    return x * next(it)


def a_counter(x, is_taken):
    it = itertools.count(1)
    if is_taken:
        next(it)
    return x * next(it)


def pairs(x, is_taken):
    it = zip([1, 2, 3], [4, 5, 6])
    if is_taken:
        next(it)
    return x * next(it)[1]


def a_generator(x, is_taken):
    it = (k for k in [1, 2, 3])
    if is_taken:
        it.send(None)
    return x * next(it)


def a_closed_generator(x, is_taken):
    it = (k for k in [1, 2, 3])
    if is_taken:
        it.close()
    return x * next(it, 7)


def an_emptied_iterator(x, is_taken):
    it = iter([1, 2, 3])
    if is_taken:
        list(it)
    return x * next(it, 7)


def a_search(x, is_taken):
    it = iter([1, 2, 3])
    found = x * ((2 in it) if is_taken else 1)
    return found * next(it)


def a_set(x, is_taken):
    seen = {0}
    if is_taken:
        seen.add(1)
    return x * len(seen)


def a_set_by_an_operator(x, is_taken):
    seen = {0}

    def more():
        mine = seen
        mine |= {1}

    if is_taken:
        more()
    return x * len(seen)


def a_deque(x, is_taken):
    seen = collections.deque([0])
    if is_taken:
        seen.append(1)
    return x * len(seen)


PROGRAMS = [an_iterator, a_counter, pairs, a_generator, a_closed_generator, an_emptied_iterator, a_search, a_set, a_set_by_an_operator, a_deque]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_an_arm_that_is_not_taken_leaves_them_alone(program):
    def fn(x, t):
        y = x * t
        return program(y, y.sum() > 0)

    compiled = dynacompile.compile(torch.no_grad()(fn), backend="eager", isolate_recompiles=True)
    for number in (3.0, -3.0, 4.0, -4.0):
        args = torch.ones(3), torch.tensor(number)
        assert torch.equal(compiled(*args), fn(*args))


def test_an_iterator_of_an_arms_own_breaks_nothing():
    def fn(x, t):
        y = x * t
        return y + (max(map(torch.amax, (y, y * 2))) if y.sum() > 0 else y.amin())

    check(torch.no_grad()(lambda x, t: sum(map(torch.sum, (x, x))) * t), torch.ones(3), torch.tensor(2.0), backward=False, options={"backend": "eager"})
    compiled = dynacompile.compile(torch.no_grad()(fn), backend="eager", isolate_recompiles=True)
    for number in (3.0, -3.0):
        args = torch.ones(3), torch.tensor(number)
        assert torch.equal(compiled(*args), fn(*args))


@pytest.mark.parametrize("use", [next, lambda it: list(it)[0], lambda it: it.__next__()], ids=["next", "list", "method"])
def test_a_body_that_advances_an_iterator_of_the_frame_is_left_to_python(use):
    def fn(x):
        it = iter([2, 3, 4])
        made = torch.func.vmap(lambda row: row * use(it))(x)
        return made * next(it, 5)

    check(fn, torch.ones(2, 3), graphs=None, breaks=1, backward=False, options={"backend": "eager"})


def test_a_body_that_changes_a_set_of_the_frame_is_left_to_python():
    def fn(x):
        seen = set()
        made = torch.func.vmap(lambda row: (seen.add(1), row * 2)[1])(x)
        return made * len(seen)

    check(fn, torch.ones(2, 3), graphs=None, breaks=1, backward=False, options={"backend": "eager"})
