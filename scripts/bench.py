"""Measures eager, torch.compile and dynacompile side by side, and writes the tables of docs/performance.md.

    python scripts/bench.py                         # every workload of this machine's device
    python scripts/bench.py --only "GPT*" --mode max-autotune
    python scripts/bench.py --write                 # put the table into docs/performance.md
    python scripts/bench.py optimizers              # what compiling an optimizer's step takes, by the number of its parameters
    python scripts/bench.py guards                  # what guards cost, and how often each system compiles
    python scripts/bench.py symbolic                # kernels with symbolic sizes against those with constant ones
    python scripts/bench.py roofline --only "GPT*" --folder FOLDER  # the kernels of a step that lose most time beside what memory and arithmetic allow
    python scripts/bench.py budget  # peak memory against step time for several values of memory_budget
    python scripts/bench.py bandwidth  # AdamW's step on the CPU beside a copy of memory
    python scripts/bench.py turns --only "product:*"  # eager, torch.compile and ours in turn in one process, with many rounds
    python scripts/bench.py attention  # flex_attention by eager, torch.compile and ours: results, steps, kernels, tiles (--only "*4096*": further rows)
    python scripts/bench.py background  # compiling in the background against waiting: seconds until steps are fast, and what steps wait meanwhile
    python scripts/bench.py lightning --only "vision*" --rounds 5  # whole training steps of the recipes: eager, torch.compile, the callback
    python scripts/bench.py trees --against FOLDER  # another checkout and this one in turn: did a change make anything slower?

Each system runs in its own process with empty caches. Times are medians after a warm-up; "compile" is what
loading the compiler, calling it and the first step take, less a usual step.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dynacompile.config import MODES  # noqa: E402
from dynacompile.errors import nearest  # noqa: E402
from scripts import (  # noqa: E402
    bench_attention,
    bench_background,
    bench_bandwidth,
    bench_budget,
    bench_capture,
    bench_guards,
    bench_optimizers,
    bench_roofline,
    bench_symbolic,
    bench_trees,
    bench_turns,
)
from scripts.workloads import WORKLOADS, Step, Workload  # noqa: E402  (the script runs from anywhere)

SYSTEMS = ("eager", "torch.compile", "dynacompile")


def compile_with(system: str, mode: str) -> Callable[[Any], Any]:
    """The system's `compile`. It is imported here so that each worker pays for its own system only."""
    if system == "eager":
        return lambda fn: fn
    if system == "torch.compile":
        return lambda fn: torch.compile(fn, mode=None if mode == "default" else mode)
    dynacompile = importlib.import_module("dynacompile")
    return lambda fn: dynacompile.compile(fn, mode=mode)


def worker(system: str, name: str, device: str, mode: str, seconds: float) -> dict[str, float]:
    """Measures one workload under one system, in this process."""
    torch.manual_seed(0)
    if device == "cuda":  # the context and the libraries, which every system needs
        (torch.zeros(8, 8, device=device) @ torch.zeros(8, 8, device=device)).sum().item()
    spent = 0.0

    def compile(fn: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        compiled = compile_with(system, mode)(fn)
        spent += time.perf_counter() - start
        return compiled

    step = WORKLOADS[name].build(device, compile)
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    start = time.perf_counter()
    result = step()
    finish(device)
    first = spent + time.perf_counter() - start
    for _ in range(4):  # CUDA graphs and autotuning settle
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    usual = median_seconds(step, device, seconds)
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20 if device == "cuda" else 0.0
    return {"first": first, "step": usual, "check": float(result.double().abs().mean()), "peak": peak}


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(step: Step, device: str, seconds: float) -> float:
    """Median of batches of calls, each batch long enough for the clock and synchronised at its end."""
    start = time.perf_counter()
    step()
    finish(device)
    once = max(time.perf_counter() - start, 1e-7)
    batch = max(1, min(1000, int(0.02 / once)))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 7 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        for _ in range(batch):
            step()
        finish(device)
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times)


