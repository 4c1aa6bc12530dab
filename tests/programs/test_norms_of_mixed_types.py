"""Norms whose input and parameters have types that CPUs take no mixture of: eager's error, and what the frame did before it."""

import itertools

import pytest
import torch
from torch import nn

import dynacompile

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORMS = {"layer": lambda: nn.LayerNorm(4), "group": lambda: nn.GroupNorm(2, 4), "batch": lambda: nn.BatchNorm1d(4), "rms": lambda: nn.RMSNorm(4)}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("own, given", list(itertools.permutations(TYPES, 2)))
def test_result_or_error(name, own, given):
    module, x, seen = NORMS[name]().to(own), torch.randn(3, 4).to(given), []

    def norm(x):
        seen.append(tuple(x.shape))
        return module(x * 2)

    def outcome(call):
        seen.clear()
        try:
            return call(x).dtype, list(seen)
        except RuntimeError as error:
            return str(error).splitlines()[0], list(seen)

    assert outcome(dynacompile.compile(norm, backend="aot_eager")) == outcome(norm)
