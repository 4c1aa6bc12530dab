"""Measures what guards cost: torch.compile's and ours, side by side, and how often each compiles for the same calls.

    python scripts/bench.py guards            # the tables
    python scripts/bench.py guards --write    # put them into docs/performance.md

Each system runs in a process of its own, with graphs that run eagerly. A guard's time is the mean of many checks of the entry that holds: ours in
a native loop, torch.compile's called from Python, less what the same call of an empty guard manager costs (cold: one check from Python after the
caches were filled with other memory); medians of repeats. A lookup among several entries is that time and what a call costs more than a call
that finds one entry, the calls going round all entries.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("torch.compile", "dynacompile")
REPEATS = 5
LIMIT = 1000


def one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def ten(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any) -> Any:
    return a + b, c, d, e, f, g, h, i, j


def call(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


class Block(torch.nn.Module):
    """A transformer layer: 12 parameters in 6 modules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def linears(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(count)))


def blocks(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(Block(8) for _ in range(count)))


class Case(NamedTuple):
    """fn, and the arguments of one call for each entry. layers: what the time is divided by, 0: by nothing."""

    fn: Callable[..., Any]
    calls: Callable[[], Sequence[tuple]]
    layers: int = 0


def sizes(count: int) -> Callable[[], Sequence[tuple]]:
    return lambda: [(torch.randn(i + 2),) for i in range(count)]


CASES: dict[str, Case] = {
    "1 tensor": Case(one, sizes(1)),
    "10 tensors": Case(ten, lambda: [tuple(torch.randn(4) for _ in range(10))]),
    "50-parameter module": Case(call, lambda: [(linears(25), torch.randn(2, 8))]),
    "200-parameter module": Case(call, lambda: [(linears(100), torch.randn(2, 8))]),
    "1000-parameter module": Case(call, lambda: [(linears(500), torch.randn(2, 8))]),
    "transformer, 12 layers": Case(call, lambda: [(blocks(12), torch.randn(1, 4, 8))], layers=12),
    "transformer, 48 layers": Case(call, lambda: [(blocks(48), torch.randn(1, 4, 8))], layers=48),
    "8 entries": Case(one, sizes(8)),
    "64 entries": Case(one, sizes(64)),
}


def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


def steps_of_training(wrap: Callable[[Any], Any]) -> None:
    """Two epochs of training with a shorter last batch, each followed by validation in inference mode."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    run = wrap(model)
    for _ in range(2):
        model.train()
        for batch in (4, 4, 4, 3):
            run(torch.randn(batch, 8)).sum().backward()
        model.eval()
        with torch.inference_mode():
            for batch in (4, 4, 2):
                run(torch.randn(batch, 8))


def each(*arguments: tuple) -> Callable[[Callable[[Any], Any]], None]:
    def story(wrap: Callable[[Any], Any]) -> None:
        run = wrap(scale)
        for given in arguments:
            run(*given)

    return story


def many_modules(wrap: Callable[[Any], Any]) -> None:
    run = wrap(call)
    for _ in range(64):
        run(torch.nn.Linear(8, 8), torch.randn(2, 8))


def flips(wrap: Callable[[Any], Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())
    run = wrap(model)
    for i in range(8):
        model.train(i % 2 == 0)
        run(torch.randn(2, 8))


STORIES: dict[str, Callable[[Callable[[Any], Any]], None]] = {
    "shapes 4x8, 8x16, 32x64": each(*((torch.randn(a, b),) for a, b in ((4, 8), (8, 16), (32, 64)))),
    "batch sizes 2 to 17, twice": each(*((torch.randn(b, 8),) for b in (*range(2, 18), *range(2, 18)))),
    "batch sizes 1, 2, 3": each(*((torch.randn(b, 8),) for b in (1, 2, 3))),
    "a learning rate that decays over 16 calls": each(*((torch.randn(4), 0.1 * 0.9**i) for i in range(16))),
    "64 modules of one structure": many_modules,
    "train and eval, eight flips": flips,
    "training and validation, shorter last batches": steps_of_training,
}


def check_time(root: Any, names: dict[str, Any]) -> float:
    """Nanoseconds of root.check(names), called from Python."""
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in itertools.repeat(None, 500):
            root.check(names)
        times.append((time.perf_counter() - start) / 500)
    return statistics.median(times) * 1e9


def cold_time(check: Callable[[], Any]) -> float:
    """Nanoseconds of one check from Python after 64 MiB of other memory went through the caches."""
    other = torch.ones(16 << 20)
    times = []
    for _ in range(20):
        other.add_(1)
        start = time.perf_counter()
        check()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e9


def rival() -> tuple[Callable[[Any], Any], Callable[[Any, tuple], tuple[float, float]], Callable[[], int]]:
    """torch.compile: how it compiles, how its guards are timed (hot, cold in ns), how many frames it has compiled."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = LIMIT
    # On by default in torch 2.11, off in 2.13: it skips the checks of parameters, so that a changed requires_grad or .data gives a wrong result.
    dynamo.config.use_recursive_dict_tags_for_guards = False
    guards: Any = importlib.import_module("torch._C._dynamo.guards")
    eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    def timed(fn: Any, args: tuple) -> tuple[float, float]:
        root = eval_frame._debug_get_cache_entry_list(fn.__code__)[0].guard_manager.root
        names = dict(zip(fn.__code__.co_varnames, args))
        assert root.check(names), "the guards do not hold for the call that they were made for"
        hot = check_time(root, names) - check_time(guards.RootGuardManager(), names)  # less what calling from Python costs
        return hot, cold_time(lambda: root.check(names))

    return (lambda fn, **more: torch.compile(fn, backend=backend, **more)), timed, lambda: len(compiled)