def environment() -> dict[str, str]:
    """Ours, with Python's bytecode kept: every system's modules are then loaded as installed packages are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def with_empty_caches(folder: str) -> dict[str, str]:
    """The same, with every system's caches in a folder that is empty."""
    return dict(environment(), TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton", DYNACOMPILE_CACHE_DIR=f"{folder}/ours")


def measure(system: str, workload: Workload, device: str, mode: str, seconds: float) -> dict[str, float] | str:
    """Runs one worker with empty caches; its figures, or the last line of its error."""
    with tempfile.TemporaryDirectory() as caches:
        env = with_empty_caches(caches)
        command = [sys.executable, __file__, "--worker", system, "--only", workload.name, "--device", device, "--mode", mode, "--seconds", str(seconds)]
        run = subprocess.run(command, env=env, capture_output=True, text=True)
    if run.returncode:
        return (run.stderr.strip().splitlines() or ["no output"])[-1][:160]
    return json.loads(run.stdout.strip().splitlines()[-1])


def in_units(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def rows_of(chosen: list[Workload], device: str, mode: str, seconds: float) -> list[dict[str, Any]]:
    subprocess.run([sys.executable, "-c", "from dynacompile import native; native.core()"], env=environment(), check=True)  # costs of the installation
    rows = []
    for workload in chosen:
        figures = {system: measure(system, workload, device, mode, seconds) for system in SYSTEMS}
        rows.append({"workload": workload, "figures": figures})
        print(f"{workload.name}: " + "; ".join(f"{s} {told(f)}" for s, f in figures.items()), file=sys.stderr, flush=True)
    return rows


def told(figures: dict[str, float] | str) -> str:
    return figures if isinstance(figures, str) else f"{in_units(figures['step'])}, first {figures['first']:.2f} s"


def table(rows: list[dict[str, Any]], copy_bandwidth: float) -> str:
    """Markdown: times, ratios, compile seconds, agreement with eager; on GPUs the peak of memory in a step above what was held before the first."""
    columns: tuple[str, ...] = ("workload", *SYSTEMS, "vs eager", "vs torch.compile", "compile s: torch.compile", "dynacompile", "ratio", "agrees")
    has_peaks = any(not isinstance(f, str) and f["peak"] for row in rows for f in row["figures"].values())
    columns += ("peak MiB: eager, torch.compile, dynacompile",) if has_peaks else ()
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    gains: list[float] = []
    for row in rows:
        f = row["figures"]
        eager, rival, ours = (f[s] for s in SYSTEMS)
        if any(isinstance(v, str) for v in (eager, rival, ours)):
            lines.append(f"| {row['workload'].name} | " + " | ".join(told(v) for v in (eager, rival, ours)) + " |" * (len(columns) - len(SYSTEMS)))
            continue
        rival_compile, our_compile = rival["first"] - rival["step"], ours["first"] - ours["step"]
        gains.append(rival["step"] / ours["step"])
        agrees = math.isclose(ours["check"], eager["check"], rel_tol=2e-2 if "bf16" in row["workload"].name else 1e-3)
        share = f" ({row['workload'].bytes / ours['step'] / copy_bandwidth:.0%} of copy)" if row["workload"].bytes and copy_bandwidth else ""
        cells = [row["workload"].name, in_units(eager["step"]), in_units(rival["step"]), in_units(ours["step"]) + share]
        cells += [f"{eager['step'] / ours['step']:.2f}x", f"{gains[-1]:.2f}x"]
        cells += [f"{rival_compile:.2f}", f"{our_compile:.2f}", f"{our_compile / rival_compile:.2f}", "yes" if agrees else "NO"]
        cells += [", ".join(f"{v['peak']:.0f}" for v in (eager, rival, ours))] if has_peaks else []
        lines.append(f"| {' | '.join(cells)} |")
    if gains:
        lines.append(f"\nGeometric mean against torch.compile: {math.exp(statistics.fmean(map(math.log, gains))):.2f}x over {len(gains)} workloads.")
    return "\n".join(lines)


def copy_bandwidth(device: str) -> float:
    """Bytes read plus written per second by a large device copy."""
    if device != "cuda":
        return 0.0
    x = torch.empty(2**30, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return 2 * x.numel() / median_seconds(lambda: y.copy_(x), device, 0.5)


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"
    return f"{name}; torch {torch.__version__}, Python {platform.python_version()}"


def write(title: str, text: str) -> None:
    """Replaces the section `title` of docs/performance.md, or adds it."""
    path = ROOT / "docs" / "performance.md"
    old = path.read_text() if path.exists() else "# Performance\n"
    section = f"## {title}\n\n{text}\n\n"
    pattern = re.compile(rf"## {re.escape(title)}\n.*?(?=^## |\Z)", re.S | re.M)
    path.write_text(pattern.sub(lambda m: section, old) if pattern.search(old) else old.rstrip() + "\n\n" + section)


def measure_capture(only: str, keep: bool) -> None:
    """The table of first calls with backend="eager"; into docs/performance.md where `keep`."""
    subprocess.run([sys.executable, "-c", "from dynacompile import native; native.core()"], env=environment(), check=True)
    rows: dict[str, dict[str, Any]] = {}
    for name in fnmatch.filter(bench_capture.MODELS, only):
        rows[name] = {}
        for system in SYSTEMS[1:]:
            command = [sys.executable, __file__, "capture", "--worker", system, "--only", name]
            run = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
            rows[name][system] = json.loads(run.stdout.strip().splitlines()[-1])
            print(f"{name}: {system} {rows[name][system]}", file=sys.stderr, flush=True)
    text = f'`python scripts/bench.py capture` on {machine("cpu")}. Seconds of the first call with backend="eager".\n\n' + bench_capture.table(rows)
    print(text)
    if keep:
        write("Capture", text)


def measure_optimizers(only: str, keep: bool) -> None:
    """The table of compiles against the number of parameters; into docs/performance.md where `keep`."""
    subprocess.run([sys.executable, "-c", "from dynacompile import native; native.core()"], env=environment(), check=True)
    rows: dict[str, dict[str, Any]] = {}
    for name in fnmatch.filter(bench_optimizers.CASES, only):
        rows[name] = {}
        for system in bench_optimizers.systems_for(name):
            with tempfile.TemporaryDirectory() as caches:
                command = [sys.executable, __file__, "optimizers", "--worker", system, "--only", name]
                run = subprocess.run(command, env=with_empty_caches(caches), capture_output=True, text=True, check=True)
            rows[name][system] = json.loads(run.stdout.strip().splitlines()[-1])
            print(f"{name}: {system} {rows[name][system]}", file=sys.stderr, flush=True)
    text = f"`python scripts/bench.py optimizers` on {machine('cpu')}. Seconds that compiling a step takes.\n\n" + bench_optimizers.table(rows)
    print(text)
    if keep:
        write("Compiling optimizers", text)


def measure_background(only: str, device: str, keep: bool) -> None:
    """The table of compiles that nobody waits for; into docs/performance.md where `keep`."""
    subprocess.run([sys.executable, "-c", "from dynacompile import native; native.core()"], env=environment(), check=True)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from scripts import bench_background as b; print(b.in_turn())"]
    run = subprocess.run(command, env=dict(environment(), OMP_NUM_THREADS="1"), capture_output=True, text=True, check=True)
    in_turn = run.stdout.strip().splitlines()[-1]
    rows: dict[str, dict[str, Any]] = {}
    for name in fnmatch.filter(bench_background.NAMES, only):
        rows[name] = {}
        for system in bench_background.SYSTEMS:
            with tempfile.TemporaryDirectory() as caches:
                env = with_empty_caches(caches)
                command = [sys.executable, __file__, "background", "--worker", system, "--only", name, "--device", device]
                run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            rows[name][system] = json.loads(run.stdout.strip().splitlines()[-1])
            print(f"{name}: {system} {rows[name][system]}", file=sys.stderr, flush=True)
    text = f"`python scripts/bench.py background --device {device}` on {machine(device)}. Empty caches.\n\n" + bench_background.table(rows) + "\n\n" + in_turn
    print(text)
    if keep:
        write(f"Compiling in the background, {device.upper()}", text)


def publish(text: str, title: str, args: argparse.Namespace) -> None:
    """Prints a table, and puts it into docs/performance.md where that is asked for."""
    print(text)
    if args.write:
        write(title, text)


def lightning(args: argparse.Namespace) -> None:
    bench_lightning = importlib.import_module("scripts.bench_lightning")  # needs Lightning and Hydra
    recipes = [name for name in bench_lightning.DEVICES[args.device] if fnmatch.fnmatch(name, args.only)]
    command = f"python scripts/bench.py lightning --device {args.device} --mode {args.mode} --rounds {args.rounds}"
    table = bench_lightning.table(recipes, args.device, args.mode, args.rounds)
    publish(f"`{command}` on {machine(args.device)}.\n\n{table}", f"Training steps under Lightning, {args.device.upper()}", args)


def guards(args: argparse.Namespace) -> None:
    publish(f"`python scripts/bench.py guards` on {machine('cpu')}; graphs run eagerly.\n\n{bench_guards.tables()}", "Guards", args)


def symbolic(args: argparse.Namespace) -> None:
    text = f"`python scripts/bench.py symbolic --device {args.device}` on {machine(args.device)}. Medians of a step, one compile after the other in turn."
    publish(f"{text}\n\n{bench_symbolic.table(args.only, args.device, args.seconds)}", f"Symbolic sizes, {args.device.upper()}", args)


def roofline(args: argparse.Namespace) -> None:
    roof = importlib.import_module("dynacompile.timing").roof_of(args.device)
    print(f"A copy moves {roof.bandwidth / 1e9:.1f} GB/s, a large product does {roof.flops / 1e12:.2f} TFLOP/s on {machine(args.device)}.\n")
    for workload in WORKLOADS.values():
        if args.device in workload.devices and fnmatch.fnmatch(workload.name, args.only):
            step = workload.build(args.device, compile_with("dynacompile", args.mode))
            print(bench_roofline.report(step, workload.name, args.device, roof, args.folder))


def budget(args: argparse.Namespace) -> None:
    about = f"`python scripts/bench.py budget --device {args.device}` on {machine(args.device)}."
    print(f"{about}\n\n{bench_budget.table(args.only, args.device, args.seconds)}")


def bandwidth(args: argparse.Namespace) -> None:
    print(f"`python scripts/bench.py bandwidth` on {machine('cpu')}.\n\n{bench_bandwidth.table()}")


def attention(args: argparse.Namespace) -> None:
    print(f"`python scripts/bench.py attention` on {machine(args.device)}. Medians of {bench_attention.ROUNDS} rounds.")
    sys.exit(bench_attention.main(None if args.only == "*" else args.only))


def turns(args: argparse.Namespace) -> None:
    about = f"`python scripts/bench.py turns --device {args.device} --mode {args.mode}` on {machine(args.device)}."
    about += f" The shortest of {5 * args.rounds} rounds each."
    print(f"{about}\n\n{bench_turns.table(args.only, args.device, 5 * args.rounds, args.mode)}")


def trees(args: argparse.Namespace) -> None:
    if args.against is None or not (args.against / "dynacompile").is_dir():
        sys.exit("trees needs --against FOLDER, a checkout of dynacompile, for example one that `git worktree add FOLDER COMMIT` made")
    about = f"`python scripts/bench.py trees --device {args.device} --mode {args.mode}` on {machine(args.device)}."
    print(f"{about}\n\n{bench_trees.table(args.against.resolve(), args.only, args.device, args.mode, args.seconds, args.rounds)}")


def steps(args: argparse.Namespace) -> None:
    chosen = [w for w in WORKLOADS.values() if args.device in w.devices and fnmatch.fnmatch(w.name, args.only)]
    copied = copy_bandwidth(args.device)
    rows = rows_of(chosen, args.device, args.mode, args.seconds)
    about = f"`python scripts/bench.py --device {args.device} --mode {args.mode}` on {machine(args.device)}."
    if copied:
        about += f" A device copy moves {copied / 1e12:.2f} TB/s."
    publish(f"{about}\n\n{table(rows, copied)}", f"{args.device.upper()}, mode {args.mode}", args)


COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], None]]] = {
    "steps": ("workloads' steps", steps),
    "capture": ("first calls with backend='eager'", lambda args: measure_capture(args.only, args.write)),
    "optimizers": ("optimizers' compiles", lambda args: measure_optimizers(args.only, args.write)),
    "guards": ("guards", guards),
    "symbolic": ("symbolic sizes", symbolic),
    "trees": ("another checkout and this one in turn", trees),
    "roofline": ("kernels beside their roof", roofline),
    "budget": ("memory against time", budget),
    "lightning": ("the recipes' whole training steps under Lightning", lightning),
    "background": ("compiling in the background against waiting", lambda args: measure_background(args.only, args.device, args.write)),
    "bandwidth": ("an optimizer's step beside a copy of memory", bandwidth),
    "turns": ("the systems in turn in one process", turns),
    "attention": ("flex_attention by generated kernels", attention),
}


