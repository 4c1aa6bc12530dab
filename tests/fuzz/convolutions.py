"""Small modules over signals, images and volumes: convolutions, norms with statistics, pools, resizing, windows, sampling, paddings, activations and
branches, in any memory format and dtype, called in training, in evaluation and without gradients.

    python -m tests.fuzz.convolutions FIRST LAST [--device cuda] [--show] [--trace]

A statement is kept if eager runs it for the sizes of every call. Results, gradients of the input and of all parameters, buffers, and layouts of these are
compared. Results may be twenty times as far from those of a copy in float64 as eager's are; in half precision, some units of rounding farther.
"""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke, LimitHit
from tests.fuzz.command import main
from tests.fuzz.compare import weights
from tests.scenarios import strides

# In a statement <...> makes a module, or a parameter, of the program; x is the value so far, y an earlier one.
STATEMENTS = {
    "convolutions": (6, (
        "<nn.Conv{n}d({c}, {o}, {k}, {s}, {p}, {d}, {g}, {b}, {pm!r})>({x})", "<nn.Conv{n}d({c}, {o}, {k}, {s}, {p}, {d}, {g}, {b})>({x})",
        "<nn.Conv{n}d({c}, {o}, {k}, 1, {same!r}, {d}, {g}, {b}, {pm!r})>({x})", "<nn.Conv{n}d({c}, {c}, {k}, {s}, 1, groups={c}, bias={b})>({x})",
        "<nn.Conv{n}d({c}, {c} * 2, 3, padding=1, groups={c})>({x})", "<nn.Conv{n}d({c}, {o}, 1, bias={b})>({x})",
        "<nn.ConvTranspose{n}d({c}, {o}, {k}, {s}, {p}, 0, {g}, {b}, {d})>({x})", "<nn.ConvTranspose{n}d({c}, {o}, {k}, 2, 1, 1, {g}, {b})>({x})",
        "<nn.ConvTranspose{n}d({c}, {o}, 2, 2)>({x})", "F.conv{n}d({x}, F.normalize(<nn.Conv{n}d({c}, {o}, {k})>.weight, dim=1), padding={p})",
        "<nn.Conv{n}d({c}, {o}, {k}, padding={p})>({x}[0]).unsqueeze(0)", "<weight_norm(nn.Conv{n}d({c}, {o}, {k}, padding={p}))>({x})",
        "<nn.Sequential(nn.Conv{n}d({c}, {o}, 3, {s}, 1, bias={b}), nn.BatchNorm{n}d({o}), nn.ReLU(True))>({x})",
        "{x} + <nn.Sequential(nn.BatchNorm{n}d({c}), nn.ReLU(), nn.Conv{n}d({c}, {c}, 3, 1, 1, bias=False))>({x})",
        "torch.cat([<nn.Conv{n}d({c}, {o}, 1)>({x}), <nn.Conv{n}d({c}, 4, 3, 1, 1)>({x}), F.max_pool{n}d({x}, 3, 1, 1)], 1)",
    )),
    "norms": (4, (
        "<nn.BatchNorm{n}d({c}, affine={b}, track_running_stats={t}, momentum={mo})>({x})", "<nn.BatchNorm{n}d({c}, momentum={mo})>({x})",
        "<nn.InstanceNorm{n}d({c}, affine={b}, track_running_stats={t})>({x})", "<nn.GroupNorm({g}, {c}, affine={b})>({x})",
        "<nn.LayerNorm({c}, bias={b})>({x}.movedim(1, -1)).movedim(-1, 1)", "<nn.RMSNorm({c})>({x}.movedim(1, -1)).movedim(-1, 1)",
        "<nn.LayerNorm({whole}, elementwise_affine={b})>({x})", "<nn.LocalResponseNorm({k})>({x})", "F.normalize({x}, dim=1)",
    )),
    "pools": (4, (
        "<nn.MaxPool{n}d({k}, {s}, {p}, {d}, ceil_mode={b})>({x})", "<nn.MaxPool{n}d(2)>({x})", "<nn.MaxPool{n}d(3, 2, 1)>({x})",
        "<nn.MaxUnpool{n}d(2)>(*<nn.MaxPool{n}d(2, return_indices=True)>({x}), output_size={x}.shape)",
        "<nn.MaxPool{n}d({k}, {s}, {p}, {d}, return_indices=True)>({x})[1] % 7 * 0.25 + <nn.MaxPool{n}d({k}, {s}, {p}, {d})>({x})",
        "<nn.AvgPool{n}d({k}, {s}, {p}, {b}, {t})>({x})", "<nn.AvgPool{n}d({k}, {s}, {p}, {b}, {t})>({x})", "<nn.AvgPool{n}d(2)>({x})",
        "<nn.AvgPool{n}d({k}, {s}, {p}, {b}, divisor_override=3)>({x})", "<nn.LPPool{n}d({norm}, {k}, {s}, ceil_mode={b})>({x}.abs() + 0.5)",
        "<nn.AdaptiveAvgPool{n}d({k})>({x})", "<nn.AdaptiveMaxPool{n}d({k})>({x})", "<nn.AdaptiveAvgPool{n}d({wide})>({x})",
        "F.adaptive_max_pool{n}d({x}, {k}, return_indices=True)[0]",
    )),
    "resizing": (3, (
        "<nn.Upsample(scale_factor={f}, mode={m!r}, align_corners={ac})>({x})", "<nn.Upsample(scale_factor=2, mode={m!r})>({x})",
        "<nn.Upsample(size={wide}, mode={m!r}, align_corners={ac})>({x})", "F.interpolate({x}, {y}.shape[2:], mode={m!r})",
        "F.pixel_shuffle({x}, 2)", "F.pixel_unshuffle({x}, 2)", "<nn.ChannelShuffle({g})>({x})",
        "F.grid_sample({x}, F.affine_grid({theta}, {x}.shape, {t}), {gm!r}, {gp!r}, {t})",
        "F.grid_sample({x}, F.affine_grid({theta}, {x}.shape[:2] + {x2}, {t}), {gm!r}, {gp!r}, {t})",
    )),
    "windows": (3, (
        "F.unfold({x}, {k}, {d}, {p}, {s}) * 0.5", "<nn.Unfold({k}, {d}, {p}, {s})>({x})", "F.fold({x}.relu(), ({k} + 2, 6), 2)",
        "F.fold(F.unfold({x}, 3, {d}, {d}, 1), {x}.shape[2:], 3, {d}, {d}, 1) * 0.2", "{x}.unfold(2, 2, {s}).mean(-1)", "{x}.unfold(-1, 3, 1).amax(-1)",
        "F.pad({x}, {pads}, {padm!r})", "F.pad({x}, {pads}, {padm!r})", "F.pad({x}, {signed}, value=0.5)", "<nn.ReflectionPad{n}d({p})>({x})",
        "<nn.CircularPad{n}d({p})>({x})", "<nn.ReplicationPad{n}d({p})>({x})", "<nn.ZeroPad{n}d({p})>({x})", "{x}.roll({p}, 2)", "{x}.flip(-1)",
    )),
    "activations": (5, (
        "<nn.PReLU()>({x})", "<nn.PReLU({c})>({x})", "<nn.GLU(1)>({x})", "<nn.ReLU()>({x})", "<nn.ReLU6()>({x})", "<nn.LeakyReLU(0.1)>({x})",
        "<nn.ELU(0.7)>({x})", "<nn.CELU(1.3)>({x})", "<nn.SELU()>({x})", "<nn.GELU()>({x})", "<nn.GELU('tanh')>({x})", "<nn.SiLU()>({x})",
        "<nn.Mish()>({x})", "<nn.Hardswish()>({x})", "<nn.Hardsigmoid()>({x})", "<nn.Softplus(2, 3)>({x})", "<nn.Tanh()>({x})", "<nn.Softsign()>({x})",
        "<nn.Tanhshrink()>({x})", "<nn.Softshrink(0.2)>({x})", "<nn.LogSigmoid()>({x})", "<nn.Softmax2d()>({x})", "<nn.Softmax(1)>({x})",
        "<nn.ReLU(True)>({x})", "<nn.ReLU(True)>({x})", "<nn.LeakyReLU(0.1, True)>({x})", "<nn.SiLU(True)>({x})", "<nn.ELU(inplace=True)>({x})",
        "<nn.Hardswish(True)>({x})", "<nn.ReLU6(True)>({x})", "{x}.mul_(0.5)", "{x}.add_({y})",
    )),
    "branches": (4, (
        "{x} + {y}", "{x} + {y}", "{x} + <nn.Conv{n}d({yc}, {c}, 1, bias={b})>({y})", "torch.cat([{x}, {y}], 1)", "torch.cat([{y}, {x}.relu()], 1)",
        "torch.cat({x}.chunk(2, 1)[::-1], 1)", "{x} * <nn.Conv{n}d({c}, {c}, 1)>({x}.mean({dims}, keepdim=True)).sigmoid()",
        "{x} * <nn.Linear({c}, {c})>({x}.flatten(2).mean(-1)).sigmoid().view({x}.shape[:2] + (1,) * {n})",
        "{x} * <nn.Sequential(nn.AdaptiveAvgPool{n}d(1), nn.Conv{n}d({c}, 2, 1), nn.ReLU(True), nn.Conv{n}d(2, {c}, 1), nn.Sigmoid())>({x})",
        "{x} * {y}.mean({dims}, keepdim=True)", "<nn.Dropout(0.0)>({x})", "<nn.Dropout{n}d({drop})>({x})", "<nn.AlphaDropout({drop})>({x})",
        "{x} + <nn.Parameter(torch.randn({c}, *(1,) * {n}))>", "{x} * <nn.Parameter(torch.randn(1, {c}, *(1,) * {n}))>", "{x}[:, ::2]",
    )),
    "layouts": (2, (
        "{x}.contiguous()", "{x}.to(memory_format=torch.channels_last)", "{x}.contiguous(memory_format=torch.channels_last_3d)", "{x}.flatten(2)",
        "{x}.unsqueeze(2)", "{x}.unflatten(2, (2, -1))", "{x}.mean(2)", "{x}.transpose(-1, 2)", "{x}.squeeze(-1)",
        "{x}.movedim(1, -1).contiguous().movedim(-1, 1)",
        "{x}.clone()", "{x} * {x}.new_ones({x}.shape[1:])",
    )),
}  # fmt: skip
STATES = (
    "self.steps += 1", "self.steps.add_(1)", "self.seen = self.seen + 1", "self.average.mul_(0.9).add_({x}.detach().mean(), alpha=0.1)",
    "self.average.copy_({x}.detach().amax())", "self.steps = self.steps + {x}.shape[0]",
)  # fmt: skip
ENDS = (
    "<nn.Linear({flat}, {o})>({x}.flatten(1))", "<nn.Linear({flat}, {o}, bias={b})>({x}.flatten(1))", "<nn.Linear({c}, 5)>({x}.flatten(2).mean(-1))",
    "F.adaptive_avg_pool{n}d({x}, 1).flatten(1)", "{x}.amax({dims})", "{x}", "{x}.logsumexp(1)", "{x}.var({dims})", "{x}.flatten(1)",
    "<nn.Sequential(nn.Flatten(), nn.Linear({flat}, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))>({x})",
)  # fmt: skip
RESIZING = {1: ("nearest", "linear", "nearest-exact", "area"), 2: ("nearest", "bilinear", "bicubic", "area"), 3: ("nearest", "trilinear", "area")}
BENT = {"linear", "bilinear", "bicubic", "trilinear"}  # resizing that may align corners
LENGTHS = {1: (8, 13, 16, 30), 2: (5, 6, 8, 11, 14), 3: (3, 4, 5, 7)}
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
MOST = 20_000  # elements of a value
LEFT = (FrameSkipped, GraphBroke, LimitHit)
KNOWN = "turns a tensor into a Python value"
"""Why a frame may be left to Python: a norm without a momentum divides by its count of batches, which may raise, after the frame has changed an attribute."""
JUMPS = 0.15  # of all values together, in half precision: rounding may move one across an edge, where a gradient jumps
ALLOWED = 20  # times eager's distance from float64
UNITS = {torch.float32: 1e-6, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}  # of the values' scale


