"""`vars(obj)` and `obj.__dict__` are dicts that capture follows: read, written and taken from, of objects that were there before and that the frame makes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch

import dynacompile


class Thing:
    def __init__(self):
        self.scale, self.offset, self.name = 2.0, 3, "thing"


class Part(Thing):
    pass


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: int = 2


def pops(x, thing):
    return x * vars(thing).pop("scale") + hasattr(thing, "scale") + thing.__dict__.pop("missing", 5)


def pops_and_stores(x, thing):
    offset = thing.__dict__.pop("offset")
    thing.offset = offset + 1
    return x * thing.offset, list(vars(thing))


def deletes(x, thing):
    del thing.__dict__["name"]
    return x + len(thing.__dict__) + sum(isinstance(v, int) for v in vars(thing).values())


def sets_defaults(x, thing):
    return x * thing.__dict__.setdefault("scale", 9) + vars(thing).setdefault("bias", 4) + thing.bias


def misses(x, thing):
    try:
        vars(thing).pop("missing")
    except KeyError as error:
        return x + len(error.args[0])
    return x


def makes(x, thing):
    made = Thing()
    made.__dict__.pop("offset")
    made.__dict__.setdefault("offset", thing.offset + 1)
    return x * made.offset, list(vars(made))


@pytest.mark.parametrize("function", [pops, pops_and_stores, deletes, sets_defaults, misses, makes])
def test_as_in_eager(function: Callable):
    compiled = dynacompile.compile(function, fullgraph=True, isolate_recompiles=True)
    for seed in range(3):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        mine, eagers = Thing(), Thing()
        have, want = compiled(x, mine), function(x, eagers)
        (have, *names), (want, *wanted) = (r if isinstance(r, tuple) else (r,) for r in (have, want))
        torch.testing.assert_close(have, want)
        assert names == wanted
        assert list(vars(mine).items()) == list(vars(eagers).items())
    assert len(dynacompile.cache_entries(compiled)) == 1


def test_what_a_popped_attribute_was_is_guarded():
    compiled = dynacompile.compile(pops, fullgraph=True, isolate_recompiles=True)
    x, thing = torch.ones(3), Thing()
    compiled(x, Thing())
    thing.scale = 7.0
    torch.testing.assert_close(compiled(x, thing), torch.ones(3) * 7 + 5)


def test_classes_of_functions_and_ancestors():
    def function(x):
        return x * len(Part.mro()) + (Part.mro()[1] is Thing) + len(function.__class__.__name__)

    torch.testing.assert_close(dynacompile.compile(function, fullgraph=True)(torch.ones(3)), function(torch.ones(3)))


def test_deep_copies_of_tensors():
    def function(x):
        made = copy.deepcopy({"x": x, "numbers": [1, 2]})
        made["x"].add_(1)
        return made["x"] * made["numbers"][1] + dataclasses.asdict(Batch(x))["x"], x

    have, want = (f(torch.ones(3)) for f in (dynacompile.compile(function, fullgraph=True), function))
    torch.testing.assert_close(have, want)


@pytest.mark.parametrize("kind", ["views of one memory", "requires a gradient"])
def test_other_deep_copies_are_left_to_python(kind):
    def function(x):
        first, second = copy.deepcopy([x, x[1:]])
        first.add_(1)
        return second * 2

    x = torch.ones(3)
    if kind.startswith("requires"):

        def function(x):
            made = copy.deepcopy(x)
            return made.is_leaf, made.requires_grad, made * 2

        x.requires_grad_()
    have, want = dynacompile.compile(function)(x), function(x)
    torch.testing.assert_close(have, want)
