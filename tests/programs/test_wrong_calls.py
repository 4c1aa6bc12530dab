"""Calls and objects that programs rarely have: what Python refuses is refused, and the rest is as in eager."""

from __future__ import annotations

import abc
import functools
import operator
import types
import weakref
from collections import Counter, namedtuple

import pytest
import torch

import dynacompile
from tests.checking import check

Pair = namedtuple("Pair", "a b", defaults=[3])


def outcome(ask):
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__, str(error)


class Holder:
    def __init__(self):
        self.v = 3

    def __len__(self):
        return 2

    def __getitem__(self, key):
        return key * 2

    def __setitem__(self, key, value):
        self.v = key, value

    def __contains__(self, item):
        return item == 1

    def __iter__(self):
        return iter([1, 2])

    def __bool__(self):
        return False

    def __add__(self, other):
        return "add", other

    def __iadd__(self, other):
        return "iadd", other


class Called(Holder):
    def __call__(self, value):
        return value + 1


HOLDER, CALLED = Holder(), Called()
PROXY, CALLABLE = weakref.proxy(HOLDER), weakref.proxy(CALLED)


class Unfinished(abc.ABC):
    def __new__(cls, *args):
        return super().__new__(cls)

    @abc.abstractmethod
    def method(self): ...


class Above:
    data = 5


class Below(Above):
    def ask(self):
        above = super()
        return above.data, getattr(above, "data", 1), getattr(above, "absent", 1), above.__class__ is super, outcome(lambda: above.absent)


class Ends:
    def __init__(self, *value):
        self.left, self.value = 2, value

    def __iter__(self):
        return self

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration(*self.value)
        return self.left


def delegates(to):
    got = yield from to
    yield "got", got


def counts():
    got = []
    while (value := (yield len(got))) is not None:
        got.append(value)
    return got


class Coded(Exception):
    code = 5


def fields_of_tuples(x):
    return Pair(x, 1), Pair(b=x, a=2), Pair(x), Pair._make([x, 2])


def wrong_fields_of_tuples(x):
    wrong = (lambda: Pair(x, a=5), lambda: Pair(x, 2, b=5), lambda: Pair(), lambda: Pair(x, c=1), lambda: Pair(1, 2, 3), lambda: Pair._make([1]))
    return x + 1, [outcome(ask) for ask in wrong]


def fields_of_functions(x):
    def function(a=1, *, b=2):
        return a, b

    out = []
    wrong = {"__defaults__": 5, "__kwdefaults__": 5, "__name__": 5, "__qualname__": 5, "__annotations__": 5, "__closure__": None, "__globals__": {}}
    for name, value in wrong.items():
        out.append(outcome(lambda name=name, value=value: setattr(function, name, value)))
    return x + 1, out, function()


def set_fields_of_functions(x):
    def function(a=1, *, b=2):
        return a, b

    function.__kwdefaults__, function.__defaults__, function.__name__ = {"b": x}, (10,), "other"
    first = function()
    function.__kwdefaults__ = None
    return first, function(b=1), function.__name__, function.__doc__


def methods(x):
    return types.MethodType(len, [1, 2])(), types.MethodType(lambda self, y: self + y, x)(1)


def wrong_methods(x):
    return x + 1, [outcome(lambda a=a: types.MethodType(*a)()) for a in ((1, 2), (len, None), (len,))]


def proxies(x):
    p = PROXY
    p.v, p.w = 3, 1
    out = [
        bool(p),
        len(p),
        p[3],
        1 in p,
        p.v,
        type(p).__name__,
        isinstance(p, Holder),
        hasattr(p, "absent"),
        list(p),
        p + 1,
        p == HOLDER,
        p != HOLDER,
        p is HOLDER,
    ]
    p[1] = 5
    p += 2
    del PROXY.w
    return x + 1, out, p, HOLDER.v, hasattr(PROXY, "w")


def callable_proxies(x):
    return CALLABLE(x), type(CALLABLE).__name__, [CALLABLE] == [CALLED], CALLED in [PROXY, CALLABLE]


class OwnDict(dict): ...


def counted_mappings(x):
    own, shown, filled = OwnDict(a=1, b=2), types.MappingProxyType({"a": 3}), Counter("a")
    filled.update(own)
    filled.subtract(shown)
    return x + 1, Counter(own), Counter(shown), Counter(own.items()), Counter(OwnDict()), filled


