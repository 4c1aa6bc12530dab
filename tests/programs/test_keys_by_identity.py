"""Dicts and sets of before the frame whose keys are objects, which nothing else equals."""

from __future__ import annotations

import typing
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import nn

import dynacompile
from tests.scenarios import check_same


class Key:
    def __init__(self, weight=1.0):
        self.weight = weight


class Slotted:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = 3.0


class Equal:
    """Of a class that says itself what equals it."""

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


T = typing.TypeVar("T")
FIRST, SECOND, THIRD = Key(1.0), Key(2.0), Slotted()
LAYER = nn.Linear(2, 2)
WEIGHT = LAYER.weight
TABLE = {FIRST: 1.0, SECOND: 2.0, THIRD: 3.0, LAYER: 4.0, T: 5.0, "text": 7.0}
OF_TENSORS = {WEIGHT: 6.0, FIRST: 1.0}
MEMBERS = {FIRST, THIRD, LAYER, "text"}


def read(x):
    return x * TABLE[FIRST] + TABLE[SECOND] + TABLE[THIRD] * TABLE[LAYER] + TABLE[T] + OF_TENSORS[WEIGHT] * OF_TENSORS[FIRST] + TABLE["text"]


def found(x):
    return x + (FIRST in TABLE), FIRST in MEMBERS, SECOND in MEMBERS, THIRD in MEMBERS, LAYER in MEMBERS, TABLE.get(Key(), 9), len(TABLE), len(MEMBERS)


def gone_through(x):
    for key, value in TABLE.items():
        x = x + value * (key.weight if isinstance(key, (Key, Slotted)) else 1)
    return x, [type(key).__name__ for key in TABLE]


def made_here(x):
    own = {FIRST: x, SECOND: x + 1}
    fresh = Key()
    own[fresh] = x * 2
    own[FIRST] = own[FIRST] * 3
    return own[FIRST], own[SECOND], own[fresh], len(own), FIRST in own, LAYER in own


@pytest.mark.parametrize("fn", [read, found, gone_through, made_here])
def test_in_one_graph(fn):
    x = torch.ones(2)
    compiled = dynacompile.compile(fn, fullgraph=True, backend="eager", isolate_recompiles=True)
    for _ in range(2):
        got, want = compiled(x), fn(x)
        assert repr(got) == repr(want)


def writes(x, table, key, other):
    table[key] = table.get(key, 0.0) + 1.0
    table.setdefault(other, 5.0)
    if len(table) > 2:
        del table[other]
    return x + table[key]


def counts(x, table, key, other):
    table[other] = x * 2
    return x + len(table), list(table)[-1] is other, key in table


def adds(x, members, key, other):
    had = key in members
    members.add(other)
    members.discard(key)
    return x + had, len(members)


@pytest.mark.parametrize("cls", [dict, OrderedDict, lambda given: defaultdict(float, given)], ids=["dict", "OrderedDict", "defaultdict"])
@pytest.mark.parametrize("fn", [writes, counts])
def test_changes_are_seen(fn, cls):
    def story(wrap):
        run, keys = wrap(fn), [Key(), Slotted(), nn.ReLU(), Key()]
        table = cls({keys[0]: 1.0, keys[1]: 2.0})
        for key, other in ((0, 1), (0, 1), (1, 2), (2, 0), (3, 2)):
            yield run(torch.ones(2), table, keys[key], keys[other])
            yield [keys.index(key) for key in table], list(table.values())

    check_same(story, backend="eager", least=None)


def test_sets_are_changed():
    def story(wrap):
        run, keys = wrap(adds), [Key(), Slotted(), nn.ReLU(), Key()]
        members = {keys[0], keys[1]}
        for key, other in ((0, 1), (0, 1), (1, 2), (2, 0), (3, 2)):
            yield run(torch.ones(2), members, keys[key], keys[other])
            yield sorted(map(keys.index, members))

    check_same(story, backend="eager", least=None)


def test_another_key_of_the_same_look_is_another_program():
    def look(x, table, key):
        return x + table.get(key, 0.0)

    compiled = dynacompile.compile(look, fullgraph=True, backend="eager", isolate_recompiles=True)
    first, second = Key(), Key()
    x = torch.zeros(1)
    assert [compiled(x, {first: 1.0}, first).item(), compiled(x, {second: 1.0}, first).item(), compiled(x, {second: 2.0}, second).item()] == [1.0, 0.0, 2.0]


def test_a_class_that_says_what_equals_it_is_left_to_python():
    def story(wrap):
        run = wrap(lambda x, table: x + table.get(Equal(), 0.0))
        yield run(torch.ones(1), {Equal(): 2.0})
        yield run(torch.ones(1), {Key(): 2.0})

    check_same(story, backend="eager", least=None)
