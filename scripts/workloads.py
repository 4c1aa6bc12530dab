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
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from scripts.workload_attention import ATTENTION
from scripts.workload_loops import LOOPS
from scripts.workload_models import Bert, ConvNet, Gpt, NormGeluNorm, Potential, ResNet50, SwiGlu
from scripts.workload_products import PRODUCTS

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


def one_pass(fn: Callable[[torch.Tensor], torch.Tensor], *shape: int, channels_last: bool = False) -> Callable[[str, Compile], Step]:
    """`fn` of one random float32 tensor."""

    def build(device: str, compile: Compile) -> Step:
        x = torch.randn(*shape, device=device).to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        compiled = compile(fn)
        return lambda: compiled(x)

    return build


def batch_norm(device: str, compile: Compile) -> Step:
    """Statistics of channels-last activations, their running averages, and the gradient."""
    x = torch.randn(32, 64, 28, 28, device=device).to(memory_format=torch.channels_last)
    return training(nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()).to(device), (x,), compile)


def two(fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[str, Compile], Step]:
    """`fn` of two random float32 tensors."""

    def build(device: str, compile: Compile) -> Step:
        x, y = torch.randn(*first, device=device), torch.randn(*second, device=device)
        compiled = compile(fn)
        return lambda: compiled(x, y)

    return build


def linear_and(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[str, Compile], Step]:
    """A layer of bf16, 8192x4096 by 4096x16384, and what is computed of its results."""

    def build(device: str, compile: Compile) -> Step:
        linear = nn.Linear(4096, 16384, device=device, dtype=torch.bfloat16)
        x = torch.randn(8192, 4096, device=device, dtype=torch.bfloat16)
        fn = compile(lambda t: activation(linear(t)))

        def step() -> torch.Tensor:
            with torch.no_grad():
                return fn(x)

        return step

    return build


def linear_residual(device: str, compile: Compile) -> Step:
    """The last layer of an MLP in bf16 onto a residual in float32, 16384x3072 by 3072x768."""
    linear = nn.Linear(3072, 768, device=device, dtype=torch.bfloat16)
    x, residual = torch.randn(16384, 3072, device=device, dtype=torch.bfloat16), torch.randn(16384, 768, device=device)
    fn = compile(lambda t, r: linear(t).float() + r)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return fn(x, residual)

    return step


def cross_entropy(device: str, compile: Compile) -> Step:
    """Forward and backward over a large vocabulary."""
    logits = torch.randn(8192, 50304, device=device, requires_grad=True)
    targets = torch.randint(0, 50304, (8192,), device=device)
    fn = compile(F.cross_entropy)

    def step() -> torch.Tensor:
        loss = fn(logits, targets)
        (grad,) = torch.autograd.grad(loss, logits)
        return grad[0]

    return step


def row_and_column_sums(device: str, compile: Compile) -> Step:
    x = torch.randn(16384, 16384, device=device, dtype=torch.bfloat16)
    fn = compile(lambda t: (t.sum(0), t.sum(1)))
    return lambda: fn(x)[0]


def optimizer_step(fused: bool, clipped: bool = False) -> Callable[[str, Compile], Step]:
    """AdamW over the parameters of GPT-2 small (on CPUs of 12 layers of width 128), with gradients that stay; clipped: to a total norm, in one program."""

    def build(device: str, compile: Compile) -> Step:
        model = Gpt(12, 768, 12, 50257, 1024) if device == "cuda" else Gpt(12, 128, 4, 1024, 128)
        model.to(device)
        parameters = list(model.parameters())
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=fused or None)

        def update() -> None:
            if clipped:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        fn = compile(update)

        def step() -> torch.Tensor:
            fn()
            return parameters[-1].detach().clone()

        return step

    return build


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


def norm_gelu_norm(device: str, compile: Compile) -> Step:
    rows = 4096 if device == "cpu" else 65536
    return training(NormGeluNorm(768).to(device), (torch.randn(rows, 768, device=device, requires_grad=True),), compile, lambda y: (y * y).mean())


