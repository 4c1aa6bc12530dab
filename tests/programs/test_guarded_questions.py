"""Questions about types, identity, names and caches whose answers change between calls: a story each, told eagerly and compiled."""

from __future__ import annotations

import abc
import collections.abc
import functools
import types
import weakref
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynacompile
from tests.scenarios import check_same

CAPTURE = {"backend": "eager"}


class Real:
    pass


class SaysList:
    @property
    def __class__(self):
        return list


def scale(x, o, cls=Real):
    return x * 2 if isinstance(o, cls) else x * 3


# What torch's own modules and functions call


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "holder, name, value",
    [
        (nn.Tanh, "forward", lambda self, x: x + 10),
        (F, "linear", lambda x, weight, bias=None: x * 100),
        (nn.Linear, "forward", lambda self, x: x - 5),
        (nn.Module, "__call__", lambda self, x: x * 7),
        (nn.Module, "_call_impl", lambda self, x: x * 9),
        (F, "layer_norm", lambda *args: args[0] * 11),
        (torch, "layer_norm", lambda *args: args[0] * 13),
        (torch.Tensor, "sigmoid", lambda self: self * 17),
        (torch, "tanh", lambda x: x * 19),
    ],
    ids="Tanh.forward F.linear Linear.forward Module.__call__ Module._call_impl F.layer_norm torch.layer_norm Tensor.sigmoid torch.tanh".split(),
)
def test_patches_of_torch(monkeypatch, holder, name, value, backend):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.LayerNorm(3)).requires_grad_(False)

    def story(wrap):
        run = wrap(lambda x: net(x).sigmoid())
        x = torch.ones(2, 3)
        yield run(x)
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, value)
            yield run(x)
            yield run(x)
        yield run(x)

    check_same(story, backend=backend)


def test_a_patch_that_calls_what_it_replaces(monkeypatch):
    original = F.relu

    def story(wrap):
        run = wrap(lambda x: F.relu(x) + 1)
        with monkeypatch.context() as patch:
            patch.setattr(F, "relu", lambda x: original(x) + 20)
            yield run(torch.ones(2))
        yield run(torch.ones(2))

    check_same(story, backend="aot_eager")


def test_a_patched_operator_runs_at_every_call(monkeypatch):
    add, seen = torch.Tensor.__add__, []

    def noted(self, other):
        seen.append(1)
        return add(self, other) * 2

    def story(wrap):
        run = wrap(lambda x: x + 1)
        yield run(torch.ones(2))
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "__add__", noted)
            seen.clear()
            yield run(torch.ones(2)), run(torch.ones(2)), len(seen)

    check_same(story, **CAPTURE)


def test_the_code_of_a_forward_of_torch(monkeypatch):
    def story(wrap):
        run, x = wrap(nn.Tanh()), torch.ones(2)
        yield run(x)
        with monkeypatch.context() as patch:
            patch.setattr(nn.Tanh.forward, "__code__", (lambda self, input: input * 50).__code__)
            yield run(x)
        yield run(x)

    check_same(story, **CAPTURE)


def test_a_subclass_of_a_module_of_torch_gets_a_forward():
    class Sub(nn.Linear):
        pass

    net = Sub(2, 2).requires_grad_(False)

    def story(wrap):
        run, x = wrap(lambda x: net(x)), torch.ones(2)
        yield run(x)
        Sub.forward = lambda self, x: x * 4
        yield run(x)
        del Sub.forward
        yield run(x)

    check_same(story, **CAPTURE)


# Types


def test_classes_that_are_not_the_class():
    thing = Real()

    def story(wrap):
        run, x = wrap(scale), torch.ones(2)
        for o in (Mock(spec=Real), weakref.proxy(thing), SaysList(), Real(), Mock()):
            yield run(x, o), run(x, o, list)

    check_same(story, **CAPTURE)


def test_hooks_of_metaclasses():
    class Meta(type):
        answer = True

        def __instancecheck__(cls, o):
            return Meta.answer

        def __subclasscheck__(cls, o):
            return not Meta.answer

    class Hooked(metaclass=Meta):
        pass

    def ask(x, o):
        return x * (2 if isinstance(o, Hooked) else 3), issubclass(type(o), Hooked), issubclass(type(o), (int, Hooked))

    def story(wrap):
        run = wrap(ask)
        for Meta.answer in (True, False, True):
            yield run(torch.ones(2), Real())

    check_same(story, **CAPTURE)


def test_registrations():
    def story(wrap):
        class Abstract(abc.ABC):  # noqa: B024
            pass

        class Below(Abstract):
            pass

        class Thing:
            pass

        def ask(x, o):
            return x * (2 if isinstance(o, Abstract) else 3), issubclass(Thing, Abstract), isinstance(x, Abstract), isinstance(3, (str, Abstract))

        run = wrap(ask)
        yield run(torch.ones(2), Thing())
        Below.register(Thing)
        yield run(torch.ones(2), Thing())
        Abstract.register(torch.Tensor)
        yield run(torch.ones(2), Thing())
        Abstract.register(int)
        yield run(torch.ones(2), Thing())

    check_same(story, **CAPTURE)