@dataclass(frozen=True)
class Call:
    """mode: "train", "eval", "no_grad" or "inference", the latter two in evaluation where `still`."""

    shape: tuple[int, ...]
    mode: str
    still: bool

    @property
    def trains(self) -> bool:
        return self.mode == "train" or (self.mode != "eval" and not self.still)

    def gradients(self) -> AbstractContextManager:
        return {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(self.mode, nullcontext)()


@dataclass(frozen=True)
class Program:
    """form: how the input lies in memory; last: whether parameters lie with channels last. fed: whether the input requires gradients. frozen: of which
    parameters, by their place, gradients are not asked. kept: whether gradients add up over calls. symbols: what `compile` is told of sizes."""

    seed: int
    source: str = field(repr=False)
    calls: tuple[Call, ...]
    dtype: torch.dtype
    cast: bool
    form: str
    last: bool
    fed: bool
    frozen: int
    kept: bool
    symbols: bool | None

    def module(self, device: str = "cpu") -> nn.Module:
        space: dict[str, Any] = dict(NAMES)
        exec(compile(self.source, f"<program {self.seed}>", "exec"), space)
        torch.manual_seed(self.seed)
        made: nn.Module = prepared(space["Program"](), self).to(device)
        for i, parameter in enumerate(made.parameters()):
            parameter.requires_grad_(not self.frozen or i % self.frozen != 0)
        return made

    def input(self, call: int, device: str = "cpu") -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 16 + call)
        return laid_out(torch.randn(self.calls[call].shape, generator=generator).to(self.dtype), self.form).to(device)

    def around(self, device: str = "cpu") -> AbstractContextManager:
        return torch.autocast(device, torch.bfloat16) if self.cast else nullcontext()

    @property
    def unit(self) -> float:
        return UNITS[torch.bfloat16 if self.cast else self.dtype]


