"""Compiles the programs of `library_programs.py` and `library_mathematics.py` and compares them with eager: results, gradients by their effect on parameters,
and random state over three steps, to the bit with backend="eager" (capture alone), within float32's tolerances with the kernels. Programs whose library is not
there are left out.

Prints a line for each program: graphs and breaks of ours and, with --rival, of torch.compile, in a process of its own, as its backend is called and
as its counter has them.

Usage: python scripts/smoke_libraries.py [--backend eager|kernels] [--rival] [--path FOLDER] [names]

--path: a folder of libraries, as `pip install --no-deps --target FOLDER` fills it, behind those that are installed.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import library_mathematics  # noqa: F401  (its programs are among PROGRAMS)
import torch
from library_programs import PROGRAMS, WITHOUT_TRAINING
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke

TOLERANCE = {"eager": 0.0, "kernels": 2e-3}
TURNS = 3
LIMIT = 300.0  # seconds


@dataclass
class Told:
    """What one program showed. missing: the library that is not there. wrong: what differed from eager, or was raised. breaks: places by reason, in
    the order in which they came."""

    graphs: int = 0
    breaks: list[str] = field(default_factory=list)
    wrong: str = ""
    missing: str = ""


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def train(module: torch.nn.Module, step: Callable[[int], Any], trains: bool) -> list[torch.Tensor]:
    """What a few steps give, the parameters after them, and a random number."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-2) if trains and parameters else None
    found: list[torch.Tensor] = []
    for turn in range(TURNS):
        torch.manual_seed(turn)
        made = tensors(step(turn))
        losses = [t.abs().mean() if t.is_complex() else t.float().mean() for t in made if t.requires_grad]
        if optimizer is not None and losses:
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
        found += [t.detach().clone() for t in made]
    return [*found, *(p.detach().clone() for p in parameters), torch.rand(1)]


def differences(got: list[torch.Tensor], want: list[torch.Tensor], tolerance: float) -> str:
    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in want]:
        return "WRONG: other tensors"
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True):
            return f"WRONG: tensor {n} of {len(got)}, by up to {(a - b).abs().max().item():.1e}"
    return ""


def ours(name: str, backend: str) -> Told:
    torch.manual_seed(0)
    try:
        module, call = PROGRAMS[name]()
    except ImportError as error:
        return Told(missing=str(error))
    other, told, trains, events = copy.deepcopy(module), Told(), name not in WITHOUT_TRAINING, []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(call, isolate_recompiles=True, **({"backend": "eager"} if backend == "eager" else {}))
    try:
        want = train(other, lambda turn: call(other, turn), trains)
        told.wrong = differences(train(module, lambda turn: compiled(module, turn), trains), want, TOLERANCE[backend])
    except Exception:  # noqa: BLE001  (told, with its place)
        told.wrong = f"FAILED: {traceback.format_exc(limit=-3)}"
    end()
    told.graphs = sum(isinstance(e, Compiled) and e.ops > 0 for e in events)
    places = {(e.site, e.code): f"[{e.code}] {e.reason} at {e.site}" for e in events if isinstance(e, GraphBroke)}
    places |= {(e.site, ""): f"skipped: {e.reason} at {e.site}" for e in events if isinstance(e, FrameSkipped)}
    told.breaks = list(places.values())
    return told


def rival(name: str) -> tuple[int, int] | str:
    """Graphs and breaks of torch.compile; what it raised."""
    torch.manual_seed(0)
    module, call = PROGRAMS[name]()
    graphs: list[int] = []

    def keep(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(call, backend=keep)
    try:
        train(module, lambda turn: compiled(module, turn), name not in WITHOUT_TRAINING)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return sum(ops > 0 for ops in graphs), sum(torch._dynamo.utils.counters["graph_break"].values())


def isolated(run: Callable[..., Any], *args: Any) -> Any:
    """In a process of its own: some libraries change others."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: theirs.send(run(*args)))
    process.start()
    theirs.close()
    try:
        return mine.recv() if mine.poll(LIMIT) else "not done in time"
    except EOFError:
        return "the process ended"
    finally:
        process.kill()
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--backend", choices=TOLERANCE, default="eager")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--path")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.path:
        sys.path.append(given.path)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failed, rows, whys = 0, [], []
    for name in PROGRAMS:
        if given.names and not any(wanted in name for wanted in given.names):
            continue
        told = isolated(ours, name, given.backend)
        if isinstance(told, str):
            told = Told(wrong=f"FAILED: {told}")
        if told.missing:
            print(f"{name}: left out, {told.missing}", file=sys.stderr)
            continue
        failed += bool(told.wrong)
        other = isolated(rival, name) if given.rival else ""
        rows.append(f"| {name} | {told.graphs} | {len(told.breaks)} | {' | '.join(map(str, other)) if isinstance(other, tuple) else f'{other} |'} |")
        whys += [f"{name}: {why}" for why in ([told.wrong] if told.wrong else []) + told.breaks]
        print(rows[-1], flush=True)
    print("\n" + "\n".join(whys))
    print(f"\n{len(rows)} programs, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
