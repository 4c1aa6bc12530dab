"""The polyfills against their models in C: results, what is left in lists, comparisons in their order, and errors."""

from __future__ import annotations

import copy
import heapq
import random

import pytest

from dynacompile.capture.polyfills import TABLE, reduction

HEAPS = [model for model in TABLE if hasattr(heapq, model.__name__)]


class Item:
    """Tells what it is compared with, and refuses once."""

    def __init__(self, n, log, refuses=-1):
        self.n, self.log, self.refuses = n, log, refuses

    def __lt__(self, other):
        self.log.append((self.n, other.n))
        if len(self.log) == self.refuses:
            raise KeyError(self.n)
        return self.n < other.n


def told(function, seed):
    """What a call of the function shows."""
    pick, log = random.Random(seed), []
    items = [Item(pick.randrange(9), log, pick.choice((-1, -1, 2, 3))) for _ in range(pick.randrange(9))]
    if function.__name__.startswith(("bisect", "insort")):
        items.sort(key=lambda item: item.n)
        args = (items, Item(pick.randrange(9), log), *pick.choice(((), (0,), (1, len(items)), (-1,), (0, len(items) + 3))))
        kwargs = pick.choice(({}, {}, {"key": None}))
    else:
        takes = function.__name__.rstrip("_max").endswith(("push", "pushpop", "replace"))
        args, kwargs = ((items, Item(4, log)) if takes else (items,)), {}
    try:
        result = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - what is raised is compared
        result = type(error), error.args
    return getattr(result, "n", result), [item.n for item in items], log


@pytest.mark.parametrize("model", TABLE, ids=lambda model: model.__name__)
def test_as_its_model(model):
    for seed in range(300):
        got, want = told(TABLE[model], seed), told(model, seed)
        assert got[1:] == want[1:] and (got[0] == want[0] or isinstance(want[0], tuple) and got[0][0] is want[0][0]), seed


@pytest.mark.parametrize("model", HEAPS)
def test_what_is_no_list(model):
    more = (1,) if "push" in model.__name__ or "replace" in model.__name__ else ()
    for given in ((3, 1), None):
        with pytest.raises(TypeError) as wanted:
            model(given, *more)
        with pytest.raises(TypeError) as got:
            TABLE[model](given, *more)
        assert str(got.value) == str(wanted.value)


class Plain:
    def __init__(self):
        self.a = 1


class Slotted:
    __slots__ = ("b", "__hidden")

    def __init__(self):
        self.b, self.__hidden = 2, 3


class Both(Plain, Slotted):
    def __init__(self):
        Plain.__init__(self)
        Slotted.__init__(self)


class Empty:
    pass


@pytest.mark.parametrize("cls", [Plain, Slotted, Both, Empty])
def test_states_and_reductions(cls):
    made = cls()
    assert reduction.getstate(made) == object.__getstate__(made)
    assert reduction.reduce_ex(made, 4) == made.__reduce_ex__(4)
    assert reduction.getstate(copy.copy(made)) == object.__getstate__(made)
