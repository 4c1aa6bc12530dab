"""Products of matrices on CPUs: layers with their activations, small products, batches of small ones, and inference with few rows.

A build takes (device, compile) and gives a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], torch.Tensor]
Build = Callable[[str, Callable[[Callable], Callable]], Step]
BF16 = torch.bfloat16


def forward(make: Callable[[], Callable[..., torch.Tensor]], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Build:
    """A function, or a module, of random tensors, without gradients."""

    def build(device: str, compile: Callable[[Callable], Callable]) -> Step:
        function = make()
        function = function.to(device, dtype) if isinstance(function, nn.Module) else function
        args = [torch.randn(size, device=device).to(dtype) for size in sizes]
        compiled = compile(function)

        def step() -> torch.Tensor:
            with torch.no_grad():
                return compiled(*args)

        return step

    return build


def layers(*widths: int, activation: Callable[[], nn.Module] = nn.GELU) -> Callable[[], nn.Module]:
    """Linear layers with activations behind all but the last; behind a single one, too."""

    def make() -> nn.Module:
        found: list[nn.Module] = []
        for i, (k, n) in enumerate(zip(widths, widths[1:])):
            found += [nn.Linear(k, n)] + ([activation()] if i < len(widths) - 2 or len(widths) == 2 else [])
        return nn.Sequential(*found)

    return make


def gated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ a) * (x @ b)


MLP = layers(512, 1024, 1024, 512)

PRODUCTS: dict[str, Build] = {
    "linear-GELU, 512x256x688": forward(layers(256, 688), (512, 256)),
    "linear-GELU, 512x256x688, bf16": forward(layers(256, 688), (512, 256), dtype=BF16),
    "linear-Hardswish, 512x256x688, bf16": forward(layers(256, 688, activation=nn.Hardswish), (512, 256), dtype=BF16),
    "linear, 2048x128x384": forward(lambda: nn.Linear(128, 384), (2048, 128)),
    "linear-GELU-linear, 2048x128x512x128": forward(layers(128, 512, 128), (2048, 128)),
    "linear-GELU-linear, 4096x256x1024x256": forward(layers(256, 1024, 256), (4096, 256)),
    "gate, 512x256x688": forward(lambda: gated, (512, 256), (256, 688), (256, 688)),
    "linear-ReLU, 8x32x32, bf16": forward(layers(32, 32, activation=nn.ReLU), (8, 32), dtype=BF16),
    "linear-ReLU, 4x16x16": forward(layers(16, 16, activation=nn.ReLU), (4, 16)),
    "bmm, 1024 of 8x8x8": forward(lambda: torch.bmm, (1024, 8, 8), (1024, 8, 8)),
    "bmm, 4096 of 3x3x3": forward(lambda: torch.bmm, (4096, 3, 3), (4096, 3, 3)),
    "bmm, 4096 of 3x3x3, bf16": forward(lambda: torch.bmm, (4096, 3, 3), (4096, 3, 3), dtype=BF16),
    "mm, 64x32x64 of int64": forward(lambda: torch.mm, (64, 32), (32, 64), dtype=torch.int64),
    "MLP 512-1024-1024-512, 1 row": forward(MLP, (1, 512)),
    "MLP 512-1024-1024-512, 8 rows": forward(MLP, (8, 512)),
    "MLP 512-1024-1024-512, 8 rows, bf16": forward(MLP, (8, 512), dtype=BF16),
    "MLP 512-1024-1024-512, 128 rows": forward(MLP, (128, 512)),
    "MLP 512-1024-1024-512, 128 rows, bf16": forward(MLP, (128, 512), dtype=BF16),
}
