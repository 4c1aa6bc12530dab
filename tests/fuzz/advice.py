"""Random programs that are called twice, with something changed between: what the recompile suggests is applied as it stands, and then there is none.

    python -m tests.fuzz.advice FIRST LAST [--show]

A program is its seed: a function over tensors, containers of tensors, ints and floats, with branches on sizes and numbers, and a module that does the same.
The second call differs in sizes, layouts, numbers, dtypes, flags or lengths, one or several of them. A recompile either names settings, under which a fresh
compile takes both calls with one entry, as eager does, or is called expected, and happens with all sizes and numbers as symbols, too.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import nn

import dynacompile
from dynacompile.callbacks.settings import CompileSettings, call_arguments
from dynacompile.errors import DynacompileError
from dynacompile.events import Recompiled
from tests.fuzz.seeds import run_seeds

OWN = {"backend": "eager", "isolate_recompiles": True, "options": {"fallback": "none"}}

LINES = (
    "y = y + {t} * 2",
    "y = y + {t}.sum()",
    "y = y * {k}",
    "y = y + {k}",
    "y = y + {t}.size({d})",
    "y = y + 1 if {t}.size({d}) < {n} else y - 1",
    "y = y + 1 if {t}.size({d}) % 2 == 0 else y * 2",
    "y = y + 1 if {t}.numel() > {n} else y",
    "y = y + 1 if {k} > {n} else y - 2",
    "y = y + {t}.t().sum(0).sum()",
    "y = y + {t}.reshape(-1).sum()",
    "y = y + {t}.view({t}.size(0), -1).mean()",
    "y = y + torch.ones({t}.size({d})).sum()",
    "y = y + [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][{t}.size({d})]",
    "y = y + sum(range({t}.size({d})))",
    "y = y + {t}.expand(2, -1, -1).sum()",
    "y = y + torch.cat([{t}, {t}]).mean()",
    "y = y + (1 if flag else 2)",
    "y = y + len(xs)",
    "y = y + F.dropout({t}, 0.25 if flag else 0.5, False).sum()",
    "y = y + {t}.flatten()[: {t}.size({d}) // 2].sum()",
    "y = y + ({t} @ {t}.t()).sum()",
)
TENSORS = ("x", "xs[0]", "xs[1]", "d['a']", "d['b c']")
NUMBERS = ("k", "f", "ks[0]")
SIZES = (2, 3, 4, 6, 7, 8, 12, 1, 0)


def source_of(rng: random.Random) -> str:
    def line() -> str:
        return rng.choice(LINES).format(t=rng.choice(TENSORS), k=rng.choice(NUMBERS), d=rng.randrange(2), n=rng.randrange(1, 12))

    lines = [line() for _ in range(rng.randint(1, 5))]
    return "def fn(x, xs, d, k, f, ks, flag):\n    y = torch.zeros(1)\n" + "".join(f"    {line}\n" for line in lines) + "    return y\n"


def tensor(rng: random.Random) -> torch.Tensor:
    made = torch.rand(rng.choice(SIZES[:-2]), rng.choice(SIZES[:-2]))
    return made.t() if rng.random() < 0.2 else made


def arguments(rng: random.Random) -> dict[str, Any]:
    return {
        "x": tensor(rng),
        "xs": [tensor(rng), tensor(rng)],
        "d": {"a": tensor(rng), "b c": tensor(rng)},
        "k": rng.choice((2, 3, 5, 9)),
        "f": rng.choice((2.5, 3.5)),
        "ks": [rng.choice((2, 4))],
        "flag": rng.random() < 0.5,
    }


def resized(rng: random.Random, old: torch.Tensor) -> torch.Tensor:
    sizes = list(old.shape)
    for dim in rng.choice(((0,), (1,), (0, 1))):
        sizes[dim] = rng.choice(SIZES)
    made = torch.rand(sizes[::-1]).t() if old.stride(0) < old.stride(1) else torch.rand(sizes)
    return made.t().contiguous().t() if rng.random() < 0.1 else made


def changed(rng: random.Random, before: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the second call."""
    now = copy.copy(before)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match rng.choice(("x", "x", "xs", "d", "k", "f", "ks", "flag", "dtype", "length")):
            case "x":
                now["x"] = resized(rng, now["x"])
            case "xs":
                now["xs"] = [resized(rng, now["xs"][0]), *now["xs"][1:]]
            case "d":
                key = rng.choice(("a", "b c"))
                now["d"] = {**now["d"], key: resized(rng, now["d"][key])}
            case "k":
                now["k"] = rng.choice((0, 1, 2, 4, 6, 11))
            case "f":
                now["f"] = rng.choice((0.0, 1.0, 4.5))
            case "ks":
                now["ks"] = [rng.choice((0, 3, 7))]
            case "flag":
                now["flag"] = not now["flag"]
            case "dtype":
                now["x"] = now["x"].double()
            case "length":
                now["xs"] = [*now["xs"], torch.rand(2, 2)]
    return now


