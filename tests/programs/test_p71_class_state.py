"""Attributes of classes, functions, partials and tensors that the frame assigns."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest
import torch

import dynacompile
from dynacompile.events import GraphBroke
from tests.checking import check
from tests.scenarios import check_same


class Config:
    count = 0
    scale = 2.0

    @classmethod
    def bump(cls):
        cls.count += 1
        return cls.count


class Derived(Config):
    pass


class Hooked(type):
    def __setattr__(cls, name, value):
        super().__setattr__(name, value * 2)


class WithHook(metaclass=Hooked):
    size = 1


def counts(x):
    Config.count += 1
    before = Derived().count
    Derived.count = 7
    Config.count = 9
    return x * before * Derived().count * Config().count * Derived.count


def adds(x):
    Config.new = [1]
    Config.new.append(2)
    one = Derived()
    one.count = 3
    return x * len(Derived().new) + one.count + type(one).count + (5 if hasattr(Derived, "new") else 6)


def by_setattr(x):
    Config.scale = 3.0
    return x * Config.scale * Derived.scale


def by_classmethod(x):
    return x * Config.bump() * Derived.bump() * Config.count


def of_function(x):
    of_function.calls = getattr(of_function, "calls", 0) + 1
    return x * of_function.calls


def state():
    return [{k: v for k, v in vars(owner).items() if not k.startswith("_") and k != "bump"} for owner in (Config, Derived, of_function)]


def restore():
    for owner in (Config, Derived, of_function):
        for name in [k for k in vars(owner) if not k.startswith("_") and k != "bump"]:
            delattr(owner, name)
    Config.count, Config.scale = 0, 2.0


@pytest.mark.parametrize("fn", [counts, adds, by_setattr, by_classmethod, of_function])
def test_replayed(fn):
    x = torch.linspace(-2, 3, 4)
    seen = []
    for call in (fn, dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)):
        restore()
        results = [call(x) for _ in range(3)]
        seen.append((results, state()))
    restore()
    assert all(torch.equal(a, b) for a, b in zip(*(results for results, _ in seen)))
    assert seen[0][1] == seen[1][1]


class Reads:
    kind = "plain"

    def method(self):
        return self.kind


class Above(Reads):
    def method(self):
        return super().kind


def through_super(x):
    Reads.kind = "other"
    found = Above().method(), Reads().method()
    Reads.kind = "plain"
    return x + 1, found


def test_seen_by_methods_and_super():
    check(through_super, torch.ones(3), options={"backend": "eager"})


def with_hook(x):
    WithHook.size = 4
    return x * WithHook.size


def descriptor(x):
    Config.method = lambda self: 3
    return x + 1


@pytest.mark.parametrize("fn", [with_hook, descriptor])
def test_left_to_python(fn):
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        got = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)(torch.ones(3))
    finally:
        end()
        restore()
    assert torch.equal(got, fn(torch.ones(3))) and next(e.code for e in events if isinstance(e, GraphBroke)) == "setattr"
    restore()


class Layer:
    def times(self, k, x):
        return x * k

    twice = functools.partialmethod(times, 2)


def partialmethod(x):
    return Layer().twice(x)


def tagged(x):
    y = torch.relu(x)
    y.tag = [1, x]
    x.seen = "yes"
    return y * len(y.tag), y, y.tag[0], hasattr(y, "tag"), hasattr(y, "other"), getattr(y, "other", 3), x.seen


def test_partials_and_tensors():
    check(partialmethod, torch.ones(3), options={"backend": "eager"})
    x = torch.linspace(-2, 3, 4)
    check(tagged, x, options={"backend": "eager"})
    result = dynacompile.compile(tagged, backend="eager", fullgraph=True, isolate_recompiles=True)(x)
    assert result[1].tag == [1, x] and x.seen == "yes"


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if "count" not in self._buffers:
            self.register_buffer("count", torch.zeros(()), persistent=False)
        self.mean = self.mean * 0.5 + x * 0.5
        self.count = self.count + 1
        self.count.mul_(2)
        return x + self.mean * self.count


def test_buffers_registered_and_assigned():
    ours, eager = Norm(), Norm()
    call = dynacompile.compile(ours, backend="eager", fullgraph=True, isolate_recompiles=True)
    for _ in range(3):
        x = torch.linspace(-2, 3, 4)
        torch.testing.assert_close(call(x), eager(x))
    assert list(dict(ours.named_buffers())) == list(dict(eager.named_buffers())) and list(ours.state_dict()) == list(eager.state_dict())
    torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))


class Checked(type):
    """A metaclass with attributes of its own, as of annotations that check shapes."""

    is_off = False
    scale, offset = 2.0, torch.ones(2)
    seen: ClassVar[list] = []

    def __instancecheck__(cls, value):
        return not cls.is_off and len(value.shape) == cls.dimensions


class Vector(metaclass=Checked):
    dimensions = 1


class Matrix(metaclass=Checked):
    dimensions = 2


def by_the_metaclass(x):
    Vector.seen.append(isinstance(x, Matrix))
    known = isinstance(x, Vector), hasattr(Vector, "scale"), hasattr(Vector, "other"), getattr(Matrix, "other", 3), Vector.seen is Matrix.seen
    return x * Vector.scale + Matrix.offset, known, len(Vector.seen)


def test_attributes_that_a_class_has_of_its_metaclass():
    def story(wrap):
        run = wrap(by_the_metaclass)
        Checked.seen.clear()
        for name, value in (("scale", 2.0), ("scale", 9.0), ("is_off", True), ("is_off", False), ("scale", 2.0)):
            setattr(Checked, name, value)
            yield run(torch.ones(2))
        Vector.scale = 4.0  # hides that of the metaclass
        yield run(torch.ones(2))
        del Vector.scale

    check_same(story, backend="eager", fullgraph=True)


def test_an_attribute_of_a_metaclass_that_the_frame_assigns():
    def fn(x):
        Checked.scale = 5.0
        first = x * Vector.scale
        Checked.scale = 2.0
        return first, x * Matrix.scale

    check_same(lambda wrap: iter([wrap(fn)(torch.ones(2)) for _ in range(2)]), backend="eager")
