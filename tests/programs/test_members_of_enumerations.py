"""Operators between members of enumerations that define some of them, and what else may stand beside these: as in eager, in one graph where both are known."""

import enum
import itertools
import operator

import pytest
import torch

import dynacompile
from dynacompile.events import GraphBroke


class AnyCase(str, enum.Enum):  # noqa: UP042  (as in Lightning)
    """Equal whatever the case of their letters."""

    A = "a"
    B = "B"

    def __eq__(self, other):
        other = other.value if isinstance(other, enum.Enum) else other
        return self.value.lower() == str(other).lower()

    def __hash__(self):
        return hash(self.value.lower())


class Number(int, enum.Enum):
    A = 1
    B = 2

    def __add__(self, other):
        return NotImplemented if isinstance(other, str) else ("add", int(self), other)

    def __radd__(self, other):
        return "radd", other

    def __lt__(self, other):
        return "lt"


class Partly(enum.Enum):
    A = 1
    B = 2

    def __eq__(self, other):
        return NotImplemented if isinstance(other, str) else self.value == getattr(other, "value", other)

    __hash__ = None


class Ordered(enum.Enum):
    A = 1
    B = 2

    def __lt__(self, other):
        return self.value < other.value

    def __mul__(self, count):
        return count * self.value


class Plain(enum.Enum):
    A = 1


MEMBERS = [*AnyCase, *Number, *Partly, *Ordered, *Plain]
OTHERS = [1, 2, "a", "b", "A", 1.0, None, True, (1,), [1], {"a": 1}, object]


def outcome(call):
    try:
        return call(torch.ones(1))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "gt", "add", "mul", "le"])
def test_operators(name):
    sign = getattr(operator, name)
    for left, right in itertools.chain(itertools.product(MEMBERS, [*MEMBERS, *OTHERS]), itertools.product(OTHERS, MEMBERS)):
        dynacompile.reset()

        def call(x):
            return (x + 1, sign(left, right), [left] == [right], left in (right,))[1:]  # noqa: B023

        assert outcome(dynacompile.compile(call, backend="eager")) == outcome(call), (left, right)


def test_a_comparison_of_the_users_is_followed():
    def call(x, algorithm):
        return x * (2 if algorithm == AnyCase.A else 3)

    events = []
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(call, backend="eager", isolate_recompiles=True)
        for algorithm in (AnyCase.A, AnyCase.B, "A", "b", AnyCase.A):
            assert compiled(torch.ones(1), algorithm) == call(torch.ones(1), algorithm)
    finally:
        end()
    assert not [e for e in events if isinstance(e, GraphBroke)]


TEXTS = ["'{}'.format(m)", "'{!r}'.format(m)", "'{a}'.format(a=m)", "'%s' % m", "'%s %r' % (m, m)", "f'{m}'", "f'{m!r:>12}'", "str([m])", "repr((m,))"]
TEXTS += ["','.join(map(str, [m]))", "str({'a': m})", "'{0[0]}'.format([m])", "format(m, '')", "ascii(m)", "'{}'.format([m])"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_members_whose_class_changes(text):
    class Changing(enum.Enum):
        X = 1

    scope = {"m": Changing.X}
    exec(f"def call(x):\n    return x + 1, {text}", scope)
    compiled = dynacompile.compile(scope["call"], backend="eager", isolate_recompiles=True)
    ways = {"__str__": lambda s: "str", "__repr__": lambda s: "repr", "__format__": lambda s, how: "format"}
    for name, way in [(None, None), *ways.items(), *((name, None) for name in ways)]:
        if way is not None:
            setattr(Changing, name, way)
        elif name is not None:
            delattr(Changing, name)
        for _ in range(2):
            assert compiled(torch.ones(1))[1] == scope["call"](torch.ones(1))[1], name
