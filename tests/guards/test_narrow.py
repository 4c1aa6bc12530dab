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


def test_a_value_is_guarded_once_it_is_read():
    def fn(d, x):
        return x * d["a"] if "a" in d else x

    def story(wrap):
        run = wrap(fn)
        for value in (1.0, 2.0, True, 1):
            yield run({"a": value}, torch.ones(2))

    check_same(story)
