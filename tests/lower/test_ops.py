"""Every row of the op table, with its samples: eager, the loop program and the schedule agree."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from dynacompile.ops.samples import SAMPLES, Maker
from dynacompile.ops.table import TABLE

from .tracing import compare, trace


def overload(name: str) -> torch._ops.OpOverload:
    namespace, packet, one = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), one)


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(TABLE))
def test_row(name: str) -> None:
    op = overload(name)
    samples = list(SAMPLES[TABLE[name].samples](Maker()))
    assert samples
    for args, kwargs in samples:
        check(op, args, kwargs)


def check(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def function(*given: torch.Tensor) -> object:
        rest = iter(given)
        filled, named = pytree.tree_unflatten([next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
        return op(*filled, **named)

    try:
        op(*args, **kwargs)
    except (RuntimeError, ValueError):
        return  # eager refuses this sample
    graph = trace(function, tensors, decompose=False)
    half = any(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
    tolerances = {"rtol": 2e-2, "atol": 2e-2} if half else {}
    if "empty" not in op.name():
        compare(graph, tensors, **tolerances)
