"""Functions that torch.jit.script made are followed; what it would do with an argument is done, and where that can't be known, the script runs."""

from __future__ import annotations

import warnings

import pytest
import torch

import dynacompile
from dynacompile import events

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.script
    def bucketed(position, buckets: int, longest: int = 8):
        sign = torch.sign(position)
        half = buckets // 2
        near = torch.where((position < half) & (position > -half), torch.tensor(half - 1).type_as(position), torch.abs(position))
        far = torch.ceil(torch.log(near / half) * (half - 1)) + half + longest
        return torch.where(near <= half, position.type_as(far), far * sign)

    @torch.jit.script
    def filled(x: torch.Tensor, value: float):
        return torch.full([2], value) + x.sum()

    @torch.jit.script
    def shifted(x: torch.Tensor, by: torch.Tensor | None = None):
        return x if by is None else x + by

    @torch.jit.script
    def reshaped(x: torch.Tensor, size: list[int]):
        return x.reshape(size + [1])

    @torch.jit.script
    def combined(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]):
        x, y = a
        u, v = b
        return u * x, torch.addcmul(v, u, y)

    @torch.jit.script
    def replaced(parts: list[torch.Tensor], how: tuple[int, tuple[float, torch.Tensor]]) -> list[torch.Tensor]:
        parts.append(parts[0] * how[0] + how[1][0])
        parts[0] = how[1][1]
        return parts

    @torch.jit.script
    def looked_up(x: torch.Tensor, table: dict[str, torch.Tensor]):
        return x + table["a"]

    def branching(x):
        return x * 2 if bool(x.sum() > 0) else x * 3

    traced = torch.jit.trace(branching, (torch.ones(3),))


def doubled(x):
    return x * 2


def halved(x):
    return x / 2


def helping(x):
    return doubled(x) + 1


def kept_beside(x):
    given = [x, x * 3]
    made = replaced(given, [2, (0.5, x - 1)])
    return *given, *made, x + len(given) + (made is given)


def outcome(function, *args, fullgraph=True):
    """What a compiled call gives, and its graph breaks."""
    broke = []
    end = dynacompile.subscribe(lambda e: broke.append(e) if isinstance(e, events.GraphBroke) else None)
    try:
        return dynacompile.compile(function, fullgraph=fullgraph)(*args), broke
    finally:
        end()


FOLLOWED = {
    "numbers and defaults": (lambda x: bucketed(x, 6), torch.arange(-9.0, 9.0)),
    "by name": (lambda x: bucketed(x, buckets=6, longest=3), torch.arange(-9.0, 9.0)),
    "an int for a float": (lambda x: filled(x, 3), torch.ones(3)),
    "nothing for a tensor that may be missing": (lambda x: shifted(x) + shifted(x, None), torch.ones(3)),
    "a list": (lambda x: reshaped(x + 1, [3, 1]), torch.ones(3)),
    "a tuple for a list": (lambda x: reshaped(x + 1, (3, 1)), torch.ones(3)),
    "lists for tuples": (lambda x: torch.stack(combined([x, x + 1], combined((x, x), [x * 2, x]))), torch.arange(3.0)),
    "a list that is copied": (lambda x: torch.stack([*kept_beside(x)]), torch.arange(3.0)),
    "a tensor for one that may be missing": (lambda x: shifted(x, x * 2), torch.ones(3)),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_followed_in_one_graph(case):
    function, x = FOLLOWED[case]
    found, broke = outcome(function, x)
    assert not broke
    torch.testing.assert_close(found, function(x), rtol=0, atol=0)


def test_gradients():
    x = torch.linspace(-2, 2, 7, requires_grad=True)
    found, _ = outcome(lambda x: shifted(x, x * x).sum(), x)
    (mine,) = torch.autograd.grad(found, x)
    (wanted,) = torch.autograd.grad(shifted(x, x * x).sum(), x)
    torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: looked_up(x, {"a": x}), id="a dict"),
        pytest.param(lambda x: traced(x - 2), id="a trace, which took the other branch"),
    ],
)
def test_left_to_the_script(function):
    x = torch.ones(3)
    found, broke = outcome(function, x, fullgraph=False)
    assert broke and all("ScriptFunction" in e.reason for e in broke), broke
    torch.testing.assert_close(found, function(x))


def test_another_function_in_its_place():
    held = {"function": shifted}

    def function(x):
        return held["function"](x, x)

    compiled = dynacompile.compile(function, fullgraph=True)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), x * 2)
    held["function"] = torch.jit.script(lambda_free)
    torch.testing.assert_close(compiled(x), x * 0)


def lambda_free(x, y):
    return x - y


def test_what_it_is_asked_for():
    def function(x):
        return x + 1 if isinstance(shifted, torch.jit.ScriptFunction) and callable(shifted) else x

    torch.testing.assert_close(outcome(function, torch.ones(3))[0], torch.full((3,), 2.0))


def test_a_function_that_it_calls_is_that_of_when_it_was_made(monkeypatch):
    script = torch.jit.script(helping)

    def function(x):
        return script(x)

    x = torch.ones(3)
    found, broke = outcome(function, x)
    assert not broke and torch.equal(found, script(x))
    compiled = dynacompile.compile(function)
    assert torch.equal(compiled(x), torch.full((3,), 3.0))
    for other in (halved, torch.jit.script(halved)):
        monkeypatch.setitem(globals(), "doubled", other)
        assert torch.equal(script(x), torch.full((3,), 3.0)) and torch.equal(compiled(x), script(x))
