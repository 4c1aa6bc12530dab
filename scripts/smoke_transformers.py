"""Compiles tiny models of the transformers package (random weights, nothing is downloaded) and compares them with eager.

Each model runs in a process of its own. Outputs, all gradients and all buffers are compared: to the bit with backend="eager" (capture alone),
within float32's tolerances with the kernels. A model that differs is compared with eager once more, with `torch.compiler.is_compiling()` true
there, too: some choose another algorithm by it. Prints a line for each model, then the breaks by reason.

Usage: python scripts/smoke_transformers.py [--train] [--backend eager|reference|kernels] [--shapes] [--rival] [--jobs N]
                                            [--out FILE.jsonl [--resume]] [names]
       python scripts/smoke_transformers.py --table EVAL.jsonl TRAIN.jsonl

--shapes: calls of several batch sizes and lengths instead of two equal ones.
--out: appends a line for each model. --resume: keeps what FILE.jsonl has, and runs the other models.
--table: prints the table of docs/capture.md from the files of an eval and of a train run.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import multiprocessing
import os
import re
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch.utils import _pytree as pytree
from transformer_models import MODELS, make, resized

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled

OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager", "options": {"fallback": "none"}},
    "reference": {"options": {"fallback": "none", "reference": True}},
    "kernels": {"options": {"fallback": "none"}},
}
STARTING = threading.Lock()
ERROR = re.compile(r"[\w.]+(Error|Exception|Unsupported|Interrupt|Violated|Exit)\b")
PLACE = re.compile(r" at (\S+:\d+)")
SHAPES = ((2, 8), (2, 12), (3, 12), (3, 17), (1, 6), (5, 9), (2, 8), (2, 12))  # of a batch and a text
TOLERANCE = {"eager": (0.0, 0.0), "reference": (1e-4, 1e-5), "kernels": (1e-4, 1e-5)}


@dataclass
class Rival:
    """torch.compile on the same call. breaks: as its counter has them, which leaves out those of frames that it then skips. attempts: those that it logs.
    places: of these. failed: what it raised; empty where it did not."""

    graphs: int = 0
    breaks: int = 0
    ops: int = 0
    attempts: int = 0
    places: int = 0
    failed: str = ""


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
    ops: int = 0  # calls of operations in all graphs of the first call
    rival: Rival | None = None
    calls: list[int] = field(default_factory=list)  # graphs that each call made
    asks: bool = False  # equal to eager only where eager is told that it is compiled, too

    @property
    def places(self) -> int:
        """Places in the program at which a graph ended: what the table counts. A break in a function ends the graphs of its callers, too."""
        return len({PLACE.findall(text)[-1] for text in self.breaks})

    @property
    def is_whole(self) -> bool:
        return self.graphs == 1 and not self.breaks and not self.skipped and not self.wrong

    def line(self) -> str:
        verdict = self.wrong or ("whole" if self.is_whole else "in parts") + " (asks is_compiling)" * self.asks
        found = self.rival
        theirs = found and (found.failed or f"{found.graphs} graphs, {found.places} breaks in {found.attempts} frames, {found.ops} ops")
        rival = f" | torch.compile: {theirs}" if theirs else ""
        breaks = f"{self.places} breaks in {len(self.breaks)} frames"
        counts = f"{self.graphs} graphs, {breaks}, {self.ops} ops, {len(self.skipped)} skipped, {self.recompiles} recompiles"
        calls = f", by call {self.calls}" if len(self.calls) > 2 else ""
        return f"{self.name}: {verdict}: {counts}{calls}, {self.seconds:.1f} s{rival}"


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


Tensors = dict[str, torch.Tensor | None]


def results(outputs: Any, model: torch.nn.Module) -> Tensors:
    """Everything that is compared: outputs, buffers, gradients."""
    found: Tensors = {f"output {key}[{i}]": t for key, value in plain(outputs).items() for i, t in enumerate(value)}
    found |= {f"buffer {key}": value for key, value in model.named_buffers()}
    return found | {f"gradient of {key}": value.grad for key, value in model.named_parameters()}


def differences(got: Tensors, want: Tensors, tolerance: tuple[float, float]) -> str:
    """The first thing that differs; empty where nothing does."""
    if list(got) != list(want):
        return f"WRONG: {list(got)}, eager's {list(want)}"
    for what, b in want.items():
        a = got[what]
        if a is None or b is None:
            if a is not b:
                return f"WRONG: {what} is {'missing' if a is None else 'there'}, unlike eager's"
            continue
        try:
            size = float(b.detach().abs().max()) if b.numel() and b.is_floating_point() else 1.0  # sums of large terms round as these do
            torch.testing.assert_close(a, b, rtol=tolerance[0], atol=tolerance[1] * max(1.0, size), equal_nan=True)
        except AssertionError as error:
            return f"WRONG: {what}: {' '.join(str(error).split())[:200]}"
    return ""


def smoke(name: str, train: bool, backend: str, shapes: bool = False) -> Told:
    told = compared(name, train, backend, shapes)
    if not told.wrong:
        return told
    dynacompile.reset()
    with mock.patch.object(torch.compiler, "is_compiling", lambda: True):
        again = compared(name, train, backend, shapes)
    return told if again.wrong else replace(again, asks=True)


def compared(name: str, train: bool, backend: str, shapes: bool) -> Told:
    model, inputs = make(name)
    model.train(train)
    other, told, began = copy.deepcopy(model), Told(name), time.perf_counter()
    events: list[Any] = []
    first: list[Any] = []
    inputs_of_calls = [resized(inputs, *shape) for shape in SHAPES] if shapes else [inputs] * 2  # the second call shows what the first left behind
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(model, **OPTIONS[backend])

    for values in inputs_of_calls:
        before = len(events)
        want, got = step(other, values, train), step(compiled, values, train)
        if type(got) is not type(want):
            told.wrong = f"WRONG: {type(got).__name__}, eager's {type(want).__name__}"
        told.wrong = told.wrong or differences(results(got, model), results(want, other), TOLERANCE[backend])
        first = first or list(events)
        told.calls.append(sum(isinstance(e, Compiled) and e.ops > 0 for e in events[before:]))
    end()
    told.seconds = time.perf_counter() - began
    made = [e.ops for e in first if isinstance(e, Compiled)]
    told.graphs, told.ops = sum(ops > 0 for ops in made), sum(made)
    told.breaks = [f"[{e.code}] {e.reason} at {shortened(e.site)}" for e in first if isinstance(e, GraphBroke)]
    told.skipped = [f"{e.reason} at {shortened(e.site)}" for e in first if isinstance(e, FrameSkipped)]
    told.recompiles = sum(isinstance(e, Recompiled) for e in events)
    return told


def shortened(site: object) -> str:
    return str(site).replace(str(Path(transformers.__file__).parent), "transformers")


def rival(name: str, train: bool) -> Rival:
    """Graphs and breaks of torch.compile on the same call."""
    model, inputs = make(name)
    model.train(train)
    graphs: list[int] = []

    def keep(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.utils.counters.clear()
    with breaks_logged() as logged:
        step(torch.compile(model, backend=keep), inputs, train)
    broke = torch._dynamo.utils.counters["graph_break"]
    return Rival(sum(ops > 0 for ops in graphs), sum(broke.values()), sum(graphs), len(logged), len(set(logged)))


@contextmanager
def breaks_logged() -> Iterator[list[str]]:
    """The places of the breaks that torch.compile logs: one for each frame that it tries, also where it then skips the frame."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Graph break"):
                found.append(PLACE.findall(text)[0])

    torch._logging.set_logs(graph_breaks=True)
    logger, handler = logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks"), Handler()
    others, logger.handlers, logger.propagate = logger.handlers, [handler], False
    try:
        yield found
    finally:
        logger.handlers = others


