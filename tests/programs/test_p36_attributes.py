"""How attributes of objects are found and set: descriptors, slots, hooks, properties, instance dicts."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types

import pytest
import torch

from tests.checking import check

LOG: list = []


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


class Doubled:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, owner, cls=None):
        return self if owner is None else getattr(owner, self.name) * 2

    def __set__(self, owner, value):
        setattr(owner, self.name, value)


class Eleven:
    def __get__(self, owner, cls=None):
        return 11


class Described:
    d = Doubled()
    eleven = Eleven()
    shared = 4
    __slots__ = ("_d", "s", "__dict__")

    def __init__(self):
        self.d = 3
        self.s = 1


def descriptors(x):
    made = Described()
    made.d = 5
    return x * made.d * made.eleven * made.s * made.shared


HELD = Described()


def descriptors_outside(x):
    HELD.d = 7
    HELD.s = 3
    HELD.free = 5
    return x * HELD.d * HELD.eleven * HELD.s * HELD.free


class Slots:
    __slots__ = ("a", "b")


def slots_missing(x):
    made = Slots()
    made.a = 2
    del made.a
    with_a = hasattr(made, "a")
    try:
        made.c = 3
    except AttributeError:
        return x * 2, with_a
    return x


class Hooked:
    def __init__(self):
        self.table = {"a": 3}

    def __getattr__(self, name):
        if name in self.__dict__.get("table", {}):
            return self.table[name]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        LOG.append(name)

    def __delattr__(self, name):
        LOG.append("del " + name)
        object.__delattr__(self, name)


def attribute_hooks(x):
    LOG.clear()
    made = Hooked()
    made.z = 3
    del made.z
    return x * made.a, getattr(made, "q", 5), hasattr(made, "a"), hasattr(made, "nope"), LOG


OUTSIDE = Hooked()


def attribute_hooks_run_once(x):
    LOG.clear()
    OUTSIDE.k = 3
    return x * OUTSIDE.a, list(LOG)


class Magic:
    def __init__(self):
        self.v = 2

    def __getattribute__(self, name):
        return 42 if name == "magic" else super().__getattribute__(name)


def getattribute(x):
    made = Magic()
    return x * made.magic * made.v


class Base:
    def __init__(self, a):
        self.a = a

    def f(self, x):
        return x * self.a

    @classmethod
    def make(cls, a):
        return cls(a)

    @staticmethod
    def static(x):
        return x + 1


def namespace(x):
    made = types.SimpleNamespace(a=1, b=x)
    made.c = 3
    return made.b * made.a * made.c, sorted(vars(made))


def copies(x):
    table = {"a": [1, 2, {"b": 3}], "c": (1, [2])}
    deep, shallow = copy.deepcopy(table["c"]), copy.copy(table)
    shallow["z"] = 1
    deep[1].append(3)
    first = Base(3)
    second = copy.copy(first)
    second.a = 5
    numbers = {1, 2}
    other = copy.copy(numbers)
    other.add(3)
    return x * len(deep[1]) * len(table) * second.a * first.a * copy.deepcopy(first).a, shallow["a"] is table["a"], len(other), len(numbers)


class Cached:
    def __init__(self):
        self.n = 0

    @functools.cached_property
    def c(self):
        self.n += 1
        return self.n


def cached_property(x):
    made = Cached()
    return x * made.c * made.c * made.n


class InDict:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def __getitem__(self, key):
        return self.__dict__[key]


def instance_dict(x):
    made = InDict(a=2, b=3)
    made.__dict__["c"] = 4
    return x * made["a"] * made.c, list(made.__dict__), made.__dict__.get("z", 1), {**vars(made)}, len(made.__dict__)


def property_without_setter(x):
    made = Plain(x)
    y = x * 2
    try:
        made.twice = 3
    except AttributeError as error:
        return y, str(error)
    return x


WHOLE = (
    descriptors,
    descriptors_outside,
    slots_missing,
    attribute_hooks,
    attribute_hooks_run_once,
    getattribute,
    cached_property,
    instance_dict,
    property_without_setter,
    namespace,
    copies,
)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check(fn, torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_(), options={"backend": "eager"})
