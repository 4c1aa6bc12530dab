"""Dataclasses, named tuples and enums: made by the frame, and passed in."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing

import pytest
import torch

from tests.checking import check


@dataclasses.dataclass
class Plain:
    a: object
    b: int = 2
    c: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.d = self.b * 2

    @property
    def twice(self):
        return self.b * 2


@dataclasses.dataclass(kw_only=True)
class Keywords(Plain):
    z: int = 9


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: object
    b: int = 1


@dataclasses.dataclass(order=True)
class Ordered:
    k: int
    v: str = "a"


def dataclass_made(x):
    made = Plain(x)
    made.c.append(1)
    return x * made.d * made.twice, made.c, str(made.b), Keywords(a=1, z=3).z


def dataclass_frozen(x):
    first = Frozen(x * 2)
    second = dataclasses.replace(first, b=5)
    try:
        second.b = 3
    except dataclasses.FrozenInstanceError as error:
        return second.a * second.b, str(error)
    return x


def dataclass_slots(x):
    made = FrozenSlots(x * 2, 3)
    return made.a * made.b, dataclasses.replace(made, b=4).b


def dataclass_order(x):
    best = max([Ordered(3), Ordered(1)])
    return x * best.k if Ordered(1) < Ordered(2) and Ordered(1) == Ordered(1) else x, repr(best), f"{best!r}"


def dataclass_fields(x):
    made = Plain(x, 3)
    return sum(getattr(made, f.name) for f in dataclasses.fields(made) if f.name == "b") * x


class Point(typing.NamedTuple):
    a: object
    b: int = 3

    def scaled(self):
        return self.a * self.b

    @property
    def above(self):
        return self.b + 1


class Pair(collections.namedtuple("PairBase", "x y")):
    __slots__ = ()

    def __new__(cls, x, y=5):
        return super().__new__(cls, x, y)

    def total(self):
        return self.x + self.y


GIVEN_POINT = Point(2.0, 4)


def namedtuple_methods(x):
    point = Point(x)
    a, b = point
    return point.scaled() + point.above + a * b + point[1] + point._replace(b=4).b, point, repr(Point(1, 2))


def namedtuple_own_new(x):
    pair = Pair(x)
    return pair.total(), len(pair), pair


def namedtuple_argument(x, point=GIVEN_POINT):
    return x * point.b + point.scaled()


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"

    def shout(self):
        return self.name + "!"

    @classmethod
    def default(cls):
        return cls.RED

    @property
    def lower(self):
        return self.name.lower()


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def enum_members(x):
    red = Colour.RED
    if red is Colour.RED and red == Colour(1) and Colour["BLUE"].value == "b" and red != Colour.BLUE:
        x = x + 1
    return x * len(red.shout()) * len(Colour.default().lower), red, [m.name for m in Colour], len(Colour), red in Colour, {red: 1}[red]


def enum_flags(x):
    both = Access.READ | Access.WRITE
    return x * Level.HIGH + Level.LOW if Access.READ in both and both & Access.WRITE and not both & ~both else x, Level.HIGH > Level.LOW


WHOLE = (
    dataclass_made,
    dataclass_frozen,
    dataclass_slots,
    dataclass_order,
    dataclass_fields,
    namedtuple_methods,
    namedtuple_own_new,
    namedtuple_argument,
    enum_members,
    enum_flags,
)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check(fn, torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_(), options={"backend": "eager"})
