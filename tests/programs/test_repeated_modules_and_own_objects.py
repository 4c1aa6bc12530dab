"""Modules that are alike are followed once, but not where their calls read or change what the frame made, as hooks of transformers do that collect results."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.checking import check


class Box:
    found: Any = None


BOX, LOCAL, VARIABLE = Box(), threading.local(), contextvars.ContextVar("VARIABLE", default=None)
FOUND: Any = None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.b(torch.tanh(self.a(x)))) + x


READERS = {"object": lambda: BOX.found, "thread": lambda: LOCAL.found, "variable": VARIABLE.get, "global": lambda: FOUND}


def model(hook: Any) -> nn.ModuleList:
    torch.manual_seed(0)
    layers = nn.ModuleList([Layer() for _ in range(4)])
    for layer in layers:
        layer.register_forward_hook(hook)
    return layers


def share(place: str, found: list) -> None:
    global FOUND
    if place == "object":
        BOX.found = found
    elif place == "thread":
        LOCAL.found = found
    elif place == "global":
        FOUND = found


@pytest.mark.parametrize("place", READERS)
def test_hooks_that_collect_results(place):
    layers = model(lambda module, args, output: READERS[place]().append(output))

    def collect(x):
        found: list[torch.Tensor] = []
        share(place, found)
        token = VARIABLE.set(found) if place == "variable" else None
        for layer in layers:
            x = layer(x)
        if token is not None:
            VARIABLE.reset(token)
        return x, list(found)

    check(collect, torch.ones(2, 4))


def test_hooks_that_read_what_the_frame_changes_between_modules():
    layers = model(lambda module, args, output: output + len(BOX.found))

    def count(x):
        BOX.found = found = []
        for layer in layers:
            x = layer(x)
            found.append(1)
        return x

    check(count, torch.ones(2, 4))
