"""The programs that scripts/bench.py measures. A workload makes a `step()` that can be called any number of times.

`build(device, compile)` gets the system's `compile(fn_or_module) -> callable` and returns the step; the step returns a tensor by which
the systems' results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], torch.Tensor]
Compile = Callable[[Callable], Callable]


@dataclass(frozen=True)
class Workload:
    """devices: where it is measured. kind: "step" (time and compile seconds), or "call" (its kernels are as good as free: call overhead).
    bytes: what a perfect kernel would move, for the share of copy bandwidth; 0: not reported."""

    name: str
    build: Callable[[str, Compile], Step]
    devices: tuple[str, ...] = ("cpu", "cuda")
    kind: str = "step"
    bytes: int = 0
    modes: tuple[str, ...] = ("default",)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Eleven pointwise ops."""
    x = x.sin() + 1.0
    x = (x * x).cos() - 0.5
    x = torch.relu(x) * 0.75
    x = torch.sigmoid(x) + x
    return x.tanh() * 2.0


def pointwise(rows: int, columns: int) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        x = torch.randn(rows, columns, device=device)
        fn = compile(chain)
        return lambda: fn(x)

    return build


def softmax(device: str, compile: Compile) -> Step:
    x = torch.randn(4096, 1024, device=device)
    fn = compile(lambda t: F.softmax(t * 0.5 + 1.0, -1))
    return lambda: fn(x)


def one_pass(fn: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Callable[[str, Compile], Step]:
    """`fn` of one random float32 tensor."""

    def build(device: str, compile: Compile) -> Step:
        x = torch.randn(*shape, device=device)
        compiled = compile(fn)
        return lambda: compiled(x)

    return build


def batch_norm(device: str, compile: Compile) -> Step:
    """Statistics of channels-last activations, their running averages, and the gradient."""
    x = torch.randn(32, 64, 28, 28, device=device).to(memory_format=torch.channels_last)
    return training(nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()).to(device), (x,), compile)


Loss = Callable[[torch.Tensor], torch.Tensor]


def training(model: nn.Module, inputs: tuple, compile: Compile, loss: Loss = torch.Tensor.sum, dtype: torch.dtype | None = None) -> Step:
    """Forward and backward; the gradients are dropped after each step. dtype: autocast."""
    compiled = compile(model)
    device = inputs[0].device.type

    def step() -> torch.Tensor:
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            value = loss(compiled(*inputs))
        value.backward()
        for p in model.parameters():
            p.grad = None
        return value.detach()

    return step


class NormGeluNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


def norm_gelu_norm(device: str, compile: Compile) -> Step:
    rows = 4096 if device == "cpu" else 65536
    return training(NormGeluNorm(768).to(device), (torch.randn(rows, 768, device=device, requires_grad=True),), compile, lambda y: (y * y).mean())


def mlp_training(device: str, compile: Compile) -> Step:
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)).to(device)
    x, y = torch.randn(256, 512, device=device), torch.randint(0, 10, (256,), device=device)
    return training(model, (x,), compile, lambda out: F.cross_entropy(out, y))


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


def conv_training(device: str, compile: Compile) -> Step:
    batch = 16 if device == "cpu" else 256
    return training(ConvNet().to(device), (torch.randn(batch, 3, 32, 32, device=device),), compile, lambda out: out.square().mean())


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.heads, c // self.heads).transpose(1, 2) for s in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.projection(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2's architecture without dropout; the output layer shares the embedding's weight."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def gpt_training(layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int, dtype: torch.dtype | None) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        model = Gpt(layers, width, heads, vocabulary, context).to(device)
        tokens = torch.randint(0, vocabulary, (batch, context), device=device)
        return training(model, (tokens, tokens.roll(-1, 1)), compile, lambda loss: loss, dtype)

    return build


def gpt_forward(layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        model = Gpt(layers, width, heads, vocabulary, context).to(device).eval()
        tokens = torch.randint(0, vocabulary, (batch, context), device=device)
        fn = compile(model)

        def step() -> torch.Tensor:
            with torch.no_grad():
                return fn(tokens)

        return step

    return build


def tiny_mlp(device: str, compile: Compile) -> Step:
    """24 layers of width 32: launches and calls, hardly any arithmetic."""
    model = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(32, 32), nn.ReLU()))).to(device)
    x = torch.randn(8, 32, device=device)
    fn = compile(model)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return fn(x)

    return step


def add_all(*xs: torch.Tensor) -> torch.Tensor:
    total = xs[0] + 1.0
    for x in xs[1:]:
        total = total + x
    return total


def call(arguments: int) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        xs = [torch.randn(8, device=device) for _ in range(arguments)]
        fn = compile(add_all)
        return lambda: fn(*xs)

    return build


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("call, 1 tensor", call(1), kind="call"),
        Workload("call, 10 tensors", call(10), kind="call"),
        Workload("tiny MLP, 24 layers, forward", tiny_mlp),
        Workload("11 pointwise ops, 256x256", pointwise(256, 256)),
        Workload("11 pointwise ops, 4096x1024", pointwise(4096, 1024), devices=("cpu",)),
        Workload("11 pointwise ops, 16384x8192", pointwise(16384, 8192), devices=("cuda",), bytes=2 * 4 * 16384 * 8192),
        Workload("softmax, 4096x1024", softmax),
        Workload("variance of rows, 4096x1024", one_pass(lambda x: x.var(1), 4096, 1024)),
        Workload("variance of columns, 4096x1024", one_pass(lambda x: x.var(0), 4096, 1024)),
        Workload("causal softmax, 16x512x512", one_pass(lambda x: F.softmax(x.masked_fill(torch.ones_like(x[0]).tril() == 0, -1e9), -1), 16, 512, 512)),
        Workload("batch norm, channels last, training", batch_norm),
        Workload("LayerNorm-GELU-LayerNorm, training", norm_gelu_norm),
        Workload("MLP, training", mlp_training),
        Workload("conv net, training", conv_training),
        Workload("GPT 4x128, context 128, training", gpt_training(4, 128, 4, 256, 128, 8, None), devices=("cpu",)),
        Workload("GPT 4x128, context 128, forward", gpt_forward(4, 128, 4, 256, 128, 8), devices=("cpu",)),
        Workload("GPT-2 small, forward, batch 1", gpt_forward(12, 768, 12, 50257, 1024, 1), devices=("cuda",)),
        Workload("GPT-2 small, training 16x1024, bf16", gpt_training(12, 768, 12, 50257, 1024, 16, torch.bfloat16), devices=("cuda",)),
    )
}
