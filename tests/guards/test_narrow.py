"""What is asked of a container is what is guarded: other changes of it compile nothing anew, and those that are asked about do."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch

from dynacompile.events import Compiled
from tests.scenarios import check_same


def asked_for_a(d: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if "a" in d else x * 3


def length_and_membership(d: Any, x: torch.Tensor) -> Any:
    return x + len(d), "a" in d, "z" not in d


def in_keys(d: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if "a" in d.keys() else x * 3


def without_a(d: Any, x: torch.Tensor) -> Any:
    del d["a"]
    return x * 2, list(d)


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda **given: defaultdict(int, given)], ids=["dict", "OrderedDict", "defaultdict"])
@pytest.mark.parametrize("fn", [asked_for_a, length_and_membership, in_keys, without_a])
def test_values_that_nobody_reads(fn, make):
    def story(wrap):
        run = wrap(fn)
        for value in (1, 2.5, "text", None, torch.ones(2), [1]):
            yield run(make(a=value, b=0), torch.ones(2))

    assert sum(isinstance(event, Compiled) for event in check_same(story)) == 1


@pytest.mark.parametrize("fn", [asked_for_a, length_and_membership, in_keys])
def test_a_key_that_goes_and_comes(fn):
    def story(wrap):
        run, d = wrap(fn), {"a": 1, "b": 2}
        for change in (lambda: None, lambda: d.pop("a"), lambda: d.update(a=3), lambda: d.update(z=3)):
            change()
            yield run(d, torch.ones(2))

    assert sum(isinstance(event, Compiled) for event in check_same(story)) >= 2


def class_of(d: Any, x: torch.Tensor) -> Any:
    return x + 1, type(d).__name__, isinstance(d, tuple), d is None


def passed_on(d: Any, x: torch.Tensor) -> Any:
    return x + 1, d


@pytest.mark.parametrize("fn", [class_of, passed_on])
def test_items_and_the_length_of_a_tuple_that_nobody_reads(fn):
    def story(wrap):
        run = wrap(fn)
        for given in ((1, 2), (1, 2, 3), (), (torch.ones(2), None)):
            yield run(given, torch.ones(2))

    assert sum(isinstance(event, Compiled) for event in check_same(story)) == 1


def changed_and_counted(d: Any, x: torch.Tensor) -> Any:
    d["new"] = 1
    d.pop("a", None)
    return x * len(d)


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda **given: defaultdict(int, given)], ids=["dict", "OrderedDict", "defaultdict"])
@pytest.mark.parametrize(
    ("fn", "entries"), [(lambda d, x: x + len(d), 2), (lambda d, x: x if d else -x, 3), (changed_and_counted, 2)], ids=["length", "truth", "changed"]
)
def test_keys_of_a_dict_of_which_the_length_is_read(fn, entries, make):
    """Other keys compile nothing anew. Another length does, which is a number from then on; whether it is 0 is asked by one of the programs."""

    def story(wrap):
        run = wrap(fn)
        for given in ({"b": 1}, {"c": 2}, {"b": 1, "c": 2}, {"d": None, "c": 2}, {}):
            yield run(made := make(**given), torch.ones(2)), made

    assert sum(isinstance(event, Compiled) for event in check_same(story)) == entries


def test_a_value_is_guarded_once_it_is_read():
    def fn(d, x):
        return x * d["a"] if "a" in d else x

    def story(wrap):
        run = wrap(fn)
        for value in (1.0, 2.0, True, 1):
            yield run({"a": value}, torch.ones(2))

    check_same(story)