NAMES = {"torch": torch, "nn": nn, "F": F, "weight_norm": torch.nn.utils.parametrizations.weight_norm}


def prepared(module: nn.Module, program: Program) -> nn.Module:
    module = module.to(program.dtype)
    for dims in (2, 3) if program.last else ():
        for parameter in module.parameters():
            if parameter.dim() == dims + 2:
                parameter.data = parameter.data.to(memory_format=FORMATS[dims])
    return module


def laid_out(x: torch.Tensor, form: str) -> torch.Tensor:
    if form == "last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if form == "gaps":
        return torch.stack([x, x], -1)[..., 0]
    return x.expand_as(x).transpose(0, 1).contiguous().transpose(0, 1) if form == "turned" else x


def plain(seed: int, pick: random.Random) -> Program:
    """Without its source."""
    n = pick.choice((1, 2, 2, 2, 3))
    moves = pick.choice(((), (), (), (0,), (0,), tuple(range(2, n + 2)), (0, 2)))
    first = (pick.choice((1, 2, 3, 4)), pick.choice((2, 3, 4, 6, 8, 16)), *(pick.choice(LENGTHS[n]) for _ in range(n)))
    modes = pick.choice((("train",), ("train", "eval"), ("train", "no_grad"), ("train", "inference"), ("eval",), ("no_grad", "inference", "eval")))
    calls: list[Call] = []
    for i in range(pick.choice((2, 3, 4))):
        shape = [pick.choice((1, 2, 3, 5)) if d == 0 else pick.choice(LENGTHS[n]) for d in range(n + 2)]
        shape = [m if calls and d in moves else f for d, (m, f) in enumerate(zip(shape, first, strict=True))]
        calls.append(Call(tuple(shape), modes[i % len(modes)], pick.random() < 0.7))
    dtype = pick.choice((torch.float32,) * 6 + (torch.bfloat16, torch.float16))
    cast = dtype == torch.float32 and pick.random() < 0.15
    form = pick.choice(("contiguous", "contiguous", "last", "last", "gaps", "turned"))
    fed, frozen, kept = pick.random() < 0.8, pick.choice((0, 0, 0, 1, 2, 3)), pick.random() < 0.2
    return Program(seed, "", tuple(calls), dtype, cast, form, pick.random() < 0.3, fed, frozen, kept, pick.choice((None, None, True) if moves else (None,)))


