"""Runs torch's own op samples (`op_db`) through the compiler, compares with eager, and tells what differs, by cause.

Usage: python scripts/op_samples.py [--backend eager|aot_eager|reference|default] [--ops GLOB,...] [--dtypes float32,...] [--most N] [--grad]
                                    [--variants function,method,inplace] [--rival] [--workers N] [--out FILE.jsonl]
       python scripts/op_samples.py --table FILE.jsonl [--against FILE.jsonl]

--most: at most N samples of an op, spread over all of them. --grad: samples that require gradients, whose gradients are compared too.
--rival: torch.compile(backend="eager") instead of ours. --table: shows what a run wrote; --against: next to a rival's run.
Samples run in worker processes: one that hangs or dies costs its sample, and is told as such.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke

OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "reference": {"options": {"reference": True, "verify": True}},
    "default": {"options": {"verify": True}},
}
UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided"})
TOLERANCES = {
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float32: (1e-4, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1e-4, 2e-5),
}


@dataclass
class Told:
    """What became of one sample. status: ok, break, wrong, error, crash, timeout, or eager-raises (where ours raises too, with the same type)."""

    op: str
    dtype: str
    variant: str
    sample: int
    status: str
    detail: str = ""


def seedless(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """In the place of op_db's own seeding of random ops, which is no part of them: `run` seeds."""
    return op(*args, **kwargs)


def names() -> dict[str, Any]:
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in common_methods_invocations.op_db}


def callables(op: Any, variants: list[str]) -> Iterator[tuple[str, Callable]]:
    found = {"function": op.op, "method": op.method_variant, "inplace": op.inplace_variant}
    for name in variants:
        if found[name] is not None:
            yield name, found[name]


def applied(op: Callable) -> Callable:
    def fn(*args, **kwargs):
        return op(*args, **kwargs)

    return fn


def picked(samples: list[Any], most: int) -> Iterator[tuple[int, Any]]:
    count = len(samples)
    step = max(1.0, count / most) if most else 1.0
    places = sorted({int(i * step) for i in range(min(count, most) if most else count)})
    return ((i, samples[i]) for i in places if i < count)


def twin(tree: Any) -> Any:
    """A copy with memory of its own, which keeps strides, shared memory and whether gradients are wanted."""
    memo: dict[int, Any] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kept = value.detach().clone() if value.layout is not torch.strided else copy.deepcopy(value.detach(), memo)
        return kept.requires_grad_(value.requires_grad)

    return pytree.tree_map(one, tree)


@dataclass
class Outcome:
    result: Any = None
    raised: BaseException | None = None
    args: Any = None
    grads: list[torch.Tensor | None] | None = None