def test_methods_that_a_class_gets_later():
    def story(wrap):
        class Thing:
            pass

        def ask(x, o):
            return x * (2 if o else 3), callable(o), isinstance(o, collections.abc.Callable), hasattr(o, "extra")

        run, thing = wrap(ask), Thing()
        yield run(torch.ones(2), thing)
        for name, value in (("__len__", lambda self: 0), ("__bool__", lambda self: True), ("__call__", lambda self: 1), ("extra", 3)):
            setattr(Thing, name, value)
            yield run(torch.ones(2), thing)

    check_same(story, **CAPTURE)


# Attributes


def test_properties_of_modules_that_raise():
    class Net(nn.Module):
        working = True

        @property
        def ready(self):
            if not self.working:
                raise AttributeError("not ready")
            return 4

        def forward(self, x):
            return x * getattr(self, "ready", 9), hasattr(self, "ready"), hasattr(self, "nothing")

    def story(wrap):
        net = Net()
        run = wrap(net)
        for net.working in (True, False, True):
            yield run(torch.ones(2))

    check_same(story, **CAPTURE)


def test_the_code_of_a_property():
    class Thing:
        @property
        def number(self):
            return 2

    def story(wrap):
        run, thing = wrap(lambda x, o: x * o.number), Thing()
        before = Thing.number.fget.__code__
        yield run(torch.ones(2), thing)
        Thing.number.fget.__code__ = (lambda self: 9).__code__
        yield run(torch.ones(2), thing)
        Thing.number.fget.__code__ = before

    check_same(story, **CAPTURE)


# Identity and frames


def test_identity_of_strings_and_numbers():
    def ask(x, a, b):
        return x * 2, a is b, a is "ab", "".join(["a", "b"]) is "ab", () is tuple(), (1, 2) is (1, 2)  # noqa: C408, F632

    def story(wrap):
        run, number = wrap(ask), int("1000")
        for a, b in (("ab", "ab"), ("".join(["a", "b"]), "ab"), (number, number), (number, int("1000")), (7, 7), (1.5, float("1.5")), ("ab", "ab")):
            yield run(torch.ones(2), a, b)

    check_same(story, **CAPTURE)


LISTED = dir


def asks_dir(x):
    y = x * 2
    return dir(), y


def asks_vars(x):
    y = x * 2
    print(end="")
    return sorted(vars()), y


def asks_by_another_name(x):
    y = x * 2
    return LISTED(), y


def asks_inside(x):
    def inner(y):
        z = y + 1
        return dir(), z

    return inner(x * 2)


@pytest.mark.parametrize("fn", [asks_dir, asks_vars, asks_by_another_name, asks_inside])
def test_variables_of_a_frame(fn):
    def story(wrap):
        run = wrap(fn)
        yield run(torch.ones(2))
        yield run(torch.ones(2))

    check_same(story, least=None, **CAPTURE)


# Weak containers and caches


def test_weak_containers():
    def story(wrap):
        first, second = nn.Tanh(), nn.ReLU()
        keyed, members, valued = weakref.WeakKeyDictionary(), weakref.WeakSet(), weakref.WeakValueDictionary()

        def ask(x, module):
            if module not in keyed:
                keyed[module] = x.sum()
            return keyed[module] + x, module in members, len(members), "a" in valued, len(keyed)

        run = wrap(ask)
        for step, module in enumerate((first, second, first, first)):
            yield run(torch.ones(1) + step, module)
        members.add(first)
        yield run(torch.ones(1), first)
        valued["a"] = first
        yield run(torch.ones(1), first)
        keyed.clear()
        yield run(torch.ones(1), first)

    check_same(story, **CAPTURE)


def test_weak_references_are_equal_where_their_objects_are_one():
    def ask(x, o):
        return x + 1, weakref.ref(o) is weakref.ref(o), weakref.ref(o) == weakref.ref(o), weakref.ref(o) in {weakref.ref(o): 1}

    def story(wrap):
        yield wrap(ask)(torch.ones(2), Real())

    check_same(story, least=None, **CAPTURE)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("maxsize", [None, 2, 128], ids=["unbounded", "two entries", "many entries"])
def test_cached_functions(maxsize, backend):
    def story(wrap):
        ran = []

        @functools.lru_cache(maxsize=maxsize)
        def noise(n, *, scale=1):
            ran.append(n)
            return torch.rand(n) * scale

        class Net(nn.Module):
            @functools.lru_cache(maxsize=maxsize)  # noqa: B019
            def number(self, n):
                ran.append(-n)
                return n * 10

            def forward(self, x, n):
                return x * self.number(n)

        def ask(x, n):
            return x + noise(n), noise(n), noise(n, scale=2) is noise(n, scale=2)

        run, net = wrap(ask), Net()
        compiled = wrap(net)
        for step in range(10):
            if step == 5:
                noise.cache_clear()
                Net.number.cache_clear()
            n = 1 + step % 3
            sums, kept, same = run(torch.ones(1), n)
            yield sums, kept, same, kept is noise(n), compiled(torch.ones(2), n), tuple(noise.cache_info()), tuple(Net.number.cache_info()), tuple(ran)

    check_same(story, backend=backend)