def filled(pick: random.Random, x: torch.Tensor, y: torch.Tensor, evaluates: bool) -> dict[str, Any]:
    """What stands in statements for names in braces."""
    n, channels = max(1, min(3, x.dim() - 2)), x.shape[1] if x.dim() > 1 else 1
    out = pick.choice((2, 4, 6, 8))
    groups = pick.choice([g for g in (1, 1, 1, 2, 3, 4) if channels % g == 0 and out % g == 0])
    mode, f = pick.choice(RESIZING[n]), pick.choice((2, 2.0, 0.5, 1.5, 0.7))
    wide = tuple(pick.choice((1, 3, 4, 9)) for _ in range(n))
    sided = [pick.choice((0, 1, 2)) for _ in range(2 * n)]
    each = tuple(pick.choice((1, 2, 3)) for _ in range(n))
    theta = f"<nn.Parameter(torch.eye({n}, {n + 1}) * 0.93 + 0.1 * torch.randn({n}, {n + 1}))>.expand({{x}}.shape[0], -1, -1)"
    return {
        "n": n, "c": channels, "o": out, "g": groups, "k": pick.choice((1, 2, 3, 3, each)), "s": pick.choice((1, 1, 2, each)), "p": pick.choice((0, 1, 1, 2)),
        "d": pick.choice((1, 1, 1, 2)), "b": pick.random() < 0.5, "t": pick.random() < 0.5, "pm": pick.choice(("circular", "reflect", "replicate", "zeros")),
        "same": pick.choice(("same", "same", "valid")), "mo": pick.choice((0.1, 0.5, None)), "whole": tuple(x.shape[1:]), "norm": pick.choice((1, 2, 1.5)),
        "wide": wide, "m": mode, "f": f, "ac": pick.choice((None, True)) if mode in BENT else None, "x2": wide, "theta": theta,
        "gm": pick.choice(("bilinear", "bilinear", "nearest", "bicubic")), "gp": pick.choice(("zeros", "border", "reflection")), "pads": tuple(sided),
        "padm": pick.choice(("constant", "reflect", "replicate", "circular")), "signed": tuple(s - 1 for s in sided), "yc": y.shape[1] if y.dim() > 1 else 1,
        "dims": tuple(range(2, x.dim())), "drop": 0.4 if evaluates else 0.0, "flat": prod(x.shape[1:]),
    }  # fmt: skip