def child(pipe: Any, errors: int, name: str, train: bool, backend: str, shapes: bool, with_rival: bool) -> None:
    os.dup2(errors, 2)  # what it raises is read from there
    torch.set_num_threads(1)
    pipe.send(smoke(name, train, backend, shapes))
    if with_rival:
        pipe.send(rival(name, train))


def isolated(name: str, train: bool, backend: str, shapes: bool, with_rival: bool, limit: float) -> Told:
    """`smoke`, then `rival`, in a process of its own, ended after `limit` seconds. What it failed by is the report."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    with tempfile.TemporaryFile() as errors:
        process = fork.Process(target=child, args=(theirs, errors.fileno(), name, train, backend, shapes, with_rival))
        with STARTING:  # packages with handlers of fork refuse two at once
            process.start()
        theirs.close()

        def receive() -> Any:
            try:
                return mine.recv() if mine.poll(limit) else f"not done after {limit} s"
            except EOFError:  # it ended before it had an answer
                errors.seek(0)
                return last_words(errors.read().decode(errors="replace"))

        told = receive()
        if isinstance(told, str):
            told = Told(name, wrong=f"FAILED: {told}")
        elif with_rival:
            found = receive()
            told.rival = Rival(failed=found) if isinstance(found, str) else found
        process.kill()
        process.join()
    return told


def last_words(errors: str) -> str:
    """The exception at the end of what a process wrote, and the place that raised it."""
    lines = [line.strip() for line in errors.strip().splitlines()] or ["the process died"]
    raised = next((i for i in reversed(range(len(lines))) if ERROR.match(lines[i])), len(lines) - 1)
    place = next((line for line in reversed(lines[:raised]) if line.startswith("File ")), "")
    return f"{' '.join(lines[raised:])[:300]} {place}".strip()


def summary(reports: list[Told]) -> str:
    whole = sum(r.is_whole for r in reports)
    wrong = sum(bool(r.wrong) for r in reports)
    asked = [r.name for r in reports if r.asks]
    lines = [f"{whole} of {len(reports)} in one graph ({whole / max(len(reports), 1):.1%}), {wrong} wrong or failed"]
    lines += [f"equal to eager that is told that it is compiled: {', '.join(asked)}"] if asked else []
    hit: Counter[str] = Counter()
    for report in reports:
        hit.update((report.breaks + report.skipped)[:1])  # the first one: most others follow from it
    lines += [f"{count:4d}  {reason}" for reason, count in hit.most_common()]
    return "\n".join(lines)


def stored(path: Path) -> dict[str, Told]:
    """What a file of `--out` has of each model, the last line of it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["name"]: Told(**line | {"rival": line["rival"] and Rival(**line["rival"])}) for line in lines}


