"""Random programs over DTensors on two ranks of gloo, compiled and in eager: results, placements, gradients, what was written, kinds of errors.

`python -m tests.fuzz.placed FIRST LAST [--backend NAME] [--show]` starts both ranks. Numbers are small ints, so that sums are exact in any order and values
must agree to the bit. Seeds take turns: with gradients, without, and with writes. In the last call of a program its inputs are placed in another way.
Seeds take turns as well in how collectives are planned: how many may be under way, whether gathers are made again, and which are joined.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke
from tests.distributed.ranks import DEVICE, Ended, join, start

WIDTH, MANY = 4, 6
PLACES = (Shard(0), Shard(1), Replicate())
CALLS = 3
GRADIENTS, PLAIN, WRITES = range(3)
PLANS: tuple[dict[str, Any], ...] = ({}, {"regather": True}, {"flight_bytes": 0}, {"regather": True, "flight_bytes": 0, "collective_bytes": 256})
BACKENDS = ("reference", "default", "aot_eager")


def small(x: Any) -> Any:
    return x.clamp(-9, 9)


def local(x: Any) -> Any:
    inside = x.to_local() if isinstance(x, DTensor) else x
    return DTensor.from_local(inside * 2, x.device_mesh, x.placements, shape=x.shape, stride=x.stride()) if isinstance(x, DTensor) else inside * 2


def placed(x: Any, place: Any) -> Any:
    return x.redistribute(placements=[place]) if isinstance(x, DTensor) else x + 0


def without_gradients(x: Any) -> Any:
    with torch.no_grad():
        return x * 2


ONE: dict[str, Callable[[Any], Any]] = {  # keep sizes or not; numbers that grow are cut off behind each
    "double": lambda x: x * 2,
    "negate": lambda x: x.neg() + 1,
    "relu": torch.relu,
    "positive": lambda x: torch.where(x > 0, x, x * 0),
    "rows": lambda x: x.sum(0, keepdim=True),
    "columns": lambda x: x.sum(-1, keepdim=True),
    "total": lambda x: x.sum(),
    "largest": lambda x: x.amax(-1, keepdim=True),
    "turned": lambda x: x.t() if x.dim() == 2 else x,
    "digits": lambda x: x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) if x.dim() and x.shape[-1] % 2 == 0 else x,
    "half": lambda x: x[:, : WIDTH // 2] if x.dim() == 2 else x,
    "joined": lambda x: torch.cat([x, x + 1], -1)[..., :WIDTH] if x.dim() else x,
    "local": local,
    "cut": lambda x: placed(x, Shard(0)) if x.dim() else x,
    "cut_across": lambda x: placed(x, Shard(1)) if x.dim() == 2 else x,
    "whole": lambda x: placed(x, Replicate()),
    "apart": without_gradients,
    "detached": lambda x: x.detach() + 1,
    "counted": lambda x: x + (x.size(0) if x.dim() else 1) + x.dim(),
    "asked": lambda x: x * 2 if isinstance(x, DTensor) and x.placements[0].is_shard() else x + 1,
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "added": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "larger": torch.maximum,
    "matrices": lambda x, y: x @ y.t() if x.dim() == y.dim() == 2 else x + y,
    "lists": lambda x, y: torch._foreach_add([x, y], 1)[1] if x.dim() else y + 1,
}
WRITE: dict[str, Callable[[Any], Any]] = {
    "mul_": lambda x: x.mul_(2),
    "add_": lambda x: x.add_(1),
    "clamp_": lambda x: x.clamp_(-5, 5),
    "zero_": lambda x: x.mul_(0),
    "copy_": lambda x: x.copy_(x * 2 + 1),
    "small_": lambda x: x.clamp_(-9, 9),
}


@dataclass(frozen=True)
class Program:
    """text: of a function of two DTensors and a list of them. rows: of the first two. places: how each input lies on the mesh; later: in the last call."""

    seed: int
    story: int
    rows: int
    text: str
    places: tuple[Any, ...]
    later: tuple[Any, ...]

    def function(self) -> Callable[..., list[Any]]:
        names: dict[str, Any] = {**ONE, **TWO, **WRITE, "small": small, "DTensor": DTensor, "torch": torch}
        exec(compile(self.text, f"<placed {self.seed}>", "exec"), names)
        return names["run"]


class Writer:
    """Draws the lines of a program. values: the names of its tensors."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.shown = rng, ["def run(x, y, many):"], list[str]()
        self.values = ["x", "y", *(f"many[{k}]" for k in range(MANY))]

    def value(self) -> str:
        return self.rng.choice(self.values)

    def made(self, text: str) -> None:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values.append(name)
        self.shown.append(name)

    def step(self, kind: str) -> None:
        if kind == "one":
            self.made(f"small({self.rng.choice(list(ONE))}({self.value()}))")
        elif kind == "two":
            self.made(f"small({self.rng.choice(list(TWO))}({self.value()}, {self.value()}))")
        elif kind == "whole":
            value = self.value()
            self.made(f"{value}.full_tensor() if isinstance({value}, DTensor) else {value} + 0")
        elif kind == "write":
            self.lines.append(f"{self.rng.choice(list(WRITE))}({self.rng.choice(self.values[: 2 + MANY])})")
        else:
            self.several(kind)

    def several(self, kind: str) -> None:
        """Over tensors that lie on the mesh in several ways."""
        name, which = f"v{len(self.lines)}", self.rng.choice(("many", "many[1:]", "[x, *many]", "[y, *many, x]"))
        if kind == "writes":
            self.lines += [f"for item in {which}:", f"    {self.rng.choice(list(WRITE))}(item)", "    small_(item)"]
            return
        if kind == "lists":
            self.lines += [f"{name} = torch._foreach_mul([item + 1 for item in {which}], 2)", f"torch._foreach_add_({name}, {which})"]
        else:
            self.lines += [f"{name} = []", f"for item in {which}:", f"    {name}.append(small({self.rng.choice(list(ONE))}(item)))"]
        self.values += [f"{name}[{k}]" for k in range(MANY - 1)]
        self.shown.append(f"*{name}")

    def text(self) -> str:
        return "\n    ".join([*self.lines, f"return [{', '.join(self.shown)}]\n"])