def is_broken(module: nn.Module) -> bool:
    """Whether eager itself writes where it should not: the backward of a convolution of one element with strides, channels last (torch 2.13, CPUs)."""
    return hasattr(module, "kernel_size") and hasattr(module, "groups") and set(module.kernel_size) == {1} and set(module.stride) != {1}


class Writer:
    """Statements that eager runs, for all calls: their values so far, lines of the program, and what its modules are made of."""

    def __init__(self, pick: random.Random, program: Program) -> None:
        self.pick, self.program = pick, program
        self.made: list[str] = []
        self.lines: list[str] = []
        self.spaces: list[dict[str, Any]] = [{**NAMES, "x": program.input(i).requires_grad_(program.fed)} for i in range(len(program.calls))]
        self.names = ["x"]
        self.evaluates = not any(call.trains for call in program.calls)

    def text(self, form: str, x: str) -> tuple[str, list[str]]:
        y = self.pick.choice(self.names)
        places = filled(self.pick, self.spaces[0][x], self.spaces[0][y], self.evaluates)
        text = form.replace("{theta}", places["theta"]).format(x=x, y=y, **places)
        made: list[str] = []

        def named(found: re.Match) -> str:
            made.append(found[1])
            return f"self.m{len(self.made) + len(made) - 1}"

        return re.sub(r"<(.*?)>(?=[(.)]|$)", named, text), made

    def add(self, forms: tuple[str, ...], name: str, wanted: tuple[int, ...]) -> bool:
        """Whether a statement was found; wanted: how many dimensions its value may have."""
        text, made = self.text(self.pick.choice(forms), self.names[-1])
        results = []
        try:
            own = nn.Module()
            for i, module in enumerate(made, len(self.made)):
                setattr(own, f"m{i}", eval(module, dict(NAMES)))
            own = prepared(own, self.program)
            if any(map(is_broken, own.modules())):
                return False
            for space, call in zip(self.spaces, self.program.calls, strict=True):
                with self.program.around():
                    results.append(eval(text, {**space, "self": own.train(call.trains)}))
        except Exception:  # noqa: BLE001 - no statement for these sizes
            return False
        if any(not v.numel() or v.numel() > MOST or v.dim() not in wanted or not v.detach().isfinite().all() or v.detach().abs().max() > 1000 for v in results):
            return False
        for space, value in zip(self.spaces, results, strict=True):
            space[name] = value
        self.lines.append(f"{name} = {text}")
        self.made += made
        return True

    def source(self, returned: str) -> str:
        kept = 'self.register_buffer("steps", torch.zeros((), dtype=torch.long))\nself.register_buffer("average", torch.zeros(()))\nself.seen = 0'
        modules = [f"self.m{i} = {text}" for i, text in enumerate(self.made)]
        start = "".join(f"        {line}\n" for line in ["super().__init__()", *kept.split("\n"), *modules])
        body = "".join(f"        {line}\n" for line in [*self.lines, f"return {returned}"])
        return f"class Program(nn.Module):\n    def __init__(self):\n{start}\n    def forward(self, x):\n{body}"


