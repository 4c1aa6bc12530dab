"""Programs over images: norms over groups, pools, interpolation, shuffles, windows, paddings and reductions, in either memory format, forward and backward,
called with batches and sizes that change.

    python -m tests.fuzz.images FIRST LAST [--device cuda] [--show]

A statement is kept if eager runs it for the sizes of every call. Results in float32 may be twenty times as far from those in float64 as eager's are.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import dynacompile
from tests.fuzz.command import main
from tests.fuzz.compare import weights
from tests.scenarios import strides

IMAGES = (
    "F.group_norm({x}, {g})", "F.group_norm({x}, {g})", "F.group_norm({x}, {g}, w[:{c}], w[:{c}])", "F.instance_norm({x}).flatten().view({x}.shape)",
    "F.batch_norm({x}, None, None, training=True)", "F.layer_norm({x}.permute(0, 2, 3, 1), ({c},)).permute(0, 3, 1, 2)", "F.layer_norm({x}, {x}.shape[1:])",
    "F.normalize({x}, dim={d})", "F.max_pool2d({x}, 2)", "F.max_pool2d({x}, 3, 2, 1)", "F.avg_pool2d({x}, 2)", "F.avg_pool2d({x}, 3, 1, 1)",
    "F.adaptive_avg_pool2d({x}, {k})", "F.adaptive_max_pool2d({x}, {k})", "F.interpolate({x}, scale_factor={f}, mode={m!r})",
    "F.interpolate({x}, scale_factor={f}, mode={m!r})", "F.interpolate({x}, size=({x}.shape[2] + 1, {x}.shape[3] * 2), mode={m!r})",
    "F.interpolate({x}, scale_factor={f}, mode={m!r}, recompute_scale_factor=True)",
    "F.interpolate({x}, size={x}.shape[3], mode='bilinear', align_corners=True)",
    "{x}.to(memory_format=torch.channels_last)", "{x}.contiguous()", "F.channel_shuffle({x}, {g})", "F.pixel_shuffle({x}, 2)", "F.pixel_unshuffle({x}, 2)",
    "{x}.roll(({k}, 1), (2, 3))", "F.pad({x}, (1, 2, 0, 1))", "F.pad({x}, (1, 1, 1, 1), mode='reflect')", "F.pad({x}, (2, 0, 1, 1), mode='replicate')",
    "{x}.flip({d})", "{x}.transpose(2, 3)", "{x}.relu()", "F.gelu({x})", "{x}.sin()", "{x} * {x}.mean((2, 3), keepdim=True).sigmoid()",
    "{x} + {x}.amax(1, keepdim=True)", "{x} - {x}.mean((0, 2, 3), keepdim=True)", "{x}.softmax({d})", "{x}.cumsum({d}) * 0.1",
    "{x}.view({x}.shape[0], {g}, {c} // {g}, *{x}.shape[2:]).transpose(1, 2).reshape({x}.shape)", "{x} * w[:{c}, None, None]",
    "{x}.reshape({x}.shape[0], {c}, {x}.shape[2] // 2, 2, -1, 2).permute(0, 2, 4, 1, 3, 5).reshape(-1, {c}, 2, 2)",
    "{x}.flatten(2).softmax(-1).view({x}.shape)", "torch.cat([{x}, {x}.relu()], 1)[:, ::2]", "{x}.view({x}.shape[0], {g}, -1).sub(0.1).view({x}.shape)",
    "{x} / {x}.view({x}.shape[0], {g}, -1).norm(dim=-1).add(1).repeat_interleave({c} // {g}, 1)[..., None, None]",
)  # fmt: skip
ENDS = (
    "{x}.mean((2, 3))", "{x}.var((0, 2, 3))", "{x}.sum({d})", "{x}.amax((2, 3))", "{x}.std({d})", "{x}.logsumexp({d})",
    "{x}.view({x}.shape[0], {g}, -1).var(-1)",
    "torch.var_mean({x}.view({x}.shape[0], {g}, -1), -1)[0]", "{x}.square().mean((1, 2, 3))", "{x}.prod(-1)", "{x}",
)  # fmt: skip
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
LENGTHS = (6, 7, 8, 12, 14, 15, 20, 28)
MOST = 60_000  # elements of an image
ALLOWED = 20


@dataclass(frozen=True)
class Program:
    """calls: the sizes of x, which is laid out channels last where `last`. symbols: what `compile` is told of them."""

    seed: int
    source: str
    calls: tuple[tuple[int, ...], ...]
    last: bool
    symbols: Any

    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), space)
        return space["program"]

    def arguments(self, call: int, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 16 + call)
        x, w = torch.randn(self.calls[call], generator=generator), torch.randn(256, generator=generator)
        form = torch.channels_last if self.last else torch.contiguous_format
        return x.to(device, dtype).to(memory_format=form).requires_grad_(), w.to(device, dtype).requires_grad_()


def sizes(pick: random.Random) -> tuple[tuple[int, ...], ...]:
    """Of the calls: channels stay."""
    channels = pick.choice((4, 8, 12, 16, 32, 64))
    moves = pick.choice(((0,), (2, 3), (0, 2, 3)))
    found: list[tuple[int, ...]] = []
    while len(found) < 3:
        shape = [pick.choice((1, 2, 3, 5, 8)), channels, pick.choice(LENGTHS), pick.choice(LENGTHS)]
        shape = [n if i in moves or not found else found[0][i] for i, n in enumerate(shape)]
        if torch.Size(shape).numel() <= MOST:
            found.append(tuple(shape))
    return tuple(found)


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    plain = Program(seed, "", sizes(pick), pick.random() < 0.6, pick.choice((None, True, True, {"x": {0: {}}})))
    spaces = [{"torch": torch, "F": F, **dict(zip("xw", plain.arguments(i, torch.float32), strict=True))} for i in range(len(plain.calls))]
    lines: list[str] = []

    def add(forms: tuple[str, ...], name: str) -> bool:
        x = spaces[0]["t" if lines else "x"]
        channels = x.shape[1] if x.dim() > 1 else 1
        groups = pick.choice([g for g in (1, 2, 4, 8, 16, 32) if channels % g == 0])
        filled = {"g": groups, "c": channels, "d": pick.randrange(max(1, x.dim())), "k": pick.choice((1, 2, 3)), "m": pick.choice(MODES)}
        text = pick.choice(forms).format(x="t" if lines else "x", f=pick.choice((2, 2, 2.0, 0.5, 1.5, 0.7)), **filled)
        try:
            made = [eval(text, dict(space)) for space in spaces]
        except Exception:  # noqa: BLE001 - no statement for these sizes
            return False
        wanted = 4 if name == "t" else 0
        if any(v.numel() > MOST or not v.numel() or not v.detach().isfinite().all() or (wanted and v.dim() != wanted) for v in made):
            return False
        for space, value in zip(spaces, made, strict=True):
            space[name] = value
        lines.append(f"{name} = {text}")
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(pick.randint(2, 6)):
            add(IMAGES, "t")
        if not lines:
            lines.append("t = x * 2")
            for space in spaces:
                space["t"] = space["x"] * 2
        while not add(ENDS, "r"):
            pass
    body = "".join(f"    {line}\n" for line in lines)
    return Program(seed, f"def program(x, w):\n{body}    return r, t\n", plain.calls, plain.last, plain.symbols)


def run(function: Callable, program: Program, call: int, dtype: torch.dtype, device: str) -> list[torch.Tensor | None]:
    """Results, and the gradients of x and w."""
    x, w = program.arguments(call, dtype, device)
    made = list(function(x, w))
    torch.autograd.backward(made, [weights(t).to(device) for t in made])
    return [*made, x.grad, w.grad]


def check_program(program: Program, counts: Counter, device: str = "cpu", **more: object) -> None:
    """Raises AssertionError for what differs from eager. more: options of `compile`."""
    dynacompile.reset()
    options = {"fallback": "none", "verify": True, **more}
    compiled = dynacompile.compile(program.function(), isolate_recompiles=True, dynamic=program.symbols, options=options)
    for call, shape in enumerate(program.calls):
        best = run(program.function(), program, call, torch.float64, "cpu")  # torch's kernels of GPUs leave out paddings of averages, channels last
        try:
            want = run(program.function(), program, call, torch.float32, device)
        except RuntimeError:
            counts["refused by eager"] += 1
            continue
        got = run(compiled, program, call, torch.float32, device)
        counts["calls"] += 1
        for name, a, b, exact in zip(("result", "image", "gradient of x", "gradient of w"), got, want, best, strict=True):
            where = f"call {call} of {shape}: {name}"
            assert (a is None) == (b is None), f"{where}: {a}, and eager {b}"
            if a is None or b is None or exact is None:
                continue
            assert (a.shape, a.dtype, strides(a)) == (b.shape, b.dtype, strides(b)), f"{where}: {a.shape} {a.stride()}, eager's {b.shape} {b.stride()}"
            error, own = ((t.detach().cpu().double() - exact.detach()).abs().max().item() for t in (a, b))
            scale = exact.detach().abs().max().item()
            counts["values"] += a.numel()
            assert error <= ALLOWED * own + 1e-6 * scale + 1e-7, f"{where}: off by {error}, eager by {own}, where values reach {scale}"


if __name__ == "__main__":
    raise SystemExit(main("images", "Compare programs over images with eager's.", generate, check_program, device="cpu"))