def names(what: str, device: str) -> tuple[str, ...] | None:
    """What `--only` chooses from; None for a command that measures one thing."""
    match what:
        case "guards" | "bandwidth":
            return None
        case "lightning":
            return tuple(importlib.import_module("scripts.bench_lightning").DEVICES[device])
        case "capture":
            return tuple(bench_capture.MODELS)
        case "optimizers":
            return tuple(bench_optimizers.CASES)
        case "symbolic":
            return tuple(bench_symbolic.PROGRAMS)
        case "budget":
            return tuple(bench_budget.CHOSEN[device])
        case "background":
            return bench_background.NAMES
        case "attention":
            return tuple(row.name for row in (*bench_attention.ROWS, *bench_attention.MORE))
    return tuple(w.name for w in WORKLOADS.values() if device in w.devices)


def check(args: argparse.Namespace) -> None:
    """Ends the program with one line for an option that can't be, before anything is measured."""
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: --device cuda: torch finds no GPU here")
    if args.mode not in MODES:
        sys.exit(f"error: --mode {args.mode}: {nearest(args.mode, MODES)}")
    if args.rounds < 1:
        sys.exit(f"error: --rounds {args.rounds}: at least 1")
    if not 0 < args.seconds < math.inf:
        sys.exit(f"error: --seconds {args.seconds}: more than 0")
    known = names(args.what, args.device)
    if known is None and args.only != "*":
        sys.exit(f"error: {args.what} is one measurement: it has nothing for --only to choose from")
    if known is not None and not fnmatch.filter(known, args.only):
        listed = "; ".join(known)
        hint = nearest(args.only, known)
        sys.exit(f"error: --only {args.only!r} matches none of {args.what} on this device: {f'{hint} ' if hint.startswith('did') else ''}there are: {listed}")


