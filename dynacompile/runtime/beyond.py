"""Outputs that require gradients which come to no input of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dynacompile.ir.graphs import PastInputs


class Beyond(torch.autograd.Function):
    """A tensor with a history that ends here. itself: it is kept, as well.

    error: what is raised on the way back; None: what autograd raises where `kept` were written or freed.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, itself: bool, error: str | None, *kept: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        ctx.save_for_backward(anchor, *kept, *([tensor] if itself else []))
        ctx.error, ctx.count = error, len(kept)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, ...]:
        if ctx.error is not None:
            raise RuntimeError(ctx.error)
        ctx.saved_tensors  # noqa: B018 - asks autograd for them
        return (None,) * (4 + ctx.count)


def with_beyond(call: Callable[..., tuple], found: Mapping[int, PastInputs]) -> Callable[..., tuple]:
    """`call`, of whose outputs these require gradients that come to no input."""
    anchor = torch.zeros((), requires_grad=True)
    order = in_order(found)

    def run(*inputs: Any) -> tuple:
        outputs = call(*inputs)
        for n in order:
            past = found[n]
            kept = [] if past.error is not None else [*(inputs[i] for i in past.inputs), *(outputs[i] for i in past.outputs if i != n)]
            Beyond.apply(anchor, outputs[n], past.error is None and n in past.outputs, past.error, *kept)
        return outputs

    return run


def in_order(found: Mapping[int, PastInputs]) -> list[int]:
    """The outputs, each behind those that it keeps, as what gives them a history counts as a write."""
    order: dict[int, None] = {}

    def add(n: int) -> None:
        for kept in found[n].outputs:
            if kept != n and kept in found and kept not in order:
                add(kept)
        order.setdefault(n)

    for n in found:
        add(n)
    return list(order)