def molecules(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Kinds and places of the atoms of some molecules."""
    count = 4 if device == "cpu" else 64
    return torch.randint(20, (count, 32), device=device), 3 * torch.randn(count, 32, 3, device=device)


def forces(device: str, compile: Compile) -> Step:
    compiled, given = compile(Potential().to(device).eval()), molecules(device)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return compiled(*given)[1]

    return step


def forces_training(device: str, compile: Compile) -> Step:
    """The gradient of a loss of the forces goes through them, and so is a second derivative of the energy."""
    return training(Potential().to(device), molecules(device), compile, lambda found: found[0].square().mean() + found[1].square().mean())


def mlp_training(device: str, compile: Compile) -> Step:
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)).to(device)
    x, y = torch.randn(256, 512, device=device), torch.randint(0, 10, (256,), device=device)
    return training(model, (x,), compile, lambda out: F.cross_entropy(out, y))


def conv_training(device: str, compile: Compile) -> Step:
    batch = 16 if device == "cpu" else 256
    return training(ConvNet().to(device), (torch.randn(batch, 3, 32, 32, device=device),), compile, lambda out: out.square().mean())


def gpt_training(
    layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int, dtype: torch.dtype | None, by_hand: bool = False, dropout: float = 0.0
) -> Callable[[str, Compile], Step]:
    """by_hand: its attention."""

    def build(device: str, compile: Compile) -> Step:
        model = Gpt(layers, width, heads, vocabulary, context, by_hand, dropout).to(device)
        tokens = torch.randint(0, vocabulary, (batch, context), device=device)
        return training(model, (tokens, tokens.roll(-1, 1)), compile, lambda loss: loss, dtype)

    return build


def gpt_forward(layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int, by_hand: bool = False) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        model = Gpt(layers, width, heads, vocabulary, context, by_hand).to(device).eval()
        tokens = torch.randint(0, vocabulary, (batch, context), device=device)
        fn = compile(model)

        def step() -> torch.Tensor:
            with torch.no_grad():
                return fn(tokens)

        return step

    return build


def near(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A window of keys before each query."""
    return (q >= k) & (q - k < 256)


def falling(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score - 0.01 * (h + 1) * (q - k)


def flexible(score: Callable | None, rows: int, grad: bool) -> Callable[[str, Compile], Step]:
    """flex_attention over a window; score: the function of scores. Inputs of half precision on GPUs, where alone it has gradients."""

    def build(device: str, compile: Compile) -> Step:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        operands = [torch.randn(4, 8, rows, 64, device=device, dtype=dtype, requires_grad=grad) for _ in range(3)]
        mask = create_block_mask(near, None, None, rows, rows, device=device)
        fn = compile(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask))

        def step() -> torch.Tensor:
            result = fn(*operands)
            return torch.autograd.grad(result.sum(), operands[:1])[0] if grad else result

        return step

    return build


def bert_training(dropout: float = 0.0) -> Callable[[str, Compile], Step]:
    def build(device: str, compile: Compile) -> Step:
        tokens = torch.randint(0, 30522, (32, 512), device=device)
        return training(Bert(12, 768, 12, 30522, 512, dropout).to(device), (tokens, tokens.roll(-1, 1)), compile, lambda loss: loss, torch.bfloat16)

    return build


def resnet_training(device: str, compile: Compile) -> Step:
    model = ResNet50().to(device, memory_format=torch.channels_last)
    x = torch.randn(64, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    return training(model, (x,), compile, lambda out: out.square().mean(), torch.bfloat16)


def swiglu_training(device: str, compile: Compile) -> Step:
    rows, width, hidden = (8192, 4096, 11008) if device == "cuda" else (512, 256, 688)
    dtype = torch.bfloat16 if device == "cuda" else None
    return training(SwiGlu(width, hidden).to(device), (torch.randn(rows, width, device=device, requires_grad=True),), compile, lambda y: (y * y).mean(), dtype)


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
        Workload("GPT 4x128 by hand, context 512, forward", gpt_forward(4, 128, 4, 256, 512, 8, True), devices=("cpu",)),
        Workload("GPT 4x128 by hand, context 1024, training", gpt_training(4, 128, 4, 256, 1024, 2, None, True), devices=("cpu",)),
        Workload("GPT-2 small, dropout, training 16x1024, bf16", gpt_training(12, 768, 12, 50257, 1024, 16, torch.bfloat16, dropout=0.1), devices=("cuda",)),
        Workload("GPT-2 small by hand, training 16x1024, bf16", gpt_training(12, 768, 12, 50257, 1024, 16, torch.bfloat16, True), devices=("cuda",)),
        Workload("flex_attention in a window, 4x8x1024x64, forward", flexible(None, 1024, False)),
        Workload("flex_attention with falling scores, 4x8x1024x64, forward", flexible(falling, 1024, False)),
        Workload("flex_attention in a window, 4x8x4096x64, bf16, training", flexible(None, 4096, True), devices=("cuda",)),
        Workload("BERT-base, training 32x512, bf16", bert_training(), devices=("cuda",)),
        Workload("BERT-base, dropout, training 32x512, bf16", bert_training(0.1), devices=("cuda",)),
        Workload("energies and forces of molecules", forces),
        Workload("energies and forces of molecules, training", forces_training),
        Workload("ResNet-50, training 64x224, bf16", resnet_training, devices=("cuda",)),
        Workload("SwiGLU, training", swiglu_training),
        Workload("linear-GELU, 8192x4096x16384, bf16", linear_and(F.gelu), devices=("cuda",)),
        Workload("linear-GELU by tanh, 8192x4096x16384, bf16", linear_and(lambda y: F.gelu(y, approximate="tanh")), devices=("cuda",)),
        Workload("linear-ReLU, 8192x4096x16384, bf16", linear_and(F.relu), devices=("cuda",)),
        Workload("linear and residual, 16384x3072x768, bf16", linear_residual, devices=("cuda",)),
        Workload("cross entropy, 8192x50304, training", cross_entropy, devices=("cuda",)),
        Workload("AdamW step, 148 parameters", optimizer_step(False)),
        Workload("AdamW step, 148 parameters, fused", optimizer_step(True)),
        Workload("clip by norm and AdamW step, 148 parameters", optimizer_step(False, True)),
        Workload("sums of rows and of columns, 16384x16384, bf16", row_and_column_sums, devices=("cuda",), bytes=2 * 16384 * 16384),
        Workload("transpose, add, relu, 2048x1024", two(lambda x, y: (x.t() + y).relu(), (2048, 1024), (1024, 2048))),
        Workload("transpose, add, softmax of columns, 2048x1024", two(lambda x, y: (x.t() + y).softmax(0), (2048, 1024), (1024, 2048))),
        Workload("transpose, add, layer norm, 2048x1024", two(lambda x, y: F.layer_norm(x.t() + y, (2048,)), (2048, 1024), (1024, 2048))),
        Workload("group norm, channels last, 8x64x56x56", one_pass(lambda x: F.group_norm(x, 8), 8, 64, 56, 56, channels_last=True)),
        Workload("relu, max_pool2d 3x3, 8x64x56x56", one_pass(lambda x: F.max_pool2d(x.relu(), 3, 2, 1), 8, 64, 56, 56)),
        Workload("relu, avg_pool2d 3x3, 8x64x56x56", one_pass(lambda x: F.avg_pool2d(x.relu(), 3, 2, 1), 8, 64, 56, 56)),
        Workload("relu, adaptive_avg_pool2d 7x7, 8x64x56x56", one_pass(lambda x: F.adaptive_avg_pool2d(x.relu(), 7), 8, 64, 56, 56)),
        *(Workload(f"loop: {name}", build) for name, build in LOOPS.items()),
        *(Workload(f"product: {name}", build, devices=("cpu",)) for name, build in PRODUCTS.items()),
        *(Workload(f"attention: {name}", build, devices=("cpu",)) for name, build in ATTENTION.items()),
    )
}
