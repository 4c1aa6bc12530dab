"""Tensors that wrap others, of a class that graphs are traced through: results, gradients, writes and what the class says of itself are eager's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile import events
from dynacompile.errors import ConfigError


@dynacompile.trace_through
class Pair(torch.Tensor):
    """Two tensors, on each of which an operation is done."""

    def __new__(cls, first: torch.Tensor, second: torch.Tensor, tag: str = "pair"):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, strides=first.stride(), dtype=first.dtype, device=first.device)

    def __init__(self, first: torch.Tensor, second: torch.Tensor, tag: str = "pair"):
        self.first, self.second, self.tag = first, second, tag

    def __tensor_flatten__(self):
        return ["first", "second"], self.tag

    @classmethod
    def __tensor_unflatten__(cls, inner, tag, size, stride):
        return cls(inner["first"], inner["second"], tag)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = (args, kwargs or {})
        pairs = [t for t in pytree.tree_leaves(given) if isinstance(t, cls)]
        halves = [pytree.tree_map_only(cls, lambda t, at=at: getattr(t, at), given) for at in ("first", "second")]
        first, second = (func(*args, **kwargs) for args, kwargs in halves)
        if func._schema.is_mutable:
            return args[0]
        return pytree.tree_map(lambda a, b: cls(a, b, pairs[0].tag) if isinstance(a, torch.Tensor) else a, first, second)


def pair(seed: int, requires_grad: bool = False, tag: str = "pair") -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return Pair(torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator), tag).requires_grad_(requires_grad)


@pytest.fixture
def seen() -> Iterator[list[events.Event]]:
    """Entries, graph breaks and frames left to Python."""
    found: list[events.Event] = []
    end = dynacompile.subscribe(lambda e: found.append(e) if isinstance(e, (events.GraphBroke, events.FrameSkipped, events.Compiled)) else None)
    yield found
    end()


def same(mine: Pair, theirs: Pair) -> None:
    assert type(mine) is type(theirs) is Pair and mine.tag == theirs.tag and mine.requires_grad == theirs.requires_grad
    torch.testing.assert_close((mine.first, mine.second), (theirs.first, theirs.second))


def product(x, w, y):
    return (x @ w).relu() * y, x.sum(0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_and_gradients(requires_grad, seen):
    compiled = dynacompile.compile(product, fullgraph=True)
    y, found = torch.ones(4, 4) / 3, []
    for call in (compiled, product):
        x, w = pair(1, requires_grad), pair(2, requires_grad)
        made = call(x, w, y)
        if requires_grad:
            torch.autograd.backward(made, [torch.ones_like(t) for t in made])
        found.append([*made, *((x.grad, w.grad) if requires_grad else ())])
    for mine, theirs in zip(*found, strict=True):
        same(mine, theirs)
    assert len(seen) == 1


def test_writes_to_an_input(seen):
    def doubled(x):
        x.mul_(2)
        return x + 1

    compiled = dynacompile.compile(doubled, fullgraph=True)
    mine, theirs = pair(1), pair(1)
    same(compiled(mine), doubled(theirs))
    same(mine, theirs)
    assert mine._version == theirs._version and len(seen) == 1


def test_no_gradient_of_what_is_computed_without_keeps_that_of_the_rest():
    def partly(x, w):
        with torch.no_grad():
            made = x * w
        return made + x

    compiled = dynacompile.compile(partly, fullgraph=True)
    found = []
    for call in (compiled, partly):
        x, w = pair(1, True), pair(2, True)
        made = call(x, w)
        made.backward(torch.ones_like(made))
        found.append((made, x.grad))
        assert w.grad is None
    for mine, theirs in zip(*found, strict=True):
        same(mine, theirs)


def test_each_context_has_an_entry(seen):
    compiled = dynacompile.compile(product)
    for tag in "abab":
        assert compiled(pair(1, tag=tag), pair(2, tag=tag), torch.ones(4, 4))[0].tag == tag
    assert len(seen) == 2


def test_classes_that_wrap_nothing_are_refused():
    with pytest.raises(ConfigError, match="__tensor_flatten__"):
        dynacompile.trace_through(torch.nn.Parameter)


@dynacompile.trace_through
class Asking(Pair):
    """It computes with the numbers of an operation, and compares what it gets, as DTensor's cache does with numbers that it has seen before."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        numbers = [a for a in args if isinstance(a, (float, torch.SymFloat))]
        assert all(number * 2 + 1 >= number for number in numbers)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_class_that_computes_with_symbolic_numbers(requires_grad):
    compiled = dynacompile.compile(lambda x, rate: x * rate, fullgraph=True, options={"varying": ("rate",)})
    for rate in (0.5, 0.75, 0.25):
        inside = torch.full((4, 4), 2.0), torch.full((4, 4), 3.0)
        made = compiled(Asking(*inside).requires_grad_(requires_grad), rate)
        torch.testing.assert_close((made.first, made.second), (inside[0] * rate, inside[1] * rate))
