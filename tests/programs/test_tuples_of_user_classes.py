"""Tuples whose class has methods or attributes of its own, given to a program and made in it: each in one graph, beside eager."""

from __future__ import annotations

import collections
import typing

import pytest
import torch

from tests.scenarios import attempt, check_same


class ByName(collections.namedtuple("ByName", "a b")):
    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, int) else getattr(self, key)


class Typed(typing.NamedTuple):
    a: object
    b: object = 3

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)


class Otherwise(collections.namedtuple("Otherwise", "a b")):
    def __iter__(self):
        return iter((self.a * 10, self.b * 10))

    def __len__(self):
        return 7

    def __contains__(self, key):
        return key == "x"

    def __eq__(self, other):
        return other == 3

    __hash__ = None


class Vector(collections.namedtuple("Vector", "a b")):
    @property
    def total(self):
        return self.a + self.b

    def scaled(self):
        return self.a * 2

    def __add__(self, other):
        return Vector(self.a + other.a, self.b + other.b)

    def __bool__(self):
        return False


class Loose(collections.namedtuple("Loose", "a b")):
    """Has a __dict__."""

    size = 3

    def scaled(self):
        return self.a * 2


class FromOne(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def __init__(self, *items):
        self.count = len(items)

    def __getitem__(self, place):
        return super().__getitem__(place - 1)


class Plain(tuple):
    pass


def with_own(made, **attributes):
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def a():
    return torch.linspace(-1, 1, 3)


def b():
    return torch.linspace(2, 5, 3)


def by_name(t):
    first, second = t
    _, *rest = t
    return t["a"] + t["b"] * t[0] - t[-1], t.a * second + first * len(t), rest, [*t], bool(t), t


def replaced(t):
    made = t._replace(a=t.b * 3)
    return made["a"], made[1], made, t._asdict(), t._fields, type(made).__name__, isinstance(t, tuple), hasattr(t, "a"), hasattr(t, "c")


def made(x, y):
    one, other, third = ByName(x, y), ByName._make([x, y]), ByName(b=x, a=y)
    return one["a"] + other["b"] + third[0], one, [*third], Typed(x)["b"], Typed(x, y)[1], Typed(x) + (1,)


def read_otherwise(t):
    first, second = t
    return first + t.a, second, len(t), "x" in t, "y" in t, t == 3, t != 3, t == 4, list(t), t[0], bool(t)


def made_otherwise(x, y):
    return (*read_otherwise(Otherwise(x, y)), Otherwise(x, y))


def operators(t, other):
    total = t + other
    return total, total.total, 1 if t else 2, total.scaled()


def numbers(t, x):
    return x * t["a"] * t.b, t == (1, 2.5), (1, 2.5) == t, t != (1, 2.5), t < (3,), hash(t) == hash((1, 2.5)), repr(t), f"{t}", t.index(t.b), t.count(1), t * 2


def nested(t):
    return t["b"]["b"] * t["a"], t.b.a


def matched(t):
    match t:
        case ByName(a=x, b=(y, z)):
            return x - y * z
        case (x, y):
            return x + y
    return None


def attributes(t):
    extra = getattr(t, "extra", 7)
    return t.a * extra * t.size, hasattr(t, "other"), t.scaled(), vars(t) if hasattr(t, "extra") else None


def sets_an_attribute(t):
    t.other = t.a * t.extra
    return t.other


def from_one(t):
    return t[1] + t[2], len(t), [*t], t.count


def made_from_one(x, y):
    made = FromOne(x, y)
    made.other = x
    return made[1] + made[2], made.count, made, vars(made)


def of_no_methods(t):
    return t[0] + t[1], torch.stack(t), len(t), [*t], t


def writes_an_item(t):
    t["a"].add_(1)
    return t.b * 2


PROGRAMS = {
    by_name: [lambda: [ByName(a(), b())], lambda: [ByName(b(), a())], lambda: [Typed(a(), b())]],
    replaced: [lambda: [ByName(a(), b())]],
    made: [lambda: [a(), b()]],
    read_otherwise: [lambda: [Otherwise(a(), b())]],
    made_otherwise: [lambda: [a(), b()]],
    operators: [lambda: [Vector(a(), b()), Vector(b(), a())]],
    numbers: [lambda: [ByName(1, 2.5), a()], lambda: [ByName(2, 2.5), a()], lambda: [ByName(1, 3.5), b()], lambda: [Typed(1, 2.5), b()]],
    nested: [lambda: [ByName(a(), ByName(b(), 3))], lambda: [ByName(a(), ByName(b(), 4))]],
    matched: [lambda: [ByName(a(), b())], lambda: [ByName(a(), (b(), 2))], lambda: [Otherwise(a(), b())]],
    attributes: [
        lambda: [Loose(a(), b())],
        lambda: [with_own(Loose(a(), b()), extra=2)],
        lambda: [with_own(Loose(a(), b()), extra=b())],
        lambda: [with_own(Loose(a(), b()), other=1)],
        lambda: [with_own(Loose(a(), b()), size=9)],
        lambda: [Loose(b(), a())],
    ],
    sets_an_attribute: [lambda: [with_own(Loose(a(), b()), extra=2)], lambda: [with_own(Loose(a(), b()), extra=4, other=1)]],
    from_one: [lambda: [FromOne(a(), b())], lambda: [FromOne(a(), b(), 3)], lambda: [with_own(FromOne(a(), b()), count=5)]],
    made_from_one: [lambda: [a(), b()]],
    of_no_methods: [lambda: [Plain([a(), b()])], lambda: [Plain([a(), b(), a()])], lambda: [with_own(Loose(a(), b()), other=1)]],
    writes_an_item: [lambda: [ByName(a(), b())], lambda: [ByName(a(), b())]],
}


def shown(value):
    """Items past the methods of a tuple's class, and its attributes."""
    if isinstance(value, tuple):
        return type(value).__name__, [shown(item) for item in tuple.__iter__(value)], shown(dict(getattr(value, "__dict__", {})))
    if isinstance(value, list):
        return [shown(item) for item in value]
    return {key: shown(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn):
    def story(wrap):
        call = wrap(fn)
        for make in PROGRAMS[fn]:
            for _ in range(2):
                arguments = make()
                yield shown(attempt(call, *arguments)), shown(arguments)

    check_same(story, least=None, fullgraph=True, backend="eager")


def test_gradients_and_breaks():
    def loss(t):
        return (t["a"] * t[1]).sum()

    def breaks(x):
        t = ByName(x, with_own(Loose(x * 2, x), note=x))
        print(end="")
        return t["b"].a + t["a"], t, t["b"].note

    def story(wrap):
        given = ByName(a().requires_grad_(), b().requires_grad_())
        wrap(loss)(given).backward()
        yield given.a.grad, given.b.grad
        yield shown(wrap(breaks)(a()))

    check_same(story)