def generate(seed: int) -> Program:
    pick = random.Random(seed)
    program = plain(seed, pick)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        writer = Writer(pick, program)
        kinds = [kind for kind, (weight, _) in STATEMENTS.items() for _ in range(weight)]
        for i in range(pick.randint(3, 9)):
            for _ in range(6):
                kind = "convolutions" if not i else pick.choice(kinds)
                if writer.add(STATEMENTS[kind][1], f"t{len(writer.names)}", (3, 4, 5)):
                    writer.names.append(f"t{len(writer.names)}")
                    break
            if pick.random() < 0.08:
                writer.lines.append(writer.text(pick.choice(STATES), writer.names[-1])[0])
        while not writer.add(ENDS, "r", (1, 2, 3, 4, 5)):
            pass
    others = [name for name in writer.names[1:] if pick.random() < 0.25]
    return Program(**{**vars(program), "source": writer.source(", ".join(["r", *others]) + ",")})


@dataclass
class Run:
    """A module that is called as `function`, and what each call left: results, gradients, and state, by name."""

    program: Program
    module: nn.Module
    function: Callable[..., Any]
    device: str
    exact: bool = False

    def call(self, i: int) -> dict[str, Any]:
        call = self.program.calls[i]
        self.module.train(call.trains)
        x = self.program.input(i, self.device)
        x = (x.double() if self.exact else x).requires_grad_(self.program.fed and call.mode in ("train", "eval"))
        if not self.program.kept:
            self.module.zero_grad()
        with call.gradients(), nullcontext() if self.exact else self.program.around(self.device):
            results = self.function(x)
        roots = [r for r in results if r.requires_grad]
        if roots and call.mode in ("train", "eval"):
            torch.autograd.backward(roots, [weights(r.detach().to(self.program.dtype)).to(r) for r in roots])
        told: dict[str, Any] = {f"result {j}": r for j, r in enumerate(results)}
        told |= {"x": x, "gradient of x": x.grad, **{f"gradient of {name}": p.grad for name, p in self.module.named_parameters()}}
        told |= {f"buffer {name}": b for name, b in self.module.named_buffers()}
        return {**{name: None if t is None else t.detach() for name, t in told.items()}, "seen": self.module.seen}


