"""Classes of the program itself: dataclasses, named tuples, enums, descriptors, slots, attribute hooks, operators, metaclasses, copies."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import operator
import types
import typing

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


class InDict:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def __getitem__(self, key):
        return self.__dict__[key]


def instance_dict(x):
    made = InDict(a=2, b=3)
    made.__dict__["c"] = 4
    return x * made["a"] * made.c, list(made.__dict__), made.__dict__.get("z", 1), {**vars(made)}, len(made.__dict__)


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


def property_without_setter(x):
    made = Plain(x)
    y = x * 2
    try:
        made.twice = 3
    except AttributeError as error:
        return y, str(error)
    return x


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
    descriptors,
    descriptors_outside,
    slots_missing,
    attribute_hooks,
    attribute_hooks_run_once,
    getattribute,
    operators,
    conversions,
    comparisons_of_objects,
    metaclass,
    inheritance,
    own_new,
    abstract_base,
    namespace,
    copies,
    cached_property,
    list_subclass,
    list_subclass_outside,
    dict_subclass_outside,
    instance_dict,
    total_ordering,
    property_without_setter,
)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn):
    check(fn, torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_(), options={"backend": "eager"})
