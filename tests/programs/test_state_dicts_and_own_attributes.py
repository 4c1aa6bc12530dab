"""State dicts that the frame makes, reads and loads; attributes of dicts and partials; samples whose gradients torch writes in Python."""

from __future__ import annotations

import copy
import functools
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn

import dynacompile
from tests.checking import check
from tests.scenarios import check_same


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.ema = copy.deepcopy(self.net).requires_grad_(False)


def averages(pair, x):
    with torch.no_grad():
        own = pair.net.state_dict()
        for name, value in pair.ema.state_dict().items():
            value.copy_(value * 0.9 + own[name] * 0.1)
    return pair.ema(x)


def loads(pair, x):
    pair.ema.load_state_dict(pair.net.state_dict())
    return pair.ema(x)


def gives(pair, x):
    found = pair.net.state_dict()
    return x, found, found._metadata["0"], sorted(found._metadata), type(found).__name__, hasattr(found, "other")


def own_attributes(pair, x):
    made = OrderedDict(a=x)
    made.note = [1]
    made.note.append(2)
    made.other = made
    return x + len(made.note), made.note, made.other is made, made, list(made), hasattr(made, "none"), OrderedDict(made) == made


def of_a_counter(pair, x):
    made = Counter("abca")
    made.note = x
    return x + made["a"], made, hasattr(made, "note"), made.note is x, made + made


def copied(pair, x):
    made = OrderedDict(a=1)
    made.note = [1]
    return x + 1, hasattr(copy.copy(made), "note"), hasattr(copy.deepcopy(made), "note"), hasattr(made.copy(), "note")


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [averages, loads, gives, own_attributes, of_a_counter, copied])
def test_as_in_eager(fn, backend):
    def story(wrap):
        pair, run = Pair(), wrap(fn)
        for step in range(3):
            result = run(pair, torch.linspace(-1, step, 12).reshape(4, 3))
            yield result
            yield {name: value.detach().clone() for name, value in pair.state_dict().items()}
            shown = next((part for part in result if isinstance(part, OrderedDict)), None) if isinstance(result, tuple) else None
            yield None if shown is None else (vars(shown).get("note"), list(vars(shown)))

    if fn in (averages, loads):
        dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)(Pair(), torch.ones(4, 3))
    check_same(story, backend=backend, least=None)


@pytest.mark.parametrize("cls", [OrderedDict, Counter])
@pytest.mark.parametrize("noted", [False, True])
def test_attributes_of_one_that_is_given(noted, cls):
    def asks(x, given):
        first = copy.copy(given)
        dynacompile.graph_break()
        return x + 1, hasattr(first, "note"), vars(first), hasattr(given, "note"), hasattr(copy.deepcopy(given), "note"), getattr(given, "note", 4)

    def story(wrap):
        run = wrap(asks)
        for own in (noted, not noted, noted):
            given = cls(a=1)
            if own:
                given.note = [3]
            yield run(torch.ones(2), given)

    check_same(story, backend="eager", least=None)


@pytest.mark.parametrize("cls", [OrderedDict, Counter])
def test_a_namespace_that_is_written(cls):
    def writes(x):
        made = cls(a=1)
        made.__dict__["note"] = 5
        vars(made).update(b=4)
        return x + 1, hasattr(made, "note"), made.__dict__, made.b

    check_same(lambda wrap: iter([wrap(writes)(torch.ones(2))]), backend="eager", least=None)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["Beta", "Dirichlet"])
def test_samples(name, requires_grad):
    def draws(x):
        made = torch.distributions.Beta(x, x + 1) if name == "Beta" else torch.distributions.Dirichlet(x)
        sample = made.rsample()
        return sample * 2, made.log_prob(sample.detach()), made.sample()

    def story(wrap):
        run = wrap(draws)
        for seed in range(2):
            torch.manual_seed(seed)
            x = torch.tensor([0.5, 1.0, 2.0], requires_grad=requires_grad)
            found = run(x)
            yield found
            if requires_grad:
                yield torch.autograd.grad(found[0].pow(2).sum() + found[1].sum(), x)

    check_same(story, backend="eager", least=None)


def test_a_share_that_is_drawn_is_in_the_graph():
    def mixed(x):
        share = torch.distributions.Beta(0.2, 0.2).sample()
        return share * x + (1 - share) * x.flip(0)

    check(mixed, torch.arange(6.0).reshape(3, 2), graphs=1, breaks=0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_attributes_of_a_partial(wrapped):
    def scale(x, by):
        "Scales."
        return x * by

    def asks(x, given):
        return given(x), hasattr(given, "__name__"), getattr(given, "note", 4), given.__doc__, hasattr(given, "__wrapped__")

    def story(wrap):
        run = wrap(asks)
        for own in (wrapped, not wrapped, wrapped):
            given = functools.partial(scale, by=2)
            if own:
                functools.update_wrapper(given, scale)
                given.note = 5
            yield run(torch.ones(2), given)

    check_same(story, backend="eager", least=None)
