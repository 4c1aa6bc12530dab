"""What programs use of the standard library and NumPy beside their tensors: computed while the graph is made."""

from __future__ import annotations

import bisect
import cmath
import contextlib
import datetime
import decimal
import enum
import functools
import inspect
import itertools
import math
import operator
import os
import re
import struct
import sys
import types
import typing
import weakref
from collections import Counter, defaultdict
from typing import Generic, NewType, TypedDict, TypeVar

import numpy as np
import pytest
import torch

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4)


@functools.singledispatch
def kind_of(value):
    return 1


@kind_of.register
def _(value: int):
    return 2


@kind_of.register(list)
def _(value):
    return 3


@kind_of.register(torch.Tensor)
def _(value):
    return value * 4


class Visitor:
    @functools.singledispatchmethod
    def visit(self, value):
        return 1

    @visit.register
    def _(self, value: int):
        return 2

    @visit.register(torch.Tensor)
    def _(self, value):
        return value * 3


def dispatches(x):
    return kind_of(x) + kind_of(1) + kind_of([]) + kind_of("a"), kind_of.dispatch(bool)(True)


def dispatches_methods(x):
    visitor = Visitor()
    return visitor.visit(x) + visitor.visit(1) + visitor.visit("a")


def compared(x):
    order = functools.cmp_to_key(lambda a, b: b - a)
    return x * sorted([3, 1, 2], key=order)[0], max([3, 1], key=order)


def reduced(x):
    return functools.reduce(lambda a, b: a * b, [x, 2, x]) + functools.reduce(operator.add, [1, 2, 3], 0)


@pytest.mark.parametrize("fn", [dispatches, dispatches_methods, compared, reduced])
def test_functools(fn):
    check(fn, arg(), options=EAGER)


@functools.singledispatch
def growing(value):
    return 1


def calls_growing(x):
    return x * growing(x)


def test_a_later_registration_is_seen():
    call = dynacompile.compile(calls_growing, backend="eager", isolate_recompiles=True)
    assert torch.equal(call(arg()), arg())
    growing.register(torch.Tensor, lambda value: 5)
    assert torch.equal(call(arg()), arg() * 5)


def iterators(x):
    a, b = itertools.tee([1, 2])
    counted = iter([1, 2, 3].__iter__().__next__, 3)
    first = next(a), list(b), list(a), list(counted)
    groups = [(k, list(g)) for k, g in itertools.groupby("aab")]
    return x * 2, first, groups, list(itertools.starmap(pow, [(2, 3)])), list(itertools.islice(itertools.cycle([1, 2]), 5))


def shared_tee(x):
    a, b = itertools.tee(v * x for v in [1, 2])
    return next(a) + next(b), next(b)


def operators(x):
    d = {"a": 1}
    operator.setitem(d, "b", 2)
    operator.delitem(d, "a")
    grown = operator.iconcat(operator.iadd([1], [2]), [3])
    numbers = [
        operator.iand(3, 1),
        operator.ifloordiv(5, 2),
        operator.imod(5, 3),
        operator.ixor(3, 1),
        operator.ilshift(1, 1),
        operator.inv(3),
        operator.abs(-1),
    ]
    found = [operator.inv(3), operator.abs(-1), operator.countOf([1, 1], 1), operator.indexOf([1, 2], 2), operator.length_hint([1]), operator.concat([1], [2])]
    return operator.itemgetter(1)([x, x * 2]), operator.attrgetter("shape")(x), operator.methodcaller("sum", 0)(x), d, grown, numbers, found


def mathematics(x):
    numbers = [math.fsum([0.1] * 10), math.dist([0, 0], [3, 4]), math.hypot(3, 4), math.frexp(8), math.isqrt(10), sum([0.1] * 10), sum([0.5, 0.25], 1)]
    return x * math.sqrt(x.shape[-1]), numbers, cmath.phase(1j), cmath.exp(1j), complex(1, 2).conjugate() * 3j


@pytest.mark.parametrize("fn", [iterators, shared_tee, operators, mathematics])
def test_itertools_operator_and_math(fn):
    check(fn, arg(), options=EAGER)


LAYER = re.compile(r"layer\.(\d+)")


def expressions(x):
    found = LAYER.match("layer.3")
    parts = re.sub("a", "b", "aa"), re.findall(r"\w", "ab"), re.split(",", "a,b"), bool(re.search("z", "a")), re.compile("a+").fullmatch("aaa").span()
    return x * int(found.group(1)), parts, re.match(r"(\d+)", "12ab").group(1), list(found.groups())


