"""What classes define: operators, conversions, metaclasses, inheritance, `__new__`, bases written in C."""

from __future__ import annotations

import abc
import functools
import operator

import pytest
import torch

from tests.checking import check

LOG: list = []


class Ops:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Ops(self.v + (other.v if isinstance(other, Ops) else other))

    __radd__ = __add__

    def __iadd__(self, other):
        self.v += other
        return self

    def __mul__(self, other):
        return NotImplemented

    def __rmul__(self, other):
        return self.v * other

    def __abs__(self):
        return abs(self.v)

    def __len__(self):
        return 4

    def __contains__(self, key):
        return key == 3

    def __getitem__(self, key):
        return (key.start, key.stop) if isinstance(key, slice) else key

    def __setitem__(self, key, value):
        LOG.append((key, value))

    def __delitem__(self, key):
        LOG.append(("del", key))

    def __call__(self, *args, **kwargs):
        return len(args) + len(kwargs)

    def __iter__(self):
        return iter([1, 2, 3])

    def __reversed__(self):
        return iter([3, 2, 1])

    def __lt__(self, other):
        return self.v < other.v

    def __eq__(self, other):
        return isinstance(other, Ops) and self.v == other.v

    def __hash__(self):
        return 5

    def __int__(self):
        return 6

    def __index__(self):
        return 2

    def __str__(self):
        return "text"

    def __format__(self, spec):
        return "formatted" + spec

    def __round__(self, digits=None):
        return 8

    def __divmod__(self, other):
        return (1, 2)


def operators(x):
    LOG.clear()
    a, b = Ops(1), Ops(2)
    seen = [(a + b).v, (a + 3).v, (3 + a).v, abs(a), len(a), 3 in a, 5 in a, a[2], a[1:3], a(1, 2, k=3), list(a), list(reversed(a)), a < b, a == b, a != b]
    a[3] = 4
    del a[1]
    a += 5
    return x * a.v, seen, LOG, 4 * a


def conversions(x):
    a = Ops(1)
    return x * int(a), str(a), f"{a}", f"{a:>3}", f"{a!s:>6}", round(a), divmod(a, 2), [1, 2, 3][a], operator.index(a), hash(a)


def comparisons_of_objects(x):
    ordered = [o.v for o in sorted([Ops(3), Ops(1), Ops(2)], reverse=True)]
    return x * sum([Ops(1), Ops(2)], Ops(0)).v, ordered, min([Ops(4), Ops(2)]).v, [Ops(3)].index(Ops(3)), Ops(1) in [Ops(2), Ops(1)]


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.tag = "t"
        return made

    def __getitem__(cls, key):
        return key

    def __len__(cls):
        return 3

    def __iter__(cls):
        return iter([1, 2])

    @property
    def shared(cls):
        return 17


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


def metaclass(x):
    made = WithMeta(2)
    return x * made.v * WithMeta[4] * len(WithMeta) * WithMeta.shared, made.tag, list(WithMeta)


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


class Left(Base):
    def f(self, x):
        return super().f(x) * 2


class Right(Base):
    def f(self, x):
        return super().f(x) * 3

    def __init__(self, a, b=1):
        super().__init__(a)
        self.b = b


class Diamond(Left, Right):
    def f(self, x):
        return super(Diamond, self).f(x)  # noqa: UP008

    @classmethod
    def make(cls, a):
        return super().make(a + 1)

    @property
    def prop(self):
        return self.a

    @prop.setter
    def prop(self, value):
        self.a = value * 2

    @prop.deleter
    def prop(self):
        self.a = 0


def inheritance(x):
    made = Diamond.make(2)
    made.prop = 4
    result = made.f(x) + Diamond.static(x) * made.prop
    del made.prop
    return result + made.a, isinstance(made, Left), type(made).__name__


class OwnNew:
    def __new__(cls, a):
        made = super().__new__(cls)
        made.by_new = a
        return made

    def __init__(self, a):
        self.by_init = a


def own_new(x):
    made = OwnNew(3)
    return x * made.by_new * made.by_init


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self, x): ...

    def g(self, x):
        return self.f(x) * 2


class Concrete(Abstract):
    def f(self, x):
        return x + 1


def abstract_base(x):
    return Concrete().g(x), isinstance(Concrete(), Abstract)


class Numbers(list):
    def total(self):
        return sum(self)

    def append(self, value):
        super().append(value * 2)


def list_subclass(x):
    made = Numbers([1, 2])
    made.append(4)
    made[0] = 7
    made.note = "n"
    return x * made.total() * len(made) * made[-1], made, made.note, made + [1], made[:2], 8 in made


GIVEN = Numbers([1, 2])


def list_subclass_outside(x):
    GIVEN.append(3)
    result = x * GIVEN.total()
    del GIVEN[-1]
    return result, list(GIVEN)


class Table(dict):
    def size(self):
        return len(self)


TABLE = Table(a=1)


def dict_subclass_outside(x):
    TABLE["b"] = 3
    TABLE.update(c=4)
    result = x * TABLE["a"] * TABLE.size(), dict(TABLE)
    del TABLE["b"], TABLE["c"]
    return result


@functools.total_ordering
class Total:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v == other.v

    def __lt__(self, other):
        return self.v < other.v


def total_ordering(x):
    return x * 2 if Total(1) < Total(2) and Total(2) >= Total(1) else x


WHOLE = (
    operators,
    conversions,
    comparisons_of_objects,
    metaclass,
    inheritance,
    own_new,
    abstract_base,
    list_subclass,
    list_subclass_outside,
    dict_subclass_outside,
    total_ordering,
)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check(fn, torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_(), options={"backend": "eager"})
