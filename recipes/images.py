"""Small nets for small images: a vision transformer, a residual net, an additive model. All take (B, 1, 8, 8) and return logits of shape (B, classes)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

SIDE = 8


class Encoder(nn.Module):
    """A pre-norm transformer block in which every token sees every other."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class ViT(nn.Module):
    """Patches of `patch` x `patch` pixels as tokens with learned positions, `layers` encoders, logits from the mean token."""

    def __init__(self, layers: int = 3, width: int = 64, heads: int = 4, patch: int = 2, classes: int = 10):
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.positions = nn.Parameter(0.5 * torch.randn((SIDE // patch) ** 2, width))
        self.blocks = nn.ModuleList(Encoder(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Residual(nn.Module):
    """Two convolutions with batch norms beside a shortcut; `stride` 2 halves the image and the shortcut is then a convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.shortcut(x) + self.second_norm(self.second(y)))


class ResNet(nn.Module):
    """Three stages of `blocks` residual blocks on images of 8x8, 4x4 and 2x2 pixels."""

    def __init__(self, width: int = 16, blocks: int = 1, classes: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        shapes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        stages = [[Residual(a, b, stride)] + [Residual(b, b, 1) for _ in range(blocks - 1)] for a, b, stride in shapes]
        self.blocks = nn.Sequential(*(block for stage in stages for block in stage))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem_norm(self.stem(images)))
        return self.head(self.blocks(x).mean((2, 3)))


class Additive(nn.Module):
    """A generalised additive model: each pixel has a small net of its own, and their logits are added. Four small parameters for each pixel."""

    def __init__(self, width: int = 8, classes: int = 10):
        super().__init__()
        self.pixels = nn.ModuleList(nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, classes)) for _ in range(SIDE * SIDE))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = [net(pixel) for net, pixel in zip(self.pixels, images.flatten(1).split(1, dim=1))]
        return torch.stack(logits).sum(0)


def augmented(images: torch.Tensor, shift: int = 1, noise: float = 0.1) -> torch.Tensor:
    """Each image moved by up to `shift` pixels in both directions, as bright as 0.7 to 1.3 times before, with noise."""
    count, side = len(images), images.shape[-1]
    padded = F.pad(images, (shift, shift, shift, shift))
    at = torch.arange(side, device=images.device)
    rows, columns = (at + torch.randint(0, 2 * shift + 1, (count, 1), device=images.device) for _ in range(2))
    moved = padded[torch.arange(count, device=images.device)[:, None, None], 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)
    brightness = 0.7 + 0.6 * torch.rand(count, 1, 1, 1, device=images.device)
    return moved * brightness + noise * torch.randn_like(images)
