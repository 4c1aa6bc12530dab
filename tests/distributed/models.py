"""What the tests of several processes train: small ints as parameters and data, so that sums are exact in any order and gradients must agree to the bit."""

from __future__ import annotations

import torch
from torch import nn

from tests.distributed.ranks import DEVICE


class Layers(nn.Module):
    """Linear layers with gradients of about 1 KiB each. parts: how many of the layers a call takes."""

    def __init__(self, count: int = 6, width: int = 16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randint(-1, 2, p.shape, generator=generator))

    def forward(self, x: torch.Tensor, parts: int = 100) -> torch.Tensor:
        for layer in list(self.layers)[:parts]:
            x = layer(x).relu().clamp(max=4)
        return x


def batch(seed: int, rows: int = 4, width: int = 16) -> torch.Tensor:
    return torch.randint(-2, 3, (rows, width), generator=torch.Generator().manual_seed(seed)).float().to(DEVICE)
