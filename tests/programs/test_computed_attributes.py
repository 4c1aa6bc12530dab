"""hasattr, getattr and setattr of attributes that code computes: it runs as often as in eager, and not in guards; whether it raises AttributeError decides."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import threading
import types
import weakref
from collections import Counter, OrderedDict, deque, namedtuple

import pytest
import torch

import dynacompile

LOG: list = []


class Asked:
    """Not a data descriptor: an object's own attribute comes first."""

    def __get__(self, instance, owner):
        LOG.append("Asked")
        return "asked", instance is None


class Computed:
    data = 7
    asked = Asked()

    @property
    def good(self):
        LOG.append("good")
        return 5

    @property
    def missing(self):
        LOG.append("missing")
        raise AttributeError("missing")

    @property
    def failing(self):
        LOG.append("failing")
        raise ValueError("failing")

    @functools.cached_property
    def kept(self):
        LOG.append("kept")
        return 3


BODY = {name: raw for name, raw in vars(Computed).items() if not name.startswith("__")}


def of(*bases, **body):
    return types.new_class("C", bases, exec_body=lambda space: space.update(BODY | {"__module__": __name__} | body))


MEMBERS = {name: raw for name, raw in BODY.items() if isinstance(raw, property)}
Record = namedtuple("Record", "a b")
Frozen = dataclasses.dataclass(frozen=True)(of(a=1, __annotations__={"a": int}))
Hidden = of()
HIDDEN = Hidden()
Wrapped = of(torch.Tensor)


class OfSuper(Hidden):
    def above(self):
        return super()


class Member(enum.Enum):
    locals().update(MEMBERS)
    A = 1


class Number(enum.IntEnum):
    locals().update(MEMBERS)
    A = 1


MADE = {
    "object": of(),
    "slots": of(__slots__=()),
    "exception": functools.partial(of(Exception), 1),
    "list": functools.partial(of(list), [1]),
    "dict": functools.partial(of(dict), a=1),
    "OrderedDict": functools.partial(of(OrderedDict), a=1),
    "Counter": functools.partial(of(Counter), "aab"),
    "tuple": functools.partial(of(tuple), (1, 2)),
    "namedtuple": functools.partial(of(Record, __slots__=()), 1, 2),
    "deque": functools.partial(of(deque), [1]),
    "member": functools.partial(Member, 1),
    "number": functools.partial(Number, 1),
    "module": of(torch.nn.Module),
    "namespace": functools.partial(of(types.SimpleNamespace), u=1),
    "tensor": lambda: torch.ones(2).as_subclass(Wrapped),
    "frozen": functools.partial(Frozen, 2),
    "class": functools.partial(of(type), "K", (), {}),
    "class of descriptors": of,
    "manager": of(contextlib.ContextDecorator),
    "super": lambda: OfSuper().above(),
    "threads": of(threading.local),
    "proxy": lambda: weakref.proxy(HIDDEN),
}
NAMES = ("good", "missing", "failing", "asked", "kept", "data", "absent", "__class__", "__module__")


def outcome(ask):
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__, str(error)


def asked_of(owner):
    out = []
    for name in NAMES:
        out.append(outcome(lambda name=name: hasattr(owner, name)))
        out.append(outcome(lambda name=name: getattr(owner, name, 9)))
    for name in NAMES[:7]:
        out.append(outcome(lambda name=name: getattr(owner, name)))
    for name in ("good", "data", "absent", "asked"):
        out.append(outcome(lambda name=name: setattr(owner, name, 3)))
        out += [outcome(lambda name=name: getattr(owner, name, 8)), outcome(lambda name=name: hasattr(owner, name))]
        out.append(outcome(lambda name=name: delattr(owner, name)))
        out += [outcome(lambda name=name: getattr(owner, name, 8)), outcome(lambda name=name: delattr(owner, name))]
    return out


@pytest.mark.parametrize("given", (False, True), ids=("made", "given"))
@pytest.mark.parametrize("kind", MADE)
def test_code_runs_as_often_as_in_eager(kind, given):
    make = MADE[kind]

    def f(x, owner):
        return asked_of(make() if owner is None else owner), x + 1

    def run(call):
        HIDDEN.__dict__.clear()
        told = []
        for _ in range(2):
            LOG.clear()
            out, x = call(torch.ones(2), make() if given else None)
            told.append((out, list(LOG), x.tolist()))
        return told

    want = run(f)
    dynacompile.reset()
    assert str(run(dynacompile.compile(f, backend="eager", options={"fallback": "none"}))) == str(want)
