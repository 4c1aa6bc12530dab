"""Small modules of norms and statistics, without convolutions: batch, instance, group and layer norms in every option, several of one input, one that is called
twice, in loops, with frozen statistics, and buffers that are averaged, counted and compared in place; channels, batches and sizes around those of vectors,
three steps each, in any memory format.

    python -m tests.fuzz.norms FIRST LAST [--device cuda] [--show] [--trace]

What is compared, and how, is that of `convolutions.py`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from tests.fuzz.command import main
from tests.fuzz.convolutions import Call, Program, check_program

NORMS = (
    "nn.BatchNorm{n}d({c})", "nn.BatchNorm{n}d({c}, momentum={mo})", "nn.BatchNorm{n}d({c}, affine={b}, track_running_stats={t}, momentum={mo})",
    "nn.BatchNorm{n}d({c}, momentum={mo}, eps=1e-2)", "nn.InstanceNorm{n}d({c}, affine={b}, track_running_stats={t}, momentum={im})",
    "nn.GroupNorm({g}, {c}, affine={b})", "nn.GroupNorm({c}, {c})",
)  # fmt: skip
STATEMENTS = (
    "{x} = self.m{m}({x})", "{x} = self.m{m}({x})", "{x} = self.m{m}({x}).relu()", "{x} = F.relu(self.m{m}({x}), inplace=True)", "{x} = {x} + self.m{m}({y})",
    "{x} = self.m{m}({y}) * self.m{k}({y}).sigmoid()", "{x} = self.m{m}(self.m{m}({x}) + 1)", "{x} = self.m{m}({x}) + self.m{m}({y}).tanh()",
    "for i in range({r}): {x} = self.m{m}({x} + i)", "{x} = torch.cat([self.m{m}({x}), {y}], 1)[:, ::2].contiguous()",
    "{x} = F.batch_norm({x}, self.m{m}b.running_mean, self.m{m}b.running_var, None, None, {t}, {f})",
    "{x} = F.batch_norm({x}, self.mean, self.var, self.w, self.v, True, {f})", "{x} = F.batch_norm({x}, self.mean, self.var, self.w, None, {t}, {f})",
    "{x} = F.layer_norm({x}, {x}.shape[1:])", "{x} = F.layer_norm({x}.movedim(1, -1), ({c},), self.w).movedim(-1, 1)", "{x} = {x}.mul(0.5).add_({y})",
    "{x} = ({x} - {x}.mean({d}, keepdim=True)) / ({x}.var({d}, keepdim=True, unbiased=False) + 0.1).sqrt()", "{x} = {x} - self.of_channels(self.mean)",
    "self.mean.mul_(0.9).add_({x}.detach().mean({d}), alpha=0.1)", "self.mean.lerp_({x}.detach().mean({d}), 0.25)",
    "self.count.add_({x}.detach().isfinite().sum({d}))",
    "self.peak.copy_(torch.maximum(self.peak, {x}.detach().amax({d})))", "self.var.add_({x}.detach().square().mean({d}) - self.var)", "self.calls += 1",
    "self.peak[:] = self.peak * 0.5 + {x}.detach().amax({d})", "self.mean.sub_(self.peak * 0.1)", "self.small += 3", "self.least.copy_(-self.least)",
    "self.rows.add_({x}.detach().flatten(1).mean(1).sum())", "self.seen = self.seen + 1",
)  # fmt: skip
ENDS = ("{x}", "{x}", "{x}.flatten(1)", "{x}.mean({d})", "{x}.flatten(1).sum(1)", "{x}.relu_()", "{x} + 1")
CHANNELS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 32, 33, 48, 64, 64, 65)
BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 64)
MODES = (
    ("train", "train", "train"), ("train", "train", "train"), ("train", "eval", "train"), ("train", "no_grad", "train"), ("eval", "train", "inference"),
    ("no_grad", "no_grad", "train"),
)  # fmt: skip
LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)
MOST = 60_000  # elements of an input
BUFFERS = """
        for name in ("mean", "var", "peak"):
            self.register_buffer(name, torch.rand({c}) + 0.5)
        self.register_buffer("count", torch.zeros({c}, dtype=torch.long))
        self.register_buffer("small", torch.zeros({c}, dtype=torch.int8))
        self.register_buffer("least", torch.arange({c}, dtype=torch.int32))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("rows", torch.zeros(()))
        self.w, self.v = nn.Parameter(torch.rand({c}) + 0.5), nn.Parameter(torch.randn({c}))
        self.seen = 0
    def of_channels(self, t):
        return t.view(-1, *(1,) * {n})
    def forward(self, x):
        y = t0 = x * 1.5 + 0.25
