"""Counters, ordered dicts and sets: made by the frame, and changed where they exist before it."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
import torch

from tests.checking import check


def ordered_dict(x):
    d = OrderedDict(a=1, b=2, c=3)
    d.move_to_end("a")
    last = d.popitem()
    d["e"] = 4
    d.move_to_end("e", last=False)
    first = d.popitem(last=False)
    return x * first[1], last, list(d), d


def popitem_of_nothing(x):
    y = x * 2
    try:
        {}.popitem()
    except KeyError as error:
        return y, error.args
    return x


def counters(x):
    c = Counter("aab")
    c.update("bb")
    c.update({"q": 2}, z=1)
    c.subtract(["a"])
    return x * c["a"] * c.total() + c["zz"], c.most_common(2), dict(Counter({"k": 2})), dict(c)


def sets(x):
    a, b = {1, 2, 3}, {3, 4}
    return x * len(a | b), sorted(a ^ b), sorted(a.symmetric_difference([1, 9])), a <= b, a.isdisjoint({9})


@pytest.mark.parametrize("fn", [ordered_dict, popitem_of_nothing, counters, sets])
def test_made_by_the_frame(fn):
    check(fn, torch.linspace(-2, 3, 4), options={"backend": "eager"})


def changes_ordered(x, d):
    d.move_to_end("a")
    d["z"] = 4
    return x * d["b"], list(d)


def changes_counter(x, c):
    c["a"] += 2
    c.update("bb")
    return x * c["a"] * c["none"], c.most_common(1)


def changes_set(x, s):
    s.add(5)
    s.discard(1)
    s.update([7, 8])
    s.remove(7)
    return x * len(s), 5 in s, 1 in s


@pytest.mark.parametrize("fn, made", [(changes_ordered, OrderedDict(a=1, b=2)), (changes_counter, Counter("aab")), (changes_set, {1, 2})])
def test_changed_from_within(fn, made):
    check(fn, torch.linspace(-2, 3, 4), made, recompiles=1, options={"backend": "eager"})  # the second call meets the changed one
