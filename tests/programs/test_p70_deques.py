"""Deques: made by the frame and passed in, with their bound, their aliases and the changes that others see."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch

import dynacompile
from tests.checking import check


def arg():
    return torch.linspace(-2, 3, 4)


def made(x):
    d = deque([1, 2, 3], maxlen=3)
    d.append(4)
    d.appendleft(9)
    d.rotate(1)
    d.extend([7])
    d.extendleft([5])
    e = d.copy()
    e.reverse()
    return x * d[0] + len(d), list(d), list(e), d.maxlen, d == e, d + deque([1]), d * 2


def changed(x, d):
    d.append(5)
    d.rotate(2)
    first = d.popleft()
    d[0] = 8
    d.insert(1, 6)
    del d[-1]
    return x * first + d.index(6) + d.count(8), 6 in d, sorted(d), max(d), list(reversed(d))


def emptied(x, d):
    last = d.pop()
    d.clear()
    d.extendleft([1, last])
    return x * last


def removed(x, d):
    d.remove(2)
    d.reverse()
    d += [4]
    return x + len(d)


@pytest.mark.parametrize("fn, given", [(made, ()), (changed, (deque([1, 2, 3, 4], maxlen=6),)), (emptied, (deque([1, 2, 3]),)), (removed, (deque([1, 2, 3]),))])
def test_whole(fn, given):
    check(fn, arg(), *given, calls=1, options={"backend": "eager"})


def window(x, d):
    d.append(x * 2)
    return torch.stack(list(d)).sum(0)


def test_a_bounded_window_of_tensors_keeps_one_entry():
    check(window, arg(), deque([arg(), arg() + 1], maxlen=2), calls=3, options={"backend": "eager"})


def other_length(x, d):
    return x * len(d)


def test_length_and_bound_are_guarded():
    call = dynacompile.compile(other_length, backend="eager", isolate_recompiles=True)
    for d in (deque([1]), deque([1, 2]), deque([1], maxlen=4), deque()):
        assert torch.equal(call(arg(), d), other_length(arg(), d))


def item(x, d):
    return x * d[-1]


def test_items_are_guarded():
    call = dynacompile.compile(item, backend="eager", isolate_recompiles=True)
    for d in (deque([1, 2.5]), deque([1, 3.5]), deque([7, 3.5])):
        assert torch.equal(call(arg(), d), item(arg(), d))


class Holder:
    def __init__(self, d):
        self.left, self.right = d, d


def aliased(x, holder):
    holder.left.append(3)
    return x * len(holder.right) + holder.right[-1], holder.left is holder.right


def test_two_names_of_one_deque():
    mine, theirs = Holder(deque([1])), Holder(deque([1]))
    want, got = aliased(arg(), theirs), dynacompile.compile(aliased, backend="eager", fullgraph=True, isolate_recompiles=True)(arg(), mine)
    assert torch.equal(got[0], want[0]) and got[1] is want[1]
    assert mine.left == theirs.left and mine.left is mine.right


def loops(x, d):
    for value in d:
        d.append(value)
    return x


def full(x, d):
    try:
        d.insert(0, 1)
    except IndexError as error:
        return x * 2, str(error)
    return x


def empty(x, d):
    try:
        d.popleft()
    except IndexError as error:
        return x * 2, str(error)
    return x


def test_what_deques_refuse():
    check(full, arg(), deque([1, 2], maxlen=2), options={"backend": "eager"})
    check(empty, arg(), deque(), options={"backend": "eager"})
    check(loops, arg(), deque([1, 2]), graphs=None, breaks=None, calls=1, options={"backend": "eager"})


RECENT = deque([1.0], maxlen=8)


def remembers(x):
    RECENT.append(2.0)
    return x * sum(RECENT)


def test_a_global_deque():
    before = copy.copy(RECENT)
    want = remembers(arg()), list(RECENT)
    RECENT.clear()
    RECENT.extend(before)
    got = dynacompile.compile(remembers, backend="eager", fullgraph=True, isolate_recompiles=True)(arg()), list(RECENT)
    assert torch.equal(got[0], want[0]) and got[1] == want[1]
    RECENT.clear()
    RECENT.extend(before)
