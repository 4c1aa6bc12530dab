"""Operators whose schema says that their result is new, and which hand back memory of an operand, as `channel_shuffle` of one group on GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Scheduled
from dynacompile.private import of_torch

NAME = "dynacompile_tests_handed_back"


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library(NAME, "DEF")
    library.define("seen(Tensor x) -> Tensor")
    library.define("both(Tensor x, Tensor[] others) -> (Tensor, Tensor)")
    library.define("listed(Tensor[] tensors) -> Tensor[]")
    library.impl("seen", lambda x: x.view(-1).view_as(x), "CPU")
    library.impl("both", lambda x, others: (others[-1], x), "CPU")
    library.impl("listed", lambda tensors: tensors[::-1], "CPU")
    library.impl("seen", torch.empty_like, "Meta")
    library.impl("both", lambda x, others: (torch.empty_like(x), torch.empty_like(x)), "Meta")
    library.impl("listed", lambda tensors: [torch.empty_like(t) for t in tensors], "Meta")
    yield
    library._destroy()
    dynacompile.reset()


def ops() -> object:
    return getattr(torch.ops, NAME)


def one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sums of squares got the memory of what is handed back."""
    t = ops().seen(x.sin())
    return t.square().mean((1, 2)), t, (t * 2).sum(0)


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, d = ops().both(x.sin(), [x.cos(), x.exp()])
    r = a.square().sum((0, 1))
    b, c = ops().listed([d * 2, a + 1])
    return r, a, b * 2, c, (b + c).mean(2)


@pytest.mark.parametrize("function", [one, several])
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_results(function, reference: bool, dynamic: bool | None) -> None:
    compiled = dynacompile.compile(function, dynamic=dynamic, options={"fallback": "none", "verify": True, "reference": reference})
    for size in (6, 8):
        x = torch.randn(size, 7, 5)
        for got, want in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 8, 5, 6), (3, 4, 7), (1, 8, 2, 3, 2)], ids=str)
def test_channel_shuffle_is_part_of_its_readers(groups: int, shape: tuple[int, ...]) -> None:
    calls: list[tuple] = []
    end = dynacompile.subscribe(lambda event: calls.append(event.calls) if isinstance(event, Scheduled) else None)
    compiled = dynacompile.compile(lambda x: F.channel_shuffle(x, groups) * 2 + 1, options={"fallback": "none"})
    x = torch.randn(shape)
    for given in (x, x.to(memory_format=torch.channels_last)) if x.dim() == 4 else (x,):
        want = F.channel_shuffle(given, groups) * 2 + 1
        got = compiled(given)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    end()
    assert set(calls) == {()}


def test_what_is_waited_for_is_not_copied() -> None:
    """Of a collective that has ended, the operator gives the result itself."""
    wait = of_torch.wait_tensor

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = x.sort().values
        return made, wait(made)

    made, waited = dynacompile.compile(function, options={"fallback": "none"})(torch.randn(64))
    assert made.data_ptr() == waited.data_ptr()
