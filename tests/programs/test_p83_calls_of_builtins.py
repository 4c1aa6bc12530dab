"""Calls of methods of built-in types, and of built-in functions, with arguments that they do not take: Python refuses them, with its own message."""

from __future__ import annotations

import array
import decimal
import enum
import functools
import io
import operator
import re
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import redirect_stdout

import pytest
import torch

from tests.checking import check

AS_IN_EAGER = {"options": {"backend": "eager"}, "graphs": None, "breaks": None}


class MyList(list):
    pass


class MyDict(dict):
    pass


class Worded:
    def __format__(self, spec):
        return "worded"


class MyOrdered(OrderedDict):
    pass


REFUSED = {
    "too many": lambda: [].clear(None),
    "too many for a dict": lambda: {}.keys(None),
    "too many for a class": lambda: set([1], [2]),
    "too many for a user's class of dicts": lambda: MyDict({}, {}),
    "positions where only keywords are": lambda: [].sort(42, 42),
    "keywords where only positions are": lambda: tuple(sequence=()),
    "keywords where only positions are, of a method": lambda: [].count({}, x=2),
    "too few": lambda: len(),
    "too few for a class": lambda: slice(),
    "through the class": lambda: list.append([]),
    "a function in Python with a row": lambda: Counter().update({}, {}),
    "a default beside several values": lambda: max(1, 2, default=1),
    "a length that is negative": lambda: deque("abc", -1),
    "a factory that can't be called": lambda: defaultdict(1),
    "a partial of what can't be called": lambda: functools.partial([1]),
    "a sum of bytes": lambda: sum([], bytearray()),
    "a class that does not take attributes": lambda: setattr(array.array, "word", 1),
    "a set reversed": lambda: reversed(frozenset({1, 2})),
    "a wrong class to ask for": lambda: isinstance({1}, (3, 1)),
    "a name that is no text": lambda: object.__setattr__(MyDict(), 1, 2),
    "a format that is no text": lambda: format(Worded(), None),
    "a wrong place in a full deque": lambda: deque([1], 1).insert("", 2),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused_as_in_eager(call):
    def refused(x):
        try:
            call()
        except Exception as error:  # noqa: BLE001  (the point is to compare it)
            return x + 1, type(error), str(error)
        return x

    check(refused, torch.ones(2), **AS_IN_EAGER)


def test_a_dict_s_own_method_on_an_ordered_dict():
    def past_the_order(x):
        d = OrderedDict(a=1, b=2)
        dict.__delitem__(d, "a")
        try:
            return x, list(d.items())
        except KeyError as error:
            return x + 1, error.args

    check(past_the_order, torch.ones(2), **AS_IN_EAGER)


def test_a_dict_s_own_method_on_a_counter():
    def not_counted(x):
        c = Counter(a=1)
        dict.update(c, {"a": 5})
        return x * c["a"]

    check(not_counted, torch.ones(2), **AS_IN_EAGER)


class Level(float, enum.Enum):
    LOW = 2.5


def test_the_method_that_is_named_not_the_member_s_own():
    check(lambda x: (x, float.__repr__(Level.LOW), repr(Level.LOW)), torch.ones(2), **AS_IN_EAGER)


def test_copies_of_classes_of_dicts():
    check(lambda x: (x, type(MyOrdered(a=1).copy()).__name__, type(MyDict(a=1).copy()).__name__), torch.ones(2), **AS_IN_EAGER)


def test_operators_by_name_of_other_types():
    check(lambda x: (x, {1, 2}.__sub__([1]), MyList([1]).__eq__("b"), {1, 2}.__sub__({1})), torch.ones(2), **AS_IN_EAGER)


def test_a_pattern_that_prints_is_compiled_once():
    def printed(x):
        out = io.StringIO()
        with redirect_stdout(out):
            re.compile("(?:ab)+c", re.DEBUG)
        return x, out.getvalue()

    check(printed, torch.ones(2), **AS_IN_EAGER)


def test_a_view_keeps_its_object_from_being_resized():
    def resized(x):
        data = bytearray(b"ab")
        view = memoryview(data)  # noqa: F841  (it is what refuses)
        try:
            data.extend(b"c")
        except BufferError as error:
            return x, str(error)
        return x, bytes(data)

    check(resized, torch.ones(2), **AS_IN_EAGER)


def test_flags_of_a_context_that_is_used_no_more():
    def compared(x):
        one, other = decimal.Context(), decimal.Context()
        return x, one.traps == other.traps, operator.eq(one.flags, other.flags)

    check(compared, torch.ones(2), **AS_IN_EAGER)