def test_an_entry_of_a_cache_that_another_call_pushed_out():
    def story(wrap):
        @functools.lru_cache(maxsize=1)
        def noise(n):
            return torch.rand(n)

        run = wrap(lambda x: x + noise(1))
        for _ in range(3):
            yield run(torch.ones(1)), tuple(noise.cache_info())
        noise(2)
        yield run(torch.ones(1)), tuple(noise.cache_info())

    check_same(story, **CAPTURE)


# Classes of classes, of descriptors and of modules


def test_bases_of_a_class():
    def story(wrap):
        class Base:
            def apply(self, x):
                return x

        class First(Base):
            pass

        class Second(Base):
            def apply(self, x):
                return x * 3

        class Thing(First):
            pass

        run, thing = wrap(lambda x, o: (o.apply(x), isinstance(o, Second), issubclass(Thing, First), Thing.__mro__[1].__name__)), Thing()
        for bases in ((First,), (Second,), (First, Second)):
            Thing.__bases__ = bases
            yield run(torch.ones(2), thing)

    check_same(story, **CAPTURE)


def test_a_descriptor_that_begins_to_take_stores():
    def story(wrap):
        class Four:
            def __get__(self, instance, owner):
                return 4

        class Thing:
            number = Four()

        run, thing = wrap(lambda x, o: x * o.number), Thing()
        yield run(torch.ones(2), thing)
        thing.__dict__["number"] = 9
        yield run(torch.ones(2), thing)
        Four.__set__ = lambda self, instance, value: None
        yield run(torch.ones(2), thing)
        del Four.__set__
        yield run(torch.ones(2), thing)

    check_same(story, **CAPTURE)


def test_a_module_that_gets_a_getattr():
    def story(wrap):
        config = types.ModuleType("config")
        run = wrap(lambda x: (x * getattr(config, "number", 3), hasattr(config, "number")))
        yield run(torch.ones(2))
        config.__getattr__ = lambda name: 6
        yield run(torch.ones(2))
        del config.__getattr__
        config.number = 4
        yield run(torch.ones(2))

    check_same(story, **CAPTURE)


def test_a_reflected_method_is_not_asked_of_the_same_class():
    class Thing:
        def __radd__(self, other):
            return 9

    def add(x, a, b):
        try:
            return x * (a + b)
        except TypeError as error:
            return x, str(error)

    def story(wrap):
        run = wrap(add)
        yield run(torch.ones(2), Thing(), Thing())
        yield run(torch.ones(2), Real(), Thing())

    check_same(story, least=None, **CAPTURE)


class Slotted:
    __slots__ = ("number",)


class HasNumber(type):
    def __instancecheck__(cls, instance):
        return hasattr(instance, "number")


class Numbered(metaclass=HasNumber):
    pass


def test_a_slot_that_is_empty_at_a_later_call():
    """Why the entry does not serve is found out without the error of reading the slot."""
    instance = Slotted()
    instance.number = 1
    call = dynacompile.compile(lambda x: x + 1 if isinstance(instance, Numbered) else x - 1, backend="eager")
    x = torch.ones(2)
    assert torch.equal(call(x), x + 1)
    del instance.number
    assert torch.equal(call(x), x - 1)
    instance.number = 2
    assert torch.equal(call(x), x + 1)


class Plain:
    pass


def made_by(k):
    def inner():
        return k

    return inner


TWO = {
    "objects": lambda: (Plain(), Plain()),
    "modules": lambda: (torch.nn.Identity(), torch.nn.Identity()),
    "lists": lambda: ([1], [1]),
    "dicts": lambda: ({}, {}),
    "sets": lambda: ({1}, {1}),
    "tuples": lambda: ((1, [2]), (1, [2])),
    "closures": lambda: (made_by(1), made_by(2)),
}
SAME = {
    "is": lambda held, x: x * 2 if held.first is held.second else x * 3,
    "is not": lambda held, x: x * 2 if held.first is not held.second else x * 3,
    "==": lambda held, x: x * 2 if held.first == held.second else x * 3,
    "in": lambda held, x: x * 2 if held.first in (held.second, 5) else x * 3,
}


@pytest.mark.parametrize("question", SAME)
@pytest.mark.parametrize("kind", TWO)
def test_two_objects_may_be_one_in_a_later_call(kind, question):
    one, other = TWO[kind]()
    held, x = Plain(), torch.ones(2)
    compiled = dynacompile.compile(lambda held, x: SAME[question](held, x), isolate_recompiles=True)
    held.second = one
    for held.first in (other, one, other):
        assert torch.equal(compiled(held, x), SAME[question](held, x))
