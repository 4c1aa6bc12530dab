"""Attention of float32 on CPUs: queries, keys and values that are views of one projection, as in a transformer's block, and what becomes of its gradient.

A build takes (device, compile) and gives a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

Step = Callable[[], torch.Tensor]
Build = Callable[[str, Callable[[Callable], Callable]], Step]


def attention(batch: int, heads: int, tokens: int, size: int, *, causal: bool, training: bool, masked: bool = False) -> Build:
    """Attention of one projection [batch, tokens, 3 * heads * size]; masked: with a bias of [1, heads, tokens, tokens], as of relative positions."""

    def build(device: str, compile: Callable[[Callable], Callable]) -> Step:
        projected = torch.randn(batch, tokens, 3 * heads * size, device=device, requires_grad=training)
        bias = torch.randn(1, heads, tokens, tokens, device=device) if masked else None
        tangent = torch.randn(batch, tokens, heads * size, device=device)

        @compile
        def program(x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.view(batch, tokens, heads, size).transpose(1, 2) for part in x.chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal).transpose(1, 2).reshape(batch, tokens, heads * size)

        if not training:
            return lambda: program(projected)

        def step() -> torch.Tensor:
            return torch.autograd.grad(program(projected), projected, tangent)[0]

        return step

    return build


def both(name: str, *extents: int, **form: bool) -> dict[str, Build]:
    return {f"{name}, {what}": attention(*extents, **form, training=training) for what, training in (("forward", False), ("training", True))}


ATTENTION: dict[str, Build] = {
    **both("causal, 16x4x128x32", 16, 4, 128, 32, causal=True),
    **both("causal, 2x12x256x64", 2, 12, 256, 64, causal=True),
    **both("causal, 1x8x1024x64", 1, 8, 1024, 64, causal=True),
    **both("full, 8x8x128x64", 8, 8, 128, 64, causal=False),
    **both("full, 8x3x197x64", 8, 3, 197, 64, causal=False),
    **both("with a bias, 4x8x128x64", 4, 8, 128, 64, causal=False, masked=True),
}