def compared_keys(x):
    key = functools.cmp_to_key(lambda a, b: a - b)
    return x + 1, [key(1) < key(2), key(1) <= key(2), key(1) >= key(2), key(1) == key(1), key(1) != key(1), key(3).obj], sorted([3, 1, 2], key=key)


def unfinished(x):
    return x + 1, [outcome(ask) for ask in (Unfinished, lambda: object.__new__(Unfinished), lambda: Unfinished.__new__(Unfinished))]


def data_above(x):
    return x + 1, Below().ask()


def ends_with_values(x):
    return x + 1, list(delegates(Ends(7))), list(delegates(Ends())), list(delegates(Ends((1, 2)))), list(delegates(iter([5])))


def sent_through(x):
    steps = delegates(delegates(counts()))
    return [next(steps), steps.send(x), steps.send(2), steps.send(None)], next(steps, None)


def patterns(x):
    out = []
    for value in (x, Holder(), Counter("a")):
        match value:
            case Holder(v=v):
                out.append(v)
            case torch.Tensor(dtype=torch.float32, shape=(a,)):
                out.append(a)
            case {"a": v, "b": 0}:
                out.append("missing is made")
            case {"a": v, **rest}:
                out.append((v, rest))
    return x + 1, out


def data_of_exceptions(x):
    try:
        raise Coded(x)
    except Coded as e:
        return e.code, hasattr(e, "code"), hasattr(e, "absent"), getattr(e, "absent", 3), e.args, outcome(lambda error=e: error.absent), bool(e)


class Left:
    def __eq__(self, other):
        ASKED.append("Left.eq")
        return NotImplemented

    def __lt__(self, other):
        ASKED.append("Left.lt")
        return "Left.lt"

    def __gt__(self, other):
        ASKED.append("Left.gt")
        return "Left.gt"

    def __add__(self, other):
        ASKED.append("Left.add")
        return "Left.add"

    def __radd__(self, other):
        ASKED.append("Left.radd")
        return "Left.radd"

    def __mul__(self, other):
        ASKED.append("Left.mul")
        return "Left.mul"


class Inherits(Left): ...


class Overrides(Left):
    def __eq__(self, other):
        ASKED.append("Overrides.eq")
        return NotImplemented

    def __radd__(self, other):
        ASKED.append("Overrides.radd")
        return NotImplemented


class Adds(Left):
    def __rmul__(self, other):
        ASKED.append("Adds.rmul")
        return "Adds.rmul"

    def __ne__(self, other):
        ASKED.append("Adds.ne")
        return NotImplemented


ASKED: list = []
KINDS = (Left, Inherits, Overrides, Adds)


def operands_of_derived_classes(x):
    """The right operand's class is asked first where it derives from the left one's, and for arithmetic only where it overrides the method."""
    ASKED.clear()
    operators = (operator.eq, operator.ne, operator.lt, operator.add, operator.mul, operator.iadd)
    return x + 1, [(apply(left(), right()), len(ASKED)) for left in KINDS for right in KINDS for apply in operators], list(ASKED)


FOLLOWED = (
    fields_of_tuples,
    set_fields_of_functions,
    methods,
    proxies,
    callable_proxies,
    compared_keys,
    counted_mappings,
    data_above,
    ends_with_values,
    sent_through,
    patterns,
    data_of_exceptions,
    operands_of_derived_classes,
)


@pytest.mark.parametrize("program", FOLLOWED, ids=lambda program: program.__name__)
def test_is_followed_to_its_end(program):
    check(program, torch.ones(2), graphs=None, options={"backend": "eager"})


@pytest.mark.parametrize("program", (wrong_fields_of_tuples, fields_of_functions, wrong_methods, unfinished), ids=lambda program: program.__name__)
def test_raises_as_eager(program):
    compiled = dynacompile.compile(program, backend="eager", options={"fallback": "none"})
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))


class Given(Exception):
    data = 5


OWN = Given("a")
OWN.own, OWN.data = 1, 6
ERRORS = [Given("b")]


def asks_given(x):
    error = ERRORS[0]
    return x + 1, error.data, hasattr(error, "own"), hasattr(error, "data"), getattr(error, "own", 2), str(error)


def test_attributes_of_given_exceptions():
    compiled = dynacompile.compile(asks_given, backend="eager", options={"fallback": "none"})
    for error in (ERRORS[0], OWN, Given("c")):
        ERRORS[0] = error
        assert str(compiled(torch.ones(2))) == str(asks_given(torch.ones(2)))