def run(call: Callable, given: tuple, variant: str, finish: Callable | None) -> Outcome:
    args, kwargs = twin(given)
    if variant == "inplace":
        args = (args[0].clone() if args[0].requires_grad else args[0], *args[1:])
    torch.manual_seed(5)
    try:
        result = call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (what is raised is what is compared)
        return Outcome(raised=error)
    out = Outcome(result, None, (args, kwargs))
    if finish is not None:
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
        ends = [t for t in pytree.tree_leaves(finish(result)) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        if ends and leaves:
            try:
                out.grads = list(torch.autograd.grad(ends, leaves, [weights(t) for t in ends], allow_unused=True))
            except RuntimeError as error:
                return Outcome(raised=error)
    return out


def weights(t: torch.Tensor) -> torch.Tensor:
    real = torch.linspace(-1.0, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape)
    return real.to(t.dtype)


def leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def difference(what: str, got: Any, want: Any, exact: bool, values: bool = True, strides: bool = True) -> str:
    """The first difference, or nothing."""
    ours, theirs = leaves(got), leaves(want)
    if len(ours) != len(theirs):
        return f"{what}: {len(ours)} leaves, eager's {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (isinstance(b, (int, float, str, bool, complex)) and a != b and a == a):
                return f"{what}[{i}]: {a!r}, eager's {b!r}"
            continue
        said = tensor_difference(a, b, exact, values, strides)
        if said:
            return f"{what}[{i}]: {said}"
    return ""


def tensor_difference(a: Any, b: torch.Tensor, exact: bool, values: bool, strides: bool) -> str:
    if not isinstance(a, torch.Tensor):
        return f"{type(a).__name__} in place of a tensor"
    for fact in ("dtype", "shape", "requires_grad", "layout", "device"):
        if getattr(a, fact) != getattr(b, fact):
            return f"{fact} {getattr(a, fact)}, eager's {getattr(b, fact)}"
    if b.layout is not torch.strided or not values:
        return ""
    rtol, atol = (0, 0) if exact else TOLERANCES.get(b.dtype, (None, None))
    try:
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return "values: " + " ".join(str(error).split())[:200]
    if strides and b.numel() > 1 and [s for s, n in zip(a.stride(), a.shape) if n > 1] != [s for s, n in zip(b.stride(), b.shape) if n > 1]:
        return f"strides {a.stride()}, eager's {b.stride()} of {tuple(b.shape)}"
    return ""


def shared(outcome: Outcome) -> list[int]:
    """For each result: the first argument with which it shares memory."""
    given = [t for t in leaves(outcome.args) if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.numel()]
    told = []
    for t in leaves(outcome.result):
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.numel():
            told.append(next((i for i, g in enumerate(given) if g.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()), -1))
    return told


def judged(got: Outcome, want: Outcome, exact: bool, values: bool) -> tuple[str, str]:
    if want.raised is not None:
        if type(got.raised) is type(want.raised):
            return "eager-raises", ""
        return "wrong", f"raised {type(got.raised).__name__}: {got.raised}; eager {type(want.raised).__name__}: {want.raised}"[:300]
    if got.raised is not None:
        said = str(got.raised).strip().splitlines() or [""]
        return "error", f"{type(got.raised).__name__}: {said[0]}"[:300]
    found = difference("result", got.result, want.result, exact, values) or difference("arguments", got.args, want.args, exact, values)
    if not found and want.grads is not None:
        found = "no gradients" if got.grads is None else difference("gradient", got.grads, want.grads, exact, strides=False)
    if not found and shared(got) != shared(want):
        found = f"memory shared with arguments {shared(got)}, eager's {shared(want)}"
    return ("wrong", found) if found else ("ok", "")


def tried(op: Any, call: Callable, variant: str, sample: Any, args: argparse.Namespace) -> tuple[str, str]:
    given = ((sample.input, *sample.args), sample.kwargs)
    finish = sample.output_process_fn_grad if args.grad else None
    want = run(call, given, variant, finish)
    if args.rival:
        return rival(applied(call), given, variant, want)
    dynacompile.reset()
    compiled = dynacompile.compile(applied(call), isolate_recompiles=True, **OPTIONS[args.backend])
    events: list[Any] = []
    end = dynacompile.subscribe(events.append)
    try:
        got = run(compiled, given, variant, finish)
    finally:
        end()
    status, detail = judged(got, want, args.backend == "eager", op.name not in UNDEFINED)
    if status == "ok":
        broke = [f"[{e.code}] {e.reason}" for e in events if isinstance(e, GraphBroke)] + [f"skipped {e.reason}" for e in events if isinstance(e, FrameSkipped)]
        if broke:
            return "break", broke[0][:300]
        if not any(isinstance(e, Compiled) for e in events):
            return "break", "not compiled"
    return status, detail


def rival(fn: Callable, given: tuple, variant: str, want: Outcome) -> tuple[str, str]:
    """torch.compile, as it comes: fullgraph=True would also let it capture results whose shape depends on values."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    got = run(torch.compile(fn, backend="eager"), given, variant, None)
    if want.raised is not None:
        return "eager-raises", ""
    if got.raised is not None:
        said = str(got.raised).strip().splitlines() or [""]
        return "error", f"{type(got.raised).__name__}: {said[0]}"[:200]
    broke = list(counters["graph_break"]) + [k for k in ("unimplemented", "frame_skip") for k in counters[k]]
    if broke:
        return "break", " ".join(broke[0].split())[:200]
    return ("ok", "") if counters["frames"]["ok"] == counters["frames"]["total"] else ("break", "frame not compiled")


def work(args: argparse.Namespace) -> None:
    """A worker: reads `op dtype skip` lines, writes what became of each sample."""
    warnings.simplefilter("ignore")
    common_methods_invocations.wrapper_set_seed = seedless
    torch.set_num_threads(1)
    table = names()
    for line in sys.stdin:
        name, dtype_name, first = line.split()
        op, dtype, done = table[name], getattr(torch, dtype_name), int(first)
        torch.manual_seed(3)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=args.grad and op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)))
        tasks = [(v, c, i, s) for v, c in callables(op, args.variants) for i, s in picked(samples, args.most) if v != "inplace" or not s.broadcasts_input]
        for place, (variant, call, i, sample) in enumerate(tasks):
            if place < done:
                continue
            say({"begin": [place, variant, i]})
            status, detail = tried(op, call, variant, sample, args)
            say(asdict(Told(name, dtype_name, variant, i, status, detail)))
        say({"end": True})


def say(value: dict) -> None:
    print("@@" + json.dumps(value), flush=True)


class Worker:
    """A process that runs samples, and the samples that it is at."""

    def __init__(self, argv: list[str]):
        self.argv = argv
        self.process: subprocess.Popen | None = None
        self.lines: Queue[str | None] = Queue()

    def start(self) -> None:
        command = [sys.executable, __file__, "--work", *self.argv]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = Queue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()

    @staticmethod
    def read(process: subprocess.Popen, lines: Queue[str | None]) -> None:
        for line in process.stdout or ():
            if line.startswith("@@"):
                lines.put(line[2:])
        lines.put(None)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def op(self, name: str, dtype: str, timeout: float) -> Iterator[Told]:
        done = 0
        while True:
            if self.process is None:
                self.start()
            process = self.process
            assert process is not None and process.stdin is not None
            process.stdin.write(f"{name} {dtype} {done}\n")
            process.stdin.flush()
            at: list | None = None
            while True:
                try:
                    line = self.lines.get(timeout=timeout)
                    status = "crash"
                except Empty:
                    line, status = None, "timeout"
                if line is None:
                    self.stop()
                    if at is None:
                        yield Told(name, dtype, "", -1, status, "while samples were made")
                        return
                    done = at[0] + 1
                    yield Told(name, dtype, at[1], at[2], status)
                    break
                value = json.loads(line)
                if "begin" in value:
                    at = value["begin"]
                elif "end" in value:
                    return
                else:
                    yield Told(**value)


def sweep(args: argparse.Namespace, argv: list[str]) -> list[Told]:
    tasks: Queue[tuple[str, str]] = Queue()
    for name, op in names().items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in args.ops):
            for dtype in args.dtypes:
                if getattr(torch, dtype) in op.supported_dtypes("cpu"):
                    tasks.put((name, dtype))
    told: list[Told] = []
    out = open(args.out, "w") if args.out else None

    def serve() -> None:
        worker = Worker(argv)
        while True:
            try:
                name, dtype = tasks.get_nowait()
            except Empty:
                worker.stop()
                return
            for one in worker.op(name, dtype, args.timeout):
                told.append(one)
                if out is not None:
                    out.write(json.dumps(asdict(one)) + "\n")
                    out.flush()

    threads = [threading.Thread(target=serve) for _ in range(args.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def cause(detail: str) -> str:
    """What failures of one cause have in common."""
    return "".join("#" if c.isdigit() else c for c in detail)[:110]


def show(told: list[Told], against: dict[tuple, str] | None) -> None:
    counts = Counter(t.status for t in told)
    print(f"{len(told)} samples of {len({t.op for t in told})} ops: " + ", ".join(f"{v} {k}" for k, v in counts.most_common()))
    if against is not None:
        whole = [t for t in told if against.get((t.op, t.dtype, t.variant, t.sample)) == "ok"]
        good = sum(t.status == "ok" for t in whole)
        print(f"of {len(whole)} that the rival has whole, {good} are ({100 * good / max(len(whole), 1):.2f} %)")
        told = [t for t in whole if t.status != "ok"]
    groups: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for t in told:
        if t.status not in ("ok", "eager-raises"):
            groups[t.status, cause(t.detail)].append(t)
    for (status, _), group in sorted(groups.items(), key=lambda g: -len(g[1])):
        ops = Counter(t.op for t in group)
        one = group[0]
        print(f"{len(group):5d} {status:8s} {one.detail[:180]}")
        print(f"{'':15s}{', '.join(f'{k} {v}' for k, v in ops.most_common(12))} (sample {one.sample}, {one.dtype}, {one.variant})")


def read(path: str) -> list[Told]:
    return [Told(**json.loads(line)) for line in Path(path).read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(OPTIONS), default="eager")
    parser.add_argument("--ops", type=lambda s: s.split(","), default=["*"])
    parser.add_argument("--dtypes", type=lambda s: s.split(","), default=["float32"])
    parser.add_argument("--variants", type=lambda s: s.split(","), default=["function"])
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--out")
    parser.add_argument("--table")
    parser.add_argument("--against")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args)
    start = time.perf_counter()
    told = read(args.table) if args.table else sweep(args, sys.argv[1:])
    show(told, {(t.op, t.dtype, t.variant, t.sample): t.status for t in read(args.against)} if args.against else None)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
