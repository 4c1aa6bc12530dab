"""The networks of scripts/workloads.py, small enough to read, with the architectures of the models that they are named after."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class NormGeluNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 64)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in zip(widths, widths[1:], strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in widths[1:])
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(conv(x))), 2)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """by_hand: attention as products and a softmax, whose triangle is a buffer of `context` rows; else by torch's operator. dropout: of what each half adds."""

    triangle: torch.Tensor

    def __init__(self, width: int, heads: int, context: int = 0, by_hand: bool = False, dropout: float = 0.0):
        super().__init__()
        self.heads, self.by_hand, self.dropout = heads, by_hand, dropout
        self.register_buffer("triangle", torch.ones(context, context).tril().view(1, 1, context, context) if by_hand else None, persistent=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.heads, c // self.heads).transpose(1, 2) for s in self.qkv(self.norm1(x)).split(c, dim=2))
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
            y = F.softmax(scores.masked_fill(self.triangle[:, :, :t, :t] == 0, float("-inf")), dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.projection(y.transpose(1, 2).reshape(b, t, c)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), self.dropout, self.training)


class Gpt(nn.Module):
    """GPT-2's architecture; the output layer shares the embedding's weight. dropout: everywhere but in attention."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int, by_hand: bool = False, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, context, by_hand, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.heads, c // self.heads).transpose(1, 2) for s in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, c)
        x = self.norm1(x + F.dropout(self.projection(y), self.dropout, self.training))
        return self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training))


class Bert(nn.Module):
    """BERT with a head over the vocabulary. What may be attended to is a mask of ones that the model makes, as transformers' does under a compiler."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.layers = nn.ModuleList(BertLayer(width, heads, dropout) for _ in range(layers))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        b, t = tokens.shape
        x = F.dropout(self.norm(self.token(tokens) + self.position(torch.arange(t, device=tokens.device))), self.dropout, self.training)
        kept = torch.ones(b, t, device=tokens.device)
        bias = (1.0 - kept[:, None, None, :].expand(b, 1, t, t).to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
            x = layer(x, bias.to(dtype))
        return F.cross_entropy(self.head(x).view(-1, self.head.out_features).float(), targets.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if stride > 1 or into != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.short(x))


class ResNet50(nn.Module):
    def __init__(self, classes: int = 1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, into = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for i in range(count):
                blocks.append(Bottleneck(into, width, 2 if stage and i == 0 else 1))
                into = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(into, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Potential(nn.Module):
    """Energies of molecules, with continuous filters over the distances of atoms (after SchNet, arXiv:1706.08566), and the forces, their gradients."""

    def __init__(self, width: int = 64, layers: int = 3, bases: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.filters = nn.ModuleList(nn.Sequential(nn.Linear(bases, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers))
        self.into, self.out = (nn.ModuleList(nn.Linear(width, width) for _ in range(layers)) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1))
        self.register_buffer("centers", torch.linspace(0, 5, bases))

    def energy(self, kinds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """kinds: (molecules, atoms). places: (molecules, atoms, 3). Gives (molecules,)."""
        between = places[:, :, None] - places[:, None]
        distance = (between.square().sum(-1) + 1e-6).sqrt()
        bases = torch.exp(-10 * (distance[..., None] - self.centers).square())
        near = 0.5 * (torch.cos(distance * (torch.pi / 5)) + 1) * (distance < 5)
        x = self.embedding(kinds)
        for filters, into, out in zip(self.filters, self.into, self.out, strict=True):
            messages = (filters(bases) * near[..., None] * into(x)[:, None]).sum(2)
            x = x + F.softplus(out(messages))
        return self.head(x).sum((1, 2))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            energy = self.energy(kinds, places)
            (gradient,) = torch.autograd.grad(energy.sum(), places, create_graph=self.training)
        return energy, -gradient
