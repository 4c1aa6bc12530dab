"""Tensors that are given other memory by `.data` between a forward pass and its backward, which reads them: as in eager, or an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynacompile


def program(x, w):
    return ((x.sin() @ w).relu() * x.shape[0]).sum(), x.expand(3, *x.shape).cos().sum()


def gradients(call: Callable, is_leaf: bool, change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor] | RuntimeError:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(*s, generator=generator, requires_grad=True) for s in ((4, 6), (6, 5))]
    x = leaves[0] if is_leaf else leaves[0] * 1
    loss, other = call(x, leaves[1])
    x.data = change(x.data)
    try:
        return list(torch.autograd.grad(loss + other, leaves))
    except RuntimeError as error:
        return error


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other strides": lambda t: t.t().contiguous().t(),
    "gaps between rows": lambda t: torch.cat((t, t), 1)[:, :6],
    "a copy": lambda t: t.clone(),
    "smaller": lambda t: t[:2, :3].clone(),
    "larger": lambda t: torch.cat((t, t)),
    "another type": lambda t: t.double(),
    "no elements": lambda t: t.new_empty(0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("options", [{"reference": True}, {}], ids=["reference", "built"])
def test_memory_that_was_replaced(options, is_leaf, dynamic):
    compiled = dynacompile.compile(program, dynamic=dynamic, isolate_recompiles=True, options={"fallback": "none", **options})
    for name, change in CHANGES.items():
        got, want = gradients(compiled, is_leaf, change), gradients(program, is_leaf, change)
        if name == "another type":  # eager computes with both
            assert isinstance(got, RuntimeError) and "was float[4, 6] on cpu when it was saved for backward, and is double[4, 6]" in str(got)
        elif isinstance(want, RuntimeError):
            assert isinstance(got, RuntimeError), name
        else:
            assert isinstance(got, list), f"{name}: {got}"
            torch.testing.assert_close(got, want, msg=lambda text, name=name: f"{name}: {text}")