def table(runs: list[dict[str, Told]]) -> str:
    """A row for each model: for each run our graphs and breaks, then torch.compile's; empty where it was not run."""
    counts = "graphs | breaks | torch.compile: graphs | breaks"
    rows = [f"| model | eval: {counts} | train: {counts} |", "|---" * 9 + "|"]
    for name in MODELS:
        cells = [cell for run in runs for cell in (ours_and_theirs(run[name]) if name in run else [""] * 4)]
        rows.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(rows)


def ours_and_theirs(told: Told) -> list[str]:
    rival = told.rival
    theirs = ["", ""] if rival is None else ["failed", ""] if rival.failed else [str(rival.graphs), str(rival.places)]
    return [str(told.graphs), str(told.places), *theirs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="model types; all by default")
    parser.add_argument("--train", action="store_true", help="train mode, with gradients")
    parser.add_argument("--backend", choices=OPTIONS, default="eager")
    parser.add_argument("--shapes", action="store_true", help="calls of several batch sizes and lengths")
    parser.add_argument("--rival", action="store_true", help="torch.compile's graphs and breaks beside ours")
    parser.add_argument("--out", type=Path, help="the file that gets a line of JSON for each model")
    parser.add_argument("--resume", action="store_true", help="leaves out the models that --out has")
    parser.add_argument("--table", type=Path, nargs=2, metavar=("EVAL", "TRAIN"), help="prints the table of docs/capture.md from files of --out")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each model")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    chosen = parser.parse_args()
    if chosen.table:
        print(table([stored(path) for path in chosen.table]))
        return
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    reports = list(stored(chosen.out).values()) if chosen.resume else []
    names = [name for name in chosen.names or MODELS if name not in {told.name for told in reports}]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for told in pool.map(lambda name: isolated(name, chosen.train, chosen.backend, chosen.shapes, chosen.rival, chosen.limit), names):
            reports.append(told)
            print(told.line(), flush=True)
            if chosen.out:
                with chosen.out.open("a") as out:
                    out.write(json.dumps(asdict(told)) + "\n")
    print(summary(reports))


if __name__ == "__main__":
    main()
