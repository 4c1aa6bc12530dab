"""Steps that torch.optim leaves to Python where step counts lie on a GPU: their fused form is compiled. Here the counts are on the CPU, where torch asks for
compiled ones, so the tests call what torch would."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported

KEPT = {name: inspect.getclosurevars(getattr(sys.modules[f"torch.optim.{name}"], name)).nonlocals["disabled_func"] for name in ("adam", "adagrad")}
OPTIONS: dict[str, dict] = {
    "adam": {"amsgrad": True, "beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8, "maximize": False},
    "adagrad": {"lr": 0.1, "weight_decay": 0.01, "lr_decay": 0.1, "eps": 1e-8, "maximize": False, "has_sparse_grad": False, "differentiable": False},
}
LISTS = {"adam": 5, "adagrad": 3}  # parameters, gradients, and what is kept of each


def state(name: str) -> list[list[torch.Tensor]]:
    torch.manual_seed(0)
    lists = [[torch.rand(4, 3), torch.rand(5)] for _ in range(LISTS[name])]
    return [*lists, [torch.tensor(3.0), torch.tensor(5.0)]]


def step(name: str, fused: bool):
    return lambda *lists: KEPT[name](*lists, fused=fused, foreach=False, **OPTIONS[name])


@pytest.mark.parametrize("name", KEPT)
def test_fused_steps_are_compiled(name):
    ours, eagers = state(name), state(name)
    compiled = dynacompile.compile(step(name, True), fullgraph=True, options={"reference": True, "fallback": "none"}, isolate_recompiles=True)
    with torch.no_grad():
        for _ in range(3):
            compiled(*ours)
            step(name, True)(*eagers)
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("name", KEPT)
def test_other_forms_stay_in_python(name):
    compiled = dynacompile.compile(step(name, False), fullgraph=True, backend="eager", isolate_recompiles=True)
    with torch.no_grad(), pytest.raises(Unsupported, match="disabled"):
        compiled(*state(name))