def packed(x):
    numbers = struct.unpack("i", struct.pack("i", 3)), int.from_bytes(b"\x01\x02", "big"), float.fromhex("0x1.8p1"), bytes.fromhex("0a")
    return x * numbers[0][0], numbers, bisect.bisect_left([1, 3, 5], 3), bisect.bisect([1, 3, 5], 4), "abc".translate(str.maketrans("a", "b"))


def numbers_of_other_kinds(x):
    share = decimal.Decimal("1.5") + 1
    return x * float(share), datetime.timedelta(days=1).days, datetime.date(2020, 1, 2) > datetime.date(2020, 1, 1), share


def paths(x):
    return x * len(os.path.join("a", "b")), os.path.basename("a/b.c"), os.path.splitext("b.c"), os.getenv("NO_SUCH_NAME", "3"), os.getenv("NO_SUCH_NAME")


def system(x):
    return x * (sys.version_info >= (3, 8)), sys.platform, sys.version_info[0]


@pytest.mark.parametrize("fn", [expressions, packed, numbers_of_other_kinds, paths, system])
def test_texts_and_numbers(fn):
    check(fn, arg(), options=EAGER)


def test_environment_is_guarded(monkeypatch):
    call = dynacompile.compile(lambda x: x * int(os.getenv("DYNACOMPILE_TEST_N", "3")), backend="eager", isolate_recompiles=True)
    assert torch.equal(call(arg()), arg() * 3)
    monkeypatch.setenv("DYNACOMPILE_TEST_N", "5")
    assert torch.equal(call(arg()), arg() * 5)


def numpy_numbers(x):
    root = np.sqrt(x.shape[-1])
    return x * root, root * x, x / np.prod(x.shape), x * np.float32(2.0), int(np.prod(x.shape)), float(np.log(2.0)), np.pi, x > np.float64(0.5)


def numpy_of_integers(x):
    return x.int() * np.float64(2.5), x.half() * np.sqrt(2.0), x.double() - np.float32(0.1), np.int64(3) - x


@pytest.mark.parametrize("fn", [numpy_numbers, numpy_of_integers])
def test_numpy_of_numbers(fn):
    check(fn, arg(), options=EAGER)


def numpy_to_tensor(x):
    return x + torch.tensor(np.float64(2.0))


def numpy_of_tensor(x):
    return x + torch.as_tensor(np.sin(x.numpy()))


def numpy_argument(x, a):
    return x + torch.from_numpy(a * 2)


def test_numpy_beyond_numbers():
    check(numpy_to_tensor, arg(), graphs=None, breaks=None, options=EAGER)  # the result is float64, as NumPy's scalar
    check(numpy_of_tensor, arg(), graphs=None, breaks=None, options=EAGER)
    given = np.arange(4.0)
    assert torch.equal(dynacompile.compile(numpy_argument, backend="eager", isolate_recompiles=True)(arg(), given), numpy_argument(arg(), given))


def signature_of(a, b=2, *c, d=3, **e):
    return a


def signatures(x):
    bound = inspect.signature(signature_of).bind(1, d=4)
    bound.apply_defaults()
    needed = [p.name for p in inspect.signature(signature_of).parameters.values() if p.default is inspect.Parameter.empty]
    return (
        x * bound.arguments["b"] + bound.kwargs["d"],
        needed,
        list(inspect.signature(Visitor().visit_all).parameters) if hasattr(Visitor, "visit_all") else None,
    )


def asks(x):
    told = [
        inspect.isfunction(asks),
        inspect.isclass(Visitor),
        inspect.ismethod(Visitor().visit),
        inspect.isgeneratorfunction(signature_of),
        inspect.isbuiltin(len),
    ]
    return x + sum(told), told, signature_of.__defaults__, signature_of.__kwdefaults__, signature_of.__code__.co_argcount


@pytest.mark.parametrize("fn", [signatures, asks])
def test_inspect(fn):
    check(fn, arg(), options=EAGER)


def test_changed_defaults_are_seen():
    def default(a, b=2):
        return a

    call = dynacompile.compile(lambda x: x * inspect.signature(default).parameters["b"].default, backend="eager", isolate_recompiles=True)
    assert torch.equal(call(arg()), arg() * 2)
    default.__defaults__ = (7,)
    assert torch.equal(call(arg()), arg() * 7)


T = TypeVar("T")
UserId = NewType("UserId", int)