"""


def shapes(pick: random.Random) -> Iterator[tuple[int, ...]]:
    """Of inputs that are called one after the other: mostly equal ones."""
    small = pick.random() < 0.3  # images, of which several fill a vector
    while True:
        n = pick.choice((1, 2, 2)) if small else pick.choice((0, 1, 2, 2, 2, 3))
        sides = [pick.choice(LENGTHS)] * n if pick.random() < 0.5 else [pick.choice(LENGTHS) for _ in range(n)]
        first = (pick.choice(BATCHES), pick.choice(CHANNELS), *sides)
        if small and not (first[0] >= 16 and first[1] >= 31 and 1 < prod(sides) <= 16):
            continue
        if 2 * first[1] <= prod(first) <= MOST:
            break
    moves = pick.random() < 0.2
    for _ in range(3):
        yield first
        first = (pick.choice(BATCHES[1:9]), *first[1:]) if moves else first


def written(pick: random.Random, shape: tuple[int, ...]) -> str:
    """The text of a module for inputs of a shape."""
    channels, n = shape[1], len(shape) - 2
    count = pick.choice((1, 1, 2, 3))

    def places(x: str = "", y: str = "") -> dict[str, Any]:
        groups = pick.choice([g for g in range(1, channels + 1) if channels % g == 0])
        return {
            "n": max(n, 1), "c": channels, "g": groups, "b": pick.random() < 0.6, "t": pick.random() < 0.6, "mo": pick.choice((None, 0.0, 1.0, 0.1, 0.1)),
            "im": pick.choice((0.0, 1.0, 0.1)), "f": pick.choice((0.0, 1.0, 0.1)), "m": pick.randrange(count), "k": pick.randrange(count), "x": x, "y": y,
            "r": pick.choice((2, 3)), "d": (0, *range(2, n + 2)),
        }  # fmt: skip

    made = [pick.choice(NORMS if n else NORMS[:4]).format(**places()) for _ in range(count)]
    made_lines = "".join(f"        self.m{i} = {text}\n        self.m{i}b = nn.BatchNorm{max(n, 1)}d({channels})\n" for i, text in enumerate(made))
    lines = []
    for _ in range(pick.randint(1, 6)):
        text = pick.choice(STATEMENTS)
        lines.append(text.format(**places("t0", pick.choice(("t0", "y")))))
    buffers = BUFFERS.format(c=channels, n=n).lstrip("\n")
    body = "".join(f"        {line}\n" for line in lines)
    end = pick.choice(ENDS).format(**places("t0"))
    return f"class Program(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made_lines}{buffers}{body}        return ({end}, y)\n"


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    while True:
        sizes = tuple(shapes(pick))
        calls = tuple(Call(shape, mode, pick.random() < 0.8) for shape, mode in zip(sizes, pick.choice(MODES), strict=True))
        dtype = pick.choice((torch.float32,) * 6 + (torch.bfloat16, torch.float16))
        form = pick.choice(("contiguous", "contiguous", "contiguous", "last", "last", "gaps", "turned"))
        cast, fed, kept = dtype == torch.float32 and pick.random() < 0.1, pick.random() < 0.8, pick.random() < 0.2
        symbols = pick.choice((None, True)) if len(set(sizes)) > 1 else None
        program = Program(seed, written(pick, sizes[0]), calls, dtype, cast, form, False, fed, 0, kept, symbols)
        if runs(program):
            return program


def runs(program: Program) -> bool:
    """Whether eager runs it."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        module = program.module()
        try:
            for i, call in enumerate(program.calls):
                with program.around(), torch.no_grad():
                    results = module.train(call.trains)(program.input(i))
                if not all(r.isfinite().all() and r.abs().max() < 1000 for r in results):
                    return False
        except (RuntimeError, ValueError):
            return False
    return True


if __name__ == "__main__":
    raise SystemExit(main("norms", "Compare modules of norms and statistics with eager's.", generate, check_program, device="cpu"))