def program(seed: int) -> Program:
    rng = random.Random(seed)
    story, writer = seed % 3, Writer(rng)
    kinds = ("one", "two", "loop", "lists", "whole") + (("write", "writes") if story == WRITES else ())
    for kind in rng.choices(kinds, (6, 4, 1, 1, 1, 2, 2)[: len(kinds)], k=rng.randint(4, 9)):
        writer.step(kind)
    same = rng.random() < 0.4
    places = tuple(rng.choice(PLACES[:1] if same and k > 1 else PLACES) for k in range(2 + MANY))
    return Program(seed, story, rng.choice((4, 4, 4, 3, 1)), writer.text(), places, tuple(rng.choice(PLACES) for _ in places))


def inputs(made: Program, mesh: DeviceMesh, call: int) -> list[torch.Tensor]:
    found = []
    for k, place in enumerate(made.later if call == CALLS - 1 else made.places):
        numbers = torch.Generator().manual_seed(100 * made.seed + 10 * call + k)
        whole = torch.randint(-2, 3, (made.rows if k < 2 else 4, WIDTH), generator=numbers).float().to(DEVICE)
        found.append(distribute_tensor(whole, mesh, [place]).requires_grad_(made.story == GRADIENTS))
    return found


def shown(value: Any) -> Any:
    if value is None:
        return None
    inside = value._local_tensor if isinstance(value, DTensor) else value
    where = (value.placements, value.shape, value.stride()) if isinstance(value, DTensor) else ()
    return type(value), where, value.dtype, inside.shape, value.requires_grad, value.is_leaf, inside.detach().tolist()


def shown_gradient(grad: torch.Tensor | None) -> Any:
    """By its whole value: behind a graph break its placements may differ from eager's (docs/distributed.md)."""
    return (type(grad), *shown(grad.full_tensor())) if isinstance(grad, DTensor) else shown(grad)


def story(made: Program, call: Callable[..., list[Any]], given: list[Any]) -> list[Any]:
    """All that is seen of one call."""
    x, y, *many = given
    try:
        results = call(x, y, many)
    except Exception as error:  # noqa: BLE001  (errors are compared)
        return [type(error), *map(shown, given)] if made.story == WRITES else [type(error)]
    seen = [shown(value) for value in results]
    differentiable = [value for value in results if value.requires_grad]
    if differentiable:
        total = sum((value.full_tensor() if isinstance(value, DTensor) else value).sum() for value in differentiable)
        total.backward()  # type: ignore[union-attr]
        seen += [shown_gradient(value.grad) for value in given]
    return seen + [shown(value) for value in given]


def compare(seed: int, backend: str = "reference", show: bool = False) -> str:
    """What differs under a seed, empty where nothing does. Both ranks call this at the same time."""
    made, mesh, rank = program(seed), init_device_mesh(DEVICE, (2,)), dist.get_rank()
    function = made.function()
    if show and rank == 0:
        print(made.text, made, flush=True)
    found = ""
    dynacompile.reset()
    broken: list[str] = []

    def told(event: Any) -> None:
        if isinstance(event, (GraphBroke, FrameSkipped)) and (event.code == "internal" or show):
            broken.append(f"[{event.code}] {event.reason}")

    end = dynacompile.subscribe(told)
    options = {"verify": True, "fallback": "none", "reference": backend == "reference", **PLANS[seed // 3 % len(PLANS)]}
    compiled = dynacompile.compile(function, backend="default" if backend == "reference" else backend, options=options)
    try:
        for call in range(CALLS):
            wanted = story(made, function, inputs(made, mesh, call))
            given = story(made, compiled, inputs(made, mesh, call))
            differing = [k for k, (one, other) in enumerate(zip(given, wanted)) if one != other]
            if len(given) != len(wanted) or differing:
                k = differing[0] if differing else 0
                found = found or f"rank {rank}, seed {seed}: number {differing[:1]} of {len(wanted)} differs in call {call}:\n{given[k]}\n{wanted[k]}"
    except Exception:  # noqa: BLE001  (it is what this looks for)
        found = f"rank {rank}, seed {seed}: {traceback.format_exc()[-1500:]}"
    end()
    if any("[internal]" in text for text in broken):
        found = found or f"rank {rank}, seed {seed}: {broken}"
    if found or show:
        print(found, *broken, sep="\n", file=sys.stderr, flush=True)
    dist.barrier()
    return found


def both(first: int, last: int, *options: str, timeout: float = 280) -> list[Ended]:
    return start("tests.fuzz.placed", str(first), str(last), "--rank", *options, timeout=timeout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="reference", choices=BACKENDS)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--rank", action="store_true", help="be one of the two")
    given = parser.parse_args()
    if not given.rank:
        show = ["--show"] if given.show else []
        for ended in both(given.first, given.last, "--backend", given.backend, *show, timeout=36000):
            print(ended.out.strip(), ended.err[-6000:], sep="\n")
        return
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # it logs the errors that programs raise
    join(60)
    seeds = range(given.first, given.last)
    differing = [seed for seed in seeds if compare(seed, given.backend, given.show)]
    print(f"rank {dist.get_rank()}: {len(differing)} of {len(seeds)} programs differ {differing or ''}".rstrip(), flush=True)
    dist.destroy_process_group()
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
