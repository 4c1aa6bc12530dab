"""Programs whose loops are no chains of pointwise operations: sampling, scans, sorts, histograms, embeddings, scatters, interpolation, pooling.

A build takes (device, compile) and gives a step. Sizes are larger on GPUs, so that a step is more than its launches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

Step = Callable[[], torch.Tensor]
Build = Callable[[str, Callable[[Callable], Callable]], Step]
Make = Callable[[str], tuple]  # device -> arguments of the program


def rows_of(device: str, count: int, *shape: int) -> tuple[int, ...]:
    """`count` rows, 16 times as many on a GPU."""
    return (count * (16 if device == "cuda" else 1), *shape)


def floats(count: int, *shape: int) -> Make:
    return lambda device: (torch.randn(rows_of(device, count, *shape), device=device),)


def forward(fn: Callable[..., torch.Tensor], make: Make) -> Build:
    def build(device: str, compile: Callable[[Callable], Callable]) -> Step:
        args = make(device)
        compiled = compile(fn)
        return lambda: compiled(*args)

    return build


def both(fn: Callable[..., torch.Tensor], make: Make) -> Build:
    """Forward and the gradients of what is floating point, by random tangents."""

    def build(device: str, compile: Callable[[Callable], Callable]) -> Step:
        args = tuple(a.requires_grad_() if a.is_floating_point() else a for a in make(device))
        wanted = tuple(a for a in args if a.requires_grad)
        compiled = compile(fn)
        tangent = torch.randn_like(fn(*args))

        def step() -> torch.Tensor:
            return torch.autograd.grad(compiled(*args), wanted, tangent)[0]

        return step

    return build


def table(rows: int, width: int, tokens: int, most: int | None = None) -> Make:
    """(tokens, weight) of an embedding. most: tokens are below it, so that few rows are looked up many times."""

    def make(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        number = rows_of(device, tokens)
        return torch.randint(0, most or rows, number, device=device), torch.randn(rows, width, device=device)

    return make


def scattered(rows: int, width: int, values: int) -> Make:
    def make(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = rows_of(device, values)
        return torch.zeros(rows, width, device=device), torch.randint(0, rows, number, device=device), torch.randn(*number, width, device=device)

    return make


def integers(count: int, below: int) -> Make:
    return lambda device: (torch.randint(0, below, rows_of(device, count), device=device),)


def images(batch: int, channels: int, size: int) -> Make:
    return floats(batch, channels, size, size)


def resized(mode: str) -> Callable[[torch.Tensor], torch.Tensor]:
    aligned = {} if mode == "nearest" else {"align_corners": False}
    return lambda x: F.interpolate(x.relu(), scale_factor=2.0, mode=mode, **aligned)


def looked_up(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """An embedding, and what a model does with it."""
    return F.layer_norm(F.embedding(tokens, weight) * 2.0, (weight.shape[1],))


def bagged(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(tokens.view(-1, 16), weight, mode="mean").tanh()


def added_by_index(into: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return into.index_add(0, index, values.sin())


def scatter_added(into: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return into.scatter_add(0, index[:, None].expand_as(values), values.sin())


def weighed(into: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A histogram of weights: one element for each place."""
    return into.index_put((index,), values.square(), accumulate=True)


def along_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(1, index) * 2.0


def chosen(rows: int, width: int, count: int) -> Make:
    def make(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        (number, _) = rows_of(device, rows, width)
        return torch.randn(number, width, device=device), torch.randint(0, width, (number, count), device=device)

    return make


def weights(elements: int, values: int) -> Make:
    def make(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = rows_of(device, values)
        return torch.zeros(elements, device=device), torch.randint(0, elements, number, device=device), torch.rand(number, device=device)

    return make


def grouped(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x.to(memory_format=torch.channels_last), 8).relu()


def grouped_with_weights(channels: int, size: int, dtype: torch.dtype) -> Build:
    """A group norm with weights and SiLU, as diffusion models have it, of channels-last images, and the gradients of both."""

    def make(device: str) -> tuple[torch.Tensor, ...]:
        x, *weights = (torch.randn(*n, device=device, dtype=dtype) for n in ((2, channels, size, size), (channels,), (channels,)))
        return x.to(memory_format=torch.channels_last), *weights

    return both(lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), make)


def multinomial(x: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(x.softmax(-1), 4)


POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max_pool2d 3x3": lambda x: F.max_pool2d(x.relu(), 3, 2, 1),
    "max_pool2d 2x2": lambda x: F.max_pool2d(x.relu(), 2),
    "avg_pool2d 3x3": lambda x: F.avg_pool2d(x.relu(), 3, 2, 1),
    "avg_pool2d 2x2": lambda x: F.avg_pool2d(x.relu(), 2),
    "adaptive_avg_pool2d 7x7": lambda x: F.adaptive_avg_pool2d(x.relu(), 7),
    "adaptive_max_pool2d 7x7": lambda x: F.adaptive_max_pool2d(x.relu(), 7),
}

SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda x: x.sin().cumsum(-1) * 2.0,
    "cumprod": lambda x: (x * 0.01 + 1.0).cumprod(-1),
    "logcumsumexp": lambda x: x.sin().logcumsumexp(-1),
    "cummax": lambda x: x.sin().cummax(-1).values,
}