class Box(Generic[T]):
    def __init__(self, value: T):
        self.value = value


class Sized(TypedDict, total=False):
    a: int
    b: float


def annotations(x):
    sized = Sized(a=3, b=x)
    boxed = Box[int](x)
    return boxed.value * 2 + sized["b"] * sized["a"], Box(x).value, UserId(3), boxed.__orig_class__ == Box[int], typing.get_origin(list[int]) is list


def test_typing():
    check(annotations, arg(), options=EAGER)


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


def flags(x):
    both = Permission.READ | Permission.WRITE
    return x * both.value, Permission.READ in both, bool(both & Permission.RUN), ~both == Permission.RUN, [p.name for p in both], list(Permission.__members__)


SHOWN = types.MappingProxyType({"a": 2, "b": 3})


def proxies(x):
    made = types.MappingProxyType({"a": 2})
    refused = ""
    try:
        made["b"] = 1
    except TypeError as error:
        refused = str(error)
    return x * made["a"] + SHOWN["a"] + sum(SHOWN.values()), {**SHOWN}, dict(SHOWN), list(made.items()), made.get("z"), "a" in made, len(made), refused


def test_flags_and_proxies():
    check(flags, arg(), options=EAGER)
    check(proxies, arg(), options=EAGER)


def test_a_proxy_shows_later_changes():
    below = {"a": 2}
    shown = types.MappingProxyType(below)
    call = dynacompile.compile(lambda x: x * shown["a"] * len(shown), backend="eager", isolate_recompiles=True)
    assert torch.equal(call(arg()), arg() * 2)
    below["b"] = 1
    below["a"] = 5
    assert torch.equal(call(arg()), arg() * 10)


def counts(x):
    c, d = Counter("aab"), Counter(a=1, z=2)
    both = c + d, c - d, c & d, c | d, +Counter(a=-1, b=2)
    return x * both[0]["a"], [dict(b) for b in both], list(c.elements()), c.total()


def views(x):
    d, e = {"a": 1, "b": 2}, {"b": 2, "c": 3}
    return x * len(d.keys() | e), sorted(d.keys() & e.keys()), d.keys() - {"a"} == {"b"}, d.keys() == {"a": 0, "b": 0}.keys(), d.keys() ^ {"a"}


def sets(x):
    a = {1, 2, 3}
    a ^= {9}
    return x * len(a), sorted(frozenset([1, 2]) | a), type(frozenset([1]) | a) is frozenset, frozenset([1, 2]) & {2}, {1} | frozenset([2])


def defaults(x):
    d = defaultdict(list)
    d["a"].append(x)
    return (
        d["a"][0] * 2,
        d.default_factory is list,
        d.__class__ is defaultdict,
        [].__class__ is list,
        (1,).__class__.__name__,
        types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1),
    )


class Attributes(dict):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, key):
        return len(key)


def with_missing(x):
    made = Attributes(a=2)
    made["b"] = x
    return made.b * made.a + made["three"], "three" in made, made.get("three")


def given_missing(x, d):
    return x * d.a + d["three"]


@pytest.mark.parametrize("fn", [counts, views, sets, defaults, with_missing])
def test_containers(fn):
    check(fn, arg(), options=EAGER)


def test_a_dict_with_missing_keys_from_outside():
    check(given_missing, arg(), Attributes(a=3), options=EAGER)


class Target:
    size = 3


TARGET = Target()


def references(x):
    return x * weakref.ref(TARGET)().size, weakref.ref(TARGET)


def identities(x, module):
    memo = {id(module): 3}
    return x * memo[id(module)]


def suppressed(x):
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyError):
        stack.enter_context(contextlib.nullcontext())
        {}["a"]
    return x + 1


def test_references_and_identities():
    check(references, arg(), options=EAGER)
    check(identities, arg(), torch.nn.ReLU(), options=EAGER)
    check(suppressed, arg(), options=EAGER)


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


def rounds(x):
    return round(x)


def bool_index(x):
    y = x.clone()
    y[True] = x * 2
    return y


def new_values(x):
    return x.new([1, 2, 3, 4]) + x, torch.result_type(x, 2), torch.result_type(x.int(), 2.5), torch.get_num_threads()


def test_tensor_forms():
    check(new_values, arg(), options=EAGER)
    check(quantized, arg(), graphs=None, breaks=None, options=EAGER)
    check(bool_index, arg(), graphs=1, breaks=1, options=EAGER)
    check(rounds, arg(), graphs=None, breaks=None, calls=1, options=EAGER)
