"""Compiles tiny models of the transformers package (random weights, nothing is downloaded) and compares them with eager.

Each model runs in a process of its own. Outputs, all gradients and all buffers are compared: to the bit with backend="eager" (capture alone),
within float32's tolerances with the kernels. Prints a line for each model, then the breaks by reason; `--table` writes the table of docs/capture.md.

Usage: python scripts/smoke_transformers.py [--train] [--backend eager|reference|kernels] [--rival] [--table FILE] [--jobs N] [names]
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils import _pytree as pytree
from transformer_models import MODELS, make

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled

OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager", "options": {"fallback": "none"}},
    "reference": {"options": {"fallback": "none", "reference": True}},
    "kernels": {"options": {"fallback": "none"}},
}
TOLERANCE = {"eager": (0.0, 0.0), "reference": (1e-4, 1e-5), "kernels": (1e-4, 1e-5)}


@dataclass
class Told:
    """What one model showed: its first call (graphs with at least one op, breaks, skipped frames) and two calls (recompiles).

    wrong: what differed from eager or failed; empty where all was equal.
    """

    name: str
    graphs: int = 0
    breaks: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    recompiles: int = 0
    wrong: str = ""
    seconds: float = 0.0
    rival: tuple[int, int, str] | None = None  # torch.compile's graphs, breaks and first reason

    @property
    def is_whole(self) -> bool:
        return self.graphs == 1 and not self.breaks and not self.skipped and not self.wrong

    def line(self) -> str:
        verdict = self.wrong or ("whole" if self.is_whole else "in parts")
        rival = f" | torch.compile: {self.rival[0]} graphs, {self.rival[1]} breaks" if self.rival else ""
        counts = f"{self.graphs} graphs, {len(self.breaks)} breaks, {len(self.skipped)} skipped, {self.recompiles} recompiles"
        return f"{self.name}: {verdict}: {counts}, {self.seconds:.1f} s{rival}"


def step(model: Any, inputs: dict[str, torch.Tensor], train: bool) -> Any:
    """The model's outputs; in train mode after the backward pass of all of them, each element with a weight of its own."""
    torch.manual_seed(3)
    with torch.set_grad_enabled(train):
        outputs = model(**inputs)
        if train:
            leaves = [t for t in pytree.tree_leaves(dict(outputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.backward([(t.float() * torch.linspace(-1.0, 1.5, t.numel()).reshape(t.shape)).sum() for t in leaves])
    return outputs


def plain(outputs: Any) -> dict[str, Any]:
    return {key: [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)] for key, value in outputs.items()}


def differences(got: Any, want: Any, model: torch.nn.Module, other: torch.nn.Module, tolerance: tuple[float, float]) -> str:
    """The first thing that differs; empty where nothing does."""
    if type(got) is not type(want) or list(got) != list(want):
        return f"WRONG: {type(got).__name__} with {list(got)}, eager's {type(want).__name__} with {list(want)}"
    pairs = [(f"output {key}", a, b) for key, value in plain(want).items() for a, b in zip(plain(got)[key], value, strict=True)]
    pairs += [(f"buffer {key}", dict(model.named_buffers())[key], value) for key, value in other.named_buffers()]
    for (key, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        if (mine.grad is None) != (theirs.grad is None):
            return f"WRONG: gradient of {key} is {'missing' if mine.grad is None else 'there'}, unlike eager's"
        if theirs.grad is not None:
            pairs.append((f"gradient of {key}", mine.grad, theirs.grad))
    for what, a, b in pairs:
        try:
            size = float(b.detach().abs().max()) if b.numel() and b.is_floating_point() else 1.0  # sums of large terms round as these do
            torch.testing.assert_close(a, b, rtol=tolerance[0], atol=tolerance[1] * max(1.0, min(size, 1e3)), equal_nan=True)
        except AssertionError as error:
            return f"WRONG: {what}: {' '.join(str(error).split())[:200]}"
    return ""


def smoke(name: str, train: bool, backend: str) -> Told:
    model, inputs = make(name)
    model.train(train)
    other, told, began = copy.deepcopy(model), Told(name), time.perf_counter()
    events: list[Any] = []
    first: list[Any] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(model, **OPTIONS[backend])
    want = step(other, inputs, train)
    try:
        for _ in range(2):  # the second call shows what the first left behind
            got = step(compiled, inputs, train)
            told.wrong = told.wrong or differences(got, want, model, other, TOLERANCE[backend])
            first = first or list(events)
            want = step(other, inputs, train)
    except Exception as error:  # noqa: BLE001  (the report says what it was)
        where = traceback.extract_tb(error.__traceback__)[-1]
        told.wrong = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]} at {Path(where.filename).name}:{where.lineno}"
    end()
    told.seconds = time.perf_counter() - began
    first = first or events
    told.graphs = sum(isinstance(e, Compiled) and e.ops > 0 for e in first)
    told.breaks = [f"[{e.code}] {e.reason} at {shortened(e.site)}" for e in first if isinstance(e, GraphBroke)]
    told.skipped = [f"{e.reason} at {shortened(e.site)}" for e in first if isinstance(e, FrameSkipped)]
    told.recompiles = sum(isinstance(e, Recompiled) for e in events)
    return told


def shortened(site: object) -> str:
    return str(site).replace(str(Path(transformers.__file__).parent), "transformers")


def rival(name: str, train: bool) -> tuple[int, int, str]:
    """Graphs and breaks of torch.compile on the same call."""
    model, inputs = make(name)
    model.train(train)
    graphs: list[int] = []

    def keep(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.utils.counters.clear()
    try:
        step(torch.compile(model, backend=keep), inputs, train)
    except Exception as error:  # noqa: BLE001  (the report says what it was)
        return 0, 0, f"failed: {type(error).__name__}"
    broke = torch._dynamo.utils.counters["graph_break"]
    return sum(ops > 0 for ops in graphs), sum(broke.values()), " ".join(next(iter(broke), "").split())[:100]


def child(pipe: Any, name: str, train: bool, backend: str, with_rival: bool) -> None:
    torch.set_num_threads(1)
    try:
        told = smoke(name, train, backend)
        if with_rival:
            told.rival = rival(name, train)
    except Exception as error:  # noqa: BLE001  (the report says what it was)
        told = Told(name, wrong=f"FAILED: {type(error).__name__}: {error}")
    pipe.send(told)


def isolated(name: str, train: bool, backend: str, with_rival: bool, limit: float) -> Told:
    """`smoke` in a process of its own, ended after `limit` seconds."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=child, args=(theirs, name, train, backend, with_rival))
    process.start()
    theirs.close()
    try:
        return mine.recv() if mine.poll(limit) else Told(name, wrong=f"FAILED: not done after {limit} s")
    except EOFError:
        return Told(name, wrong="FAILED: the process died")
    finally:
        process.kill()
        process.join()


def summary(reports: list[Told]) -> str:
    whole = sum(r.is_whole for r in reports)
    wrong = sum(bool(r.wrong) for r in reports)
    lines = [f"{whole} of {len(reports)} in one graph ({whole / max(len(reports), 1):.1%}), {wrong} wrong or failed"]
    hit: Counter[str] = Counter()
    for report in reports:
        hit.update((report.breaks + report.skipped)[:1])  # the first one: most others follow from it
    lines += [f"{count:4d}  {reason}" for reason, count in hit.most_common()]
    return "\n".join(lines)


def table(reports: list[Told]) -> str:
    rows = ["| model | class | result | ours: graphs | breaks | torch.compile: graphs | breaks |", "|---|---|---|---|---|---|---|"]
    for r in reports:
        theirs = f"{r.rival[0]} | {r.rival[1]}" if r.rival else " | "
        if r.rival and r.rival[2].startswith("failed"):
            theirs = f"{r.rival[2]} | "
        rows.append(f"| {r.name} | {MODELS[r.name].auto.__name__} | {'differs' if r.wrong else 'equal'} | {r.graphs} | {len(r.breaks)} | {theirs} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="model types; all by default")
    parser.add_argument("--train", action="store_true", help="train mode, with gradients")
    parser.add_argument("--backend", choices=OPTIONS, default="eager")
    parser.add_argument("--rival", action="store_true", help="torch.compile's graphs and breaks beside ours")
    parser.add_argument("--table", type=Path, help="where to write the table as Markdown")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each model")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    reports = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for told in pool.map(lambda name: isolated(name, chosen.train, chosen.backend, chosen.rival, chosen.limit), chosen.names or MODELS):
            reports.append(told)
            print(told.line(), flush=True)
    print(summary(reports))
    if chosen.table:
        chosen.table.write_text(table(reports))


if __name__ == "__main__":
    main()
