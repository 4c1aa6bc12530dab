"""The nets: byte sequences in, next-byte logits out. All take int64 tokens of shape (B, T) and return logits of shape (B, T, vocabulary)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal self-attention: (B, T, width) -> (B, T, width)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        k = k.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions; the head shares the embedding's weight. Context: at most `context` tokens."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4, context: int = 128, vocabulary: int = 256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MLP(nn.Module):
    """Predicts each byte from the `span` bytes before it: their embeddings side by side, then a stack of linear layers."""

    def __init__(self, span: int = 16, embedding: int = 32, width: int = 512, layers: int = 2, vocabulary: int = 256):
        super().__init__()
        self.span = span
        self.tokens = nn.Embedding(vocabulary, embedding)
        widths = [span * embedding] + [width] * layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, time = tokens.shape
        embedded = F.pad(self.tokens(tokens), (0, 0, self.span - 1, 0))
        x = torch.cat([embedded[:, i : i + time] for i in range(self.span)], dim=2)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class ConvBlock(nn.Module):
    """A residual causal convolution with batch norm: (B, width, T) -> (B, width, T)."""

    def __init__(self, width: int, kernel: int, dilation: int):
        super().__init__()
        self.reach = (kernel - 1) * dilation
        self.conv = nn.Conv1d(width, width, kernel, dilation=dilation, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(F.relu(self.norm(self.conv(F.pad(x, (self.reach, 0))))))


class ConvNet(nn.Module):
    """Dilated causal convolutions over the byte sequence; block i sees `kernel` steps that are 2**i apart."""

    def __init__(self, layers: int = 5, width: int = 128, kernel: int = 3, vocabulary: int = 256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(ConvBlock(width, kernel, 2**i) for i in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.transpose(1, 2))
