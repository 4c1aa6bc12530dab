"""Functions and classes that libraries call on the way to their tensors: one graph, as in eager."""

import functools
import pickle
import sys
from typing import TypedDict

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke


class Options(TypedDict, total=False):
    scale: int


class Scaled(torch.autograd.Function):
    """Of the same tensor twice, and a function of the caller."""

    @staticmethod
    def forward(ctx, left, right, scale, distance):
        if any(ctx.needs_input_grad[:2]):
            raise RuntimeError("no gradients of the points")
        found = distance(left / scale, right / scale)
        ctx.save_for_backward(found)
        return found * 2

    @staticmethod
    def backward(ctx, grad):
        (found,) = ctx.saved_tensors
        return None, None, (grad * found).sum(), None


def same_tensor_twice(x):
    w = torch.ones((), requires_grad=True) * 3 if x.requires_grad else torch.tensor(3.0)
    power = 2
    return Scaled.apply(x.detach(), x.detach(), w, lambda a, b: (a - b.T) ** power), Scaled.apply(*[x.detach()] * 2, W, lambda a, b: a + b.T)


W = torch.full((), 2.0, requires_grad=True)


def broadcast(x):
    return x.expand(torch.broadcast_shapes(torch.Size([]), [2, 2], x.shape)), torch.broadcast_shapes([1, 3], (4, 1))


def refused_broadcast(x):
    try:
        return torch.broadcast_shapes([2], [3]), x
    except RuntimeError:
        return x + 1


def memoized(x, cache={}):  # noqa: B006 - it is the cache
    def kept(**kwargs):
        key = pickle.dumps(kwargs), pickle.dumps((1, 2.5, None))
        if key not in cache:
            cache[key] = len(cache)
        return cache[key]

    return x + kept(), x + kept(scale=2), x + kept(scale=2)


def strictly(x):
    parts = zip([x, x + 1], [1, 2], strict=True)
    first, scale = next(parts)
    dynacompile.graph_break()
    return [a * b for a, b in parts], first * scale


def too_short(x):
    parts = zip([x, x + 1], [1], strict=True)
    next(parts)
    dynacompile.graph_break()
    return [a * b for a, b in parts]


def typed(x):
    options = Options(scale=2)
    return x * options["scale"], type(options) is dict, Options()


def dual(x):
    given = torch.autograd.forward_ad.unpack_dual(x)
    return given.primal + 1 if given.tangent is None else x, len(given)


def outcome(call, x):
    try:
        return [part.tolist() if isinstance(part, torch.Tensor) else part for part in torch.utils._pytree.tree_leaves(call(x))]
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)


@pytest.mark.parametrize("program", [same_tensor_twice, broadcast, refused_broadcast, memoized, strictly, too_short, typed, dual], ids=lambda f: f.__name__)
def test_as_in_eager(program):
    events = []
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    x = torch.arange(4.0).view(2, 2)
    want = outcome(program, x)
    end = dynacompile.subscribe(events.append)
    assert [outcome(compiled, x) for _ in range(3)] == [want] * 3
    end()
    assert not [e for e in events if isinstance(e, FrameSkipped)]
    breaks = [e.code for e in events if isinstance(e, GraphBroke) and e.code != "asked"]
    assert breaks == (["would-raise"] if program is too_short and sys.version_info < (3, 12) else [])  # whose comprehensions are functions


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_a_function_that_is_given_a_tensor_twice(backend):
    def program(x, w):
        return Scaled.apply(x, x, w, functools.partial(torch.cdist)).sum()

    found = []
    for call in (program, dynacompile.compile(program, backend=backend, isolate_recompiles=True)):
        x, w = torch.arange(6.0).view(3, 2), torch.tensor(2.0, requires_grad=True)
        loss = call(x, w)
        loss.backward()
        found.append((loss.item(), w.grad.item()))
    assert found[0] == found[1]


class Equal:
    """Its objects are equal without being one."""

    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


def test_objects_of_a_class_with_an_equality_of_its_own_are_told_apart():
    def program(x, left, right):
        return x * left.scale if left is right else x + right.scale

    one, other, events = Equal(2), Equal(3), []
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    for left, right in [(one, other), (one, one), (other, one), (other, other), (Equal(5), Equal(2))]:
        x = torch.ones(2)
        assert torch.equal(compiled(x, left, right), program(x, left, right))
    end()
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