class Net(nn.Module):
    def __init__(self, fn: Callable[..., Any]):
        super().__init__()
        self.fn = fn

    def forward(self, x, xs, d, k, f, ks, flag):
        return self.fn(x, xs, d, k, f, ks, flag)


def events_of(target: Callable[..., Any], calls: list[dict[str, Any]], options: dict[str, Any]) -> tuple[list[Any], list[Recompiled]]:
    dynacompile.reset()
    seen: list[Any] = []
    end = dynacompile.subscribe(seen.append)
    try:
        named = {"inplace": True, "name": "net"} if isinstance(target, nn.Module) else {}
        run = dynacompile.compile(target, **options, **named)
        results = [run(**call) for call in calls]
    finally:
        end()
        if isinstance(target, nn.Module) and target._compiled_call_impl is not None:
            dynacompile.restore(target)
    return results, [event for event in seen if isinstance(event, Recompiled)]


def options_of(override: str, target: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of compile() that an override gives, as a user applies it."""
    if not isinstance(target, nn.Module):
        given = eval(f"dict({override})", {})
    else:
        parsed = OverridesParser.create().parse_override(override)
        given = call_arguments(CompileSettings.of({"modules": parsed.value()}).options("net"))
    return {**OWN, **given, "options": {**OWN["options"], **given.get("options", {})}}


def difference(seed: int) -> str | None:
    """What is wrong with this program's advice; None where it is true."""
    rng = random.Random(seed)
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(source_of(rng), space)
    first = arguments(rng)
    calls = [first, changed(rng, first)]
    try:
        wanted = [space["fn"](**call) for call in calls]
    except (RuntimeError, IndexError, ValueError):
        return None  # no program for these arguments
    target = Net(space["fn"]) if rng.random() < 0.3 else space["fn"]
    results, told = events_of(target, calls, OWN)
    for event in told:
        if bool(event.override) == bool(event.expected):
            return f"either settings or a reason: {event.override!r}, {event.expected!r}"
    if not told:
        return None
    event = told[0]
    everything = {**OWN, "dynamic": True, "options": {**OWN["options"], "varying": NUMBERS}}
    options = options_of(event.override, target) if event.override else everything
    try:
        results, again = events_of(target, calls, options)
    except DynacompileError as error:
        return f"{event.override!r}: {type(error).__name__}: {error}"
    for result, one in zip(results, wanted):
        if not torch.allclose(result, one, equal_nan=True):
            return f"{event.override!r}: {result} is not {one}"
    same = [other for other in again if other.frame == event.frame]
    if event.override and same:
        return f"{event.override!r} does not prevent {event.failed}: {same[0].failed}"
    if event.expected and not same:
        return f"{event.failed} is called expected ({event.expected}), and symbols prevent it"
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, lambda seed: source_of(random.Random(seed))))