def worked(args: argparse.Namespace) -> Any:
    """The figures of one system, for the process that started this one."""
    match args.what:
        case "lightning":
            return importlib.import_module("scripts.bench_lightning").worker(args.worker, args.only, args.device, args.mode)
        case "background":
            return bench_background.worker(args.worker, args.only, args.device)
        case "capture":
            return bench_capture.worker(args.worker, args.only)
        case "optimizers":
            return bench_optimizers.worker(args.worker, args.only)
    return worker(args.worker, args.only, args.device, args.mode, args.seconds)


def command(name: str) -> str:
    """Raises ArgumentTypeError for a command that does not exist, with the nearest."""
    if name not in COMMANDS:
        raise argparse.ArgumentTypeError(f"there is no {name!r}: {nearest(name, COMMANDS)}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = "; ".join(f"{name}: {about}" for name, (about, _) in COMMANDS.items())
    parser.add_argument("what", nargs="?", default="steps", type=command, metavar="WHAT", help=kinds)
    parser.add_argument("--only", default="*", help="glob over workload names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mode", default="default", help=" | ".join(MODES))
    parser.add_argument("--seconds", type=float, default=1.5, help="time spent on measuring each")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--folder", type=Path, help="roofline: where the picture and all figures are written")
    parser.add_argument("--against", type=Path, help="trees: the other checkout")
    parser.add_argument("--rounds", type=int, default=5, help="trees, lightning: how often each is measured; turns: a fifth of that")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(worked(args)))
    else:
        check(args)
        COMMANDS[args.what][1](args)


if __name__ == "__main__":
    main()
