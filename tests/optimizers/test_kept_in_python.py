"""Steps that torch.optim leaves to Python where step counts lie on a GPU: their fused form is compiled. Here the counts are on the CPU, where torch asks for
compiled ones, so the tests call what torch would."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported

KEPT = inspect.getclosurevars(sys.modules["torch.optim.adam"].adam).nonlocals["disabled_func"]
OPTIONS: dict = {"foreach": False, "amsgrad": True, "beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8, "maximize": False}


def state() -> list[list[torch.Tensor]]:
    """Parameters, gradients, what is kept of each, step counts."""
    torch.manual_seed(0)
    return [*([torch.rand(4, 3), torch.rand(5)] for _ in range(5)), [torch.tensor(3.0), torch.tensor(5.0)]]


@pytest.mark.parametrize("decoupled", [True, False], ids=["adamw", "adam"])
def test_fused_steps_are_compiled(decoupled):
    def step(*lists):
        KEPT(*lists, fused=True, decoupled_weight_decay=decoupled, **OPTIONS)

    ours, eagers = state(), state()
    compiled = dynacompile.compile(step, fullgraph=True, options={"reference": True, "fallback": "none"}, isolate_recompiles=True)
    with torch.no_grad():
        for _ in range(3):
            compiled(*ours)
            step(*eagers)
            torch.testing.assert_close(ours, eagers)


def test_other_forms_stay_in_python():
    compiled = dynacompile.compile(lambda *lists: KEPT(*lists, fused=False, **OPTIONS), fullgraph=True, backend="eager", isolate_recompiles=True)
    with torch.no_grad(), pytest.raises(Unsupported, match="disabled"):
        compiled(*state())
