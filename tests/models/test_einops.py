"""einops: its caches hold how a pattern is carried out for a shape; they are no part of the program, and one graph serves all sizes."""

import functools

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.checking import check
from tests.programs.test_found_by_torchs_tests import same

einops = pytest.importorskip("einops")
CAPTURE = {"backend": "eager"}
einops.rearrange(torch.ones(1), "n -> n")  # which loads what it has for torch


def heads(x):
    query, key, value = einops.rearrange(x, "b n (three h d) -> three b h n d", three=3, h=2)
    scores = einops.einsum(query, key, "b h i d, b h j d -> b h i j").softmax(-1)
    return einops.rearrange(einops.einsum(scores, value, "b h i j, b h j d -> b h i d"), "b h n d -> b n (h d)")


def reduced(x):
    return einops.reduce(x, "b n (h d) -> b h", "max", h=3), einops.reduce(x, "b ... -> b", "mean"), einops.reduce(x, "b (n two) d -> b n d", "sum", two=2)


def repeated(x):
    return einops.repeat(x[:, :, :1], "b n 1 -> b (n k) r", k=2, r=3), einops.repeat(x, "b n d -> (b b2) n d", b2=2)


def packed(x):
    joined, shapes = einops.pack([x, x[:, :1]], "b * d")
    return einops.unpack(joined * 2, shapes, "b * d"), shapes, einops.parse_shape(x, "b _ d")


@pytest.mark.parametrize("program", [heads, reduced, repeated, packed])
def test_patterns_are_one_graph_for_all_sizes(program):
    compiled, events = dynacompile.compile(program, **CAPTURE, isolate_recompiles=True), []
    end = dynacompile.subscribe(events.append)
    for size in [(2, 4, 12), (2, 6, 12), (2, 8, 12), (3, 10, 12), (4, 6, 12)]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    end()
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    assert sum(isinstance(e, Compiled) for e in events) <= 3  # static sizes, then one symbol, then two


def test_layers_are_one_graph():
    of = pytest.importorskip("einops.layers.torch")
    layers = [
        of.Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        nn.Linear(12, 6),
        of.EinMix("b n c -> b n d", weight_shape="c d", c=6, d=4),
        of.Reduce("b n d -> b d", "mean"),
    ]
    check(nn.Sequential(*layers), torch.randn(2, 3, 4, 4), options=CAPTURE, graphs=1, breaks=0)


@pytest.mark.parametrize("pattern", ["b n d -> b n", "b n (h d) -> b h n d", "b n (h d) -> b n d h z", "b n"])
def test_what_is_wrong_with_a_pattern_is_told_as_by_eager(pattern):
    def program(x):
        return einops.rearrange(x, pattern, h=5)

    same(program, torch.ones(2, 3, 4))


class Doubles:
    def __call__(self, number):
        return number * 2


@pytest.mark.parametrize("function", [functools.partial(pow, 2), Doubles()], ids=["partial", "object"])
def test_caches_of_what_has_no_name(function):
    cached = functools.lru_cache(function)

    def program(x):
        return x * cached(3)

    check(program, torch.ones(2), options=CAPTURE, graphs=None, breaks=None)