def check_program(program: Program, counts: Counter, device: str = "cpu", **more: object) -> None:
    """Raises AssertionError for what differs from eager. more: options of `compile`."""
    if "GroupNorm" in program.source and (program.frozen or not program.fed):
        counts["may end the process in eager"] += 1  # torch's gradient of weights alone, channels last on CPUs, writes to no memory
        return
    cudnn: Any = torch.backends.cudnn
    with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False):  # it rounds by more than results may differ
        check_calls(program, counts, device, more)


def check_calls(program: Program, counts: Counter, device: str, more: dict[str, object]) -> None:
    """As `check_program`."""
    dynacompile.reset()
    eager = program.module(device)
    exact, module = copy.deepcopy(eager).double().cpu(), copy.deepcopy(eager)
    options = {"fallback": "none", "verify": True, **more}
    function = dynacompile.compile(module, isolate_recompiles=True, dynamic=program.symbols, options=options)
    left: list[str] = []
    end = dynacompile.subscribe(lambda event: left.append(getattr(event, "reason", "a limit")) if isinstance(event, LEFT) else None)
    runs = Run(program, eager, eager, device), Run(program, module, function, device), Run(program, exact, exact, "cpu", True)
    try:
        for i, call in enumerate(program.calls):
            try:
                want = runs[0].call(i)
            except RuntimeError:
                counts["refused by eager"] += 1
                return
            best, got = runs[2].call(i), runs[1].call(i)
            counts["calls"] += 1
            others = [reason for reason in left if KNOWN not in reason]
            counts["breaks that are known"] += len(left) - len(others)
            assert not others, f"call {i} ({call.mode}): left to Python: {others}"
            left.clear()
            for name, a in got.items():
                size = largest(best) if name.startswith("gradient") and name.endswith("bias") else 0.0
                compare(f"call {i} ({call.mode}): {name}", a, want[name], best[name], program.unit, size, counts)
    finally:
        end()


def largest(told: dict[str, Any]) -> float:
    """Of all gradients."""
    return max((t.abs().max().item() for name, t in told.items() if name.startswith("gradient") and t is not None and t.numel()), default=0.0)


def compare(where: str, a: Any, b: Any, exact: Any, unit: float, size: float, counts: Counter) -> None:
    """size: how large values of the kind are, of which sums may cancel to nothing."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        assert a is b or (type(a), a) == (type(b), b), f"{where}: {a}, and eager {b}"
        return
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{where}: {a.dtype} {a.shape}, eager's {b.dtype} {b.shape}"
    assert strides(a) == strides(b), f"{where}: strides {a.stride()}, eager's {b.stride()} of {tuple(b.shape)}"
    counts["values"] += a.numel()
    if not a.is_floating_point():
        assert torch.equal(a, b), f"{where}: {a.flatten()[:6].tolist()}, eager's {b.flatten()[:6].tolist()}"
        return
    a, b, exact = (t.cpu().double() for t in (a, b, exact))
    if not b.numel() or not b.isfinite().all() or not exact.isfinite().all():
        assert torch.equal(a.isfinite(), b.isfinite()) or unit > 1e-4, f"{where}: other values are finite than eager's"
        return
    error, own = ((t - exact).abs().max().item() for t in (a, b))
    scale = exact.abs().max().item()
    if unit > 1e-4 and (a - exact).norm() <= JUMPS * exact.norm():
        return
    assert error <= ALLOWED * own + unit * max(scale, size) + unit * 0.1, f"{where}: off by {error}, eager by {own}, where values reach {scale}"


if __name__ == "__main__":
    raise SystemExit(main("convolutions", "Compare modules over signals, images and volumes with eager's.", generate, check_program, device="cpu"))
