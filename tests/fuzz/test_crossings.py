"""A slice of the random training programs in which features of PyTorch meet, and what the judge tells."""

import pytest
import torch

from tests.fuzz import crossings
from tests.fuzz.crossing_layers import LAYERS, TRAINER_LAYERS, WIDEST_LAYERS
from tests.fuzz.crossing_training import (
    CALLS_OF_TWINS,
    EVENTS,
    STEPS,
    TRAINER_EVENTS,
    TRAINER_STEPS,
    WIDER_EVENTS,
    WIDEST_CALLS,
    WIDEST_EVENTS,
    WIDEST_STEPS,
)
from tests.fuzz.told_programs import Eager, Notes, differences, run


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_slice(first):
    for seed in range(first, first + 4):
        crossings.check(crossings.generate(seed), backend="aot_eager")


def test_programs_are_what_they_were():
    assert crossings.generate(7) == crossings.generate(7)
    assert len({crossings.generate(seed).source for seed in range(20)}) == 20


def test_every_feature_comes():
    seen = [crossings.generate(seed) for seed in range(400)]
    assert {name for p in seen for name in p.layers} == set(LAYERS)
    assert {name for p in seen for name in p.steps} == set(STEPS)
    assert {name for p in seen for name in p.events} == set(EVENTS)


def test_every_wider_feature_comes():
    seen = [crossings.generate(crossings.WIDER + seed) for seed in range(400)]
    assert {name for p in seen for name in p.events} == {*EVENTS, *WIDER_EVENTS}
    assert set(CALLS_OF_TWINS) <= {p.manner for p in seen}


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_wider_slice(seed):
    crossings.check(crossings.generate(crossings.WIDER + seed), backend="aot_eager")


def test_every_widest_feature_comes():
    seen = [crossings.generate(crossings.WIDEST + seed) for seed in range(400)]
    assert set(WIDEST_LAYERS) <= {name for p in seen for name in p.layers}
    assert set(WIDEST_STEPS) <= {name for p in seen for name in p.steps}
    assert set(WIDEST_EVENTS) <= {name for p in seen for name in p.events}
    assert set(WIDEST_CALLS) <= {p.manner for p in seen}


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_widest_slice(seed):
    crossings.check(crossings.generate(crossings.WIDEST + seed), backend="aot_eager")


def test_every_feature_of_trainers_comes():
    seen = [crossings.generate(crossings.TRAINERS + seed) for seed in range(400)]
    assert set(TRAINER_LAYERS) <= {name for p in seen for name in p.layers}
    assert set(TRAINER_STEPS) <= {name for p in seen for name in p.steps}
    assert set(TRAINER_EVENTS) <= {name for p in seen for name in p.events}


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_slice_of_trainers(seed):
    crossings.check(crossings.generate(crossings.TRAINERS + seed), backend="aot_eager")


def told(change):
    def story(wrap, note):
        layer = torch.nn.Linear(2, 2)
        layer.seen = 0
        result = layer(torch.ones(1, 2))
        note("before", layer)
        change(layer, result)
        note("after", result, layer)

    return run(story, Eager())


CHANGES = {
    "value": lambda layer, result: layer.weight.data.add_(1),
    "version": lambda layer, result: layer.weight.detach().mul_(1),
    "gradient": lambda layer, result: result.sum().backward(),
    "attribute": lambda layer, result: setattr(layer, "seen", 1),
    "mode": lambda layer, result: layer.eval(),
    "leaf": lambda layer, result: layer.weight.requires_grad_(False),
    "memory": lambda layer, result: setattr(layer.bias, "data", layer.weight.data[0]),
    "random state": lambda layer, result: torch.rand(1),
    "setting": lambda layer, result: torch.set_default_dtype(torch.float64),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_judge_sees(name):
    plain = told(lambda layer, result: None)
    assert not list(differences(told(lambda layer, result: None), plain))
    assert list(differences(told(CHANGES[name]), plain))
    assert torch.get_default_dtype() is torch.float32


def test_the_judge_sees_errors():
    def raising(text):
        def call():
            raise ValueError(text)

        note = Notes()
        note.attempt("call", call)
        return note.items

    assert not list(differences(raising("one"), raising("one")))
    assert list(differences(raising("one"), raising("two")))
