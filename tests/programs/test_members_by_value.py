"""Enumerations that say what to give for values that none of their members has."""

from __future__ import annotations

import enum

import pytest
import torch

import dynacompile
from tests.scenarios import check_same


class Padding(str, enum.Enum):  # noqa: UP042 - as libraries write it
    LONGEST = "longest"
    NONE = "none"

    @classmethod
    def _missing_(cls, value):
        if value in (True, False):
            return cls.LONGEST if value else cls.NONE
        if value == "nothing":
            return None
        raise KeyError(f"{value} is none of {list(cls._value2member_map_)}")


class Built(enum.Enum):
    ONE = (1, 2)
    TWO = (3, 4)

    def __init__(self, first, second):
        self.total = first + second

    @classmethod
    def _missing_(cls, value):
        return {5: cls.TWO, 6: "no member"}.get(value)


def pads(x, value):
    try:
        return x * 2 if Padding(value) is Padding.LONGEST else x
    except (ValueError, KeyError) as error:
        return x + 1, type(error).__name__, error.args


def totals(x, value):
    try:
        return x * Built(value).total
    except (ValueError, TypeError) as error:
        return x + 1, type(error).__name__, error.args


@pytest.mark.parametrize(
    ("fn", "values"), [(pads, ["longest", "none", True, False, Padding.NONE, "nothing", "else"]), (totals, [(1, 2), Built.TWO, 5, 6, 7, [1]])]
)
def test_as_in_eager(fn, values):
    def story(wrap):
        run = wrap(fn)
        for value in values:
            yield run(torch.ones(2), value)

    check_same(story, backend="eager", least=None)
    dynacompile.compile(fn, fullgraph=True, backend="eager", isolate_recompiles=True)(torch.ones(2), values[0])


def test_what_is_missing_is_in_the_graph():
    compiled = dynacompile.compile(pads, fullgraph=True, backend="eager", isolate_recompiles=True)
    assert torch.equal(compiled(torch.ones(2), True), torch.full((2,), 2.0))


def test_a_property_that_the_metaclass_gets_later():
    def asks(x, level):
        return x * (2 if getattr(level, "extra", 9) else 3)

    def story(wrap):
        meta = type("Meta", (enum.EnumMeta,), {})
        level = meta("Level", (enum.Enum,), enum.EnumMeta.__prepare__("Level", (enum.Enum,)))
        run = wrap(asks)
        yield run(torch.ones(2), level)
        level.extra = 0
        yield run(torch.ones(2), level)
        meta.extra = property(lambda cls: len(cls) + 1)
        yield run(torch.ones(2), level)
        del meta.extra
        yield run(torch.ones(2), level)

    check_same(story, backend="eager", least=None)
