"""Steps of training as programs: what a step needs, and its comparison with eager's, to the bit, in one graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke

Make = Callable
"""Gives the function of one step, a function that gives its arguments, by the number of the step, and what else to compare."""


def r(*shape, scale=1.0):
    return torch.randn(*shape) * scale


def mlp(width=4):
    return nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))


def leaves(watched):
    return [t for w in watched for t in ((w,) if isinstance(w, torch.Tensor) else (*w.parameters(), *w.buffers()))]


def run(make, wrap):
    """Results, gradients of the arguments and of what is watched, and its values, after each of four steps."""
    torch.manual_seed(0)
    fn, arguments, watched = make()
    call, told, others = wrap(fn), [], []
    for i in range(4):
        torch.manual_seed(i)
        args = arguments(i)
        out = call(*args)
        flat = pytree.tree_leaves(out)
        losses = [t for t in flat if isinstance(t, torch.Tensor) and t.requires_grad]
        if losses:
            sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in losses).backward()
        given = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        seen = [*given, *leaves(watched)]
        others.append([t for t in flat if not isinstance(t, torch.Tensor)])
        told.append(
            (
                [t.detach().clone() for t in flat if isinstance(t, torch.Tensor)],
                [None if t.grad is None else t.grad.clone() for t in seen if t.is_leaf],
                [t.detach().clone() for t in seen],
                torch.get_rng_state(),
            )
        )
    return told, others


def check_step(make: Make) -> None:
    """Four compiled steps equal eager's, results, gradients and state, and nothing of them is left to Python."""
    want, wanted = run(make, lambda fn: fn)
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        got, others = run(make, lambda fn: dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none", "verify": True}))
    finally:
        end()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert others == wanted
    assert [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))] == []
    assert [e for e in events if isinstance(e, Compiled) and e.ops > 0]