def ours() -> tuple[Callable[[Any], Any], Callable[[Any, tuple], tuple[float, float]], Callable[[], int]]:
    """dynacompile, likewise."""
    dynacompile: Any = importlib.import_module("dynacompile")
    core = importlib.import_module("dynacompile.native").core()
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    def timed(fn: Any, args: tuple) -> tuple[float, float]:
        program = core.entries(fn.__code__)[0][1].guards
        times = 20000 if not isinstance(args[0], torch.nn.Module) else 300
        roots = (args, None, fn.__globals__, fn.__globals__)
        runs = [program.measure(*roots, times) for _ in range(REPEATS)]
        assert all(held == times + 2 for _, _, held in runs), "the guards do not hold for the call that they were made for"
        return statistics.median(hot for hot, _, _ in runs), cold_time(lambda: program.check(*roots))

    return (lambda fn, **more: dynacompile.compile(fn, backend=backend, recompile_limit=LIMIT, **more)), timed, lambda: len(compiled)


def call_time(run: Callable[..., Any], calls: Sequence[tuple]) -> float:
    """Nanoseconds of a call, going round `calls`."""
    batch = list(itertools.islice(itertools.cycle(calls), max(1024, len(calls))))
    times = []
    for _ in range(100):
        start = time.perf_counter()
        for given in batch:
            run(*given)
        times.append((time.perf_counter() - start) / len(batch))
    return statistics.median(times) * 1e9


def worker(system: str) -> dict[str, Any]:
    compile_, timed, compiled = (rival if system == "torch.compile" else ours)()
    reset = importlib.import_module("torch._dynamo" if system == "torch.compile" else "dynacompile").reset
    figures: dict[str, Any] = {}
    single = 0.0
    with torch.no_grad():
        call_time(compile_(one, dynamic=False), sizes(1)())  # the first second of a process is slower than all others
        for name, case in CASES.items():
            reset()
            calls = case.calls()
            run = compile_(case.fn, dynamic=False)
            for given in calls:
                run(*given)
            hot, cold = timed(case.fn, calls[-1]) if len(calls) == 1 else (0.0, 0.0)
            lookup = call_time(run, calls) if case.fn is one else 0.0
            if name == "1 tensor":
                single, first = lookup, hot
            if len(calls) > 1:
                hot = first + lookup - single
            figures[name] = {"hot": hot, "cold": cold, "call": lookup}
    counts = {}
    for name, story in STORIES.items():
        reset()
        before = compiled()
        story(compile_)
        counts[name] = compiled() - before
    return {"figures": figures, "counts": counts}


def measured(system: str) -> dict[str, Any]:
    command = [sys.executable, __file__, system]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    if run.returncode:
        raise SystemExit(f"{system}: {run.stderr[-2000:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def shown(nanoseconds: float) -> str:
    return "" if not nanoseconds else f"{nanoseconds:.0f} ns" if nanoseconds < 1000 else f"{nanoseconds / 1000:.2f} us"


def tables() -> str:
    """Markdown: guard times with their ratio, then compiles for the same calls."""
    theirs, own = (measured(system) for system in SYSTEMS)
    lines = ["| what is guarded | torch.compile | dynacompile | ratio | cold: torch.compile | dynacompile | a layer |", "|---" * 7 + "|"]
    for name, case in CASES.items():
        a, b = theirs["figures"][name], own["figures"][name]
        layer = shown(b["hot"] / case.layers) if case.layers else ""
        lines.append(f"| {name} | {shown(a['hot'])} | {shown(b['hot'])} | {b['hot'] / a['hot']:.2f} | {shown(a['cold'])} | {shown(b['cold'])} | {layer} |")
    whole = [own["figures"][name]["call"] for name in ("1 tensor", "64 entries")]
    rivals = [theirs["figures"][name]["call"] for name in ("1 tensor", "64 entries")]
    lines.append(
        f"\nA whole call that finds one of 64 entries takes {shown(whole[1])}, {whole[1] / whole[0]:.2f} times one that finds the only entry "
        f"({shown(whole[0])}); "
        f"torch.compile's takes {shown(rivals[1])}, {rivals[1] / rivals[0]:.2f} times.\n"
    )
    lines += ["| graphs compiled for | torch.compile | dynacompile |", "|---|---|---|"]
    lines += [f"| {name} | {theirs['counts'][name]} | {own['counts'][name]} |" for name in STORIES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1])))