LOOPS: dict[str, Build] = {
    "rand": forward(lambda x: torch.rand_like(x) + x, floats(1024, 1024)),
    "randn": forward(lambda x: torch.randn_like(x) * 0.1 + x, floats(1024, 1024)),
    "bernoulli": forward(lambda x: torch.bernoulli(x.sigmoid()), floats(1024, 1024)),
    "dropout": both(lambda x: F.dropout(x.relu(), 0.1), floats(1024, 1024)),
    "multinomial": forward(multinomial, floats(256, 1024)),
    **{f"{name}, forward": forward(fn, floats(512, 1024)) for name, fn in SCANS.items()},
    **{f"{name}, training": both(fn, floats(512, 1024)) for name, fn in SCANS.items()},
    "cumsum of columns": forward(lambda x: x.sin().cumsum(0), floats(512, 1024)),
    "sort": forward(lambda x: x.sin().sort(-1).values, floats(256, 1024)),
    "argsort": forward(lambda x: x.sin().argsort(-1), floats(256, 1024)),
    "topk": forward(lambda x: x.sin().topk(16, -1).values, floats(256, 1024)),
    "topk, training": both(lambda x: x.sin().topk(16, -1).values, floats(256, 1024)),
    "histc": forward(lambda x: torch.histc(x.sin(), 64, -1.0, 1.0), floats(1 << 20)),
    "bincount": forward(lambda x: torch.bincount(x + 1, minlength=257), integers(1 << 20, 256)),
    "embedding, layer norm, forward": forward(looked_up, table(32768, 256, 4096)),
    "embedding, layer norm, training": both(looked_up, table(32768, 256, 4096)),
    "embedding, layer norm, training, 64 rows": both(looked_up, table(32768, 256, 4096, 64)),
    "embedding_bag, forward": forward(bagged, table(32768, 256, 4096)),
    "embedding_bag, training": both(bagged, table(32768, 256, 4096)),
    "index_add, 16384 into 64 rows": forward(added_by_index, scattered(64, 64, 16384)),
    "index_add, training": both(added_by_index, scattered(64, 64, 16384)),
    "scatter_add, 16384 into 64 rows": forward(scatter_added, scattered(64, 64, 16384)),
    "scatter_add, training": both(scatter_added, scattered(64, 64, 16384)),
    "index_put, 262144 into 512 elements": forward(weighed, weights(512, 1 << 18)),
    "index_put, 262144 into 65536 elements": forward(weighed, weights(1 << 16, 1 << 18)),
    "index_put, training": both(weighed, weights(512, 1 << 18)),
    "gather along rows, training": both(along_rows, chosen(512, 256, 1024)),
    "group norm, channels last, training": both(grouped, images(4, 64, 56)),
    "group norm, silu, channels last, 2x320x64x64, training": grouped_with_weights(320, 64, torch.float32),
    "group norm, silu, channels last, 2x320x64x64, bf16, training": grouped_with_weights(320, 64, torch.bfloat16),
    **{f"{mode}, twice as large, forward": forward(resized(mode), images(4, 32, 56)) for mode in ("nearest", "bilinear", "bicubic")},
    **{f"{mode}, twice as large, training": both(resized(mode), images(4, 32, 56)) for mode in ("nearest", "bilinear", "bicubic")},
    **{f"relu, {name}, training": both(fn, images(4, 64, 56)) for name, fn in POOLS.items()},
}
