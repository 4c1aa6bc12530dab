"""Random programs with functional collectives on two ranks of gloo: compiled on both, on both with small collectives joined, and on one beside a rank in
eager, with one of them late.

`python -m tests.fuzz.collectives FIRST LAST` starts both ranks. Numbers are small ints, so that sums are exact. A call that one rank leaves out or makes too
often ends in a time-out or in another program's numbers.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import dynacompile
from tests.distributed.ranks import Ended, start

RANKS, ROWS = [0, 1], 6
JOINED = (100, 1 << 10, 1 << 30)  # bytes
ops = torch.ops._c10d_functional
POINTWISE: tuple[Callable, ...] = (
    lambda x: x * 2,
    lambda x: x.clamp(-9, 9),
    lambda x: x.neg() + 1,
    lambda x: x.sum(0, keepdim=True).clamp(-5, 5) + x,
    torch.relu,
)
BEGUN: tuple[Callable, ...] = (
    lambda x: ops.all_reduce(x, "sum", "0"),
    lambda x: ops.all_reduce(x, "max", "0"),
    lambda x: ops.all_gather_into_tensor(x, 2, "0")[ROWS:],
    lambda x: ops.broadcast(x, 1, "0"),
    lambda x: ops.reduce_scatter_tensor(torch.cat([x, x + 1]), "sum", 2, "0"),
)
DONE: tuple[Callable, ...] = (
    lambda x: functional.all_reduce(x, "sum", RANKS),
    lambda x: functional.all_gather_tensor(x, 0, RANKS)[:ROWS],
    lambda x: functional.all_to_all_single(x, None, None, RANKS),
    lambda x: x + functional.all_reduce(torch.tensor(2.0), "sum", RANKS),
    lambda x: functional.all_reduce(x, "min", RANKS) + functional.all_reduce(x, "min", RANKS),
)


def program(seed: int) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """A function of one tensor. Its steps are drawn here, so that each call does the same."""
    rng = random.Random(seed)
    kinds = rng.choices(("pointwise", "begin", "done", "wait", "unused", "join"), (5, 3, 3, 3, 1, 2), k=rng.randint(6, 18))
    steps = [(kind, rng.randrange(1000), rng.randrange(1000)) for kind in kinds]

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        values, begun = [x], []
        for kind, first, second in steps:
            value = values[first % len(values)]
            if kind == "pointwise":
                values.append(POINTWISE[second % len(POINTWISE)](value))
            elif kind == "begin":
                begun.append(BEGUN[second % len(BEGUN)](value))
            elif kind == "done":
                values.append(DONE[second % len(DONE)](value) + 0)
            elif kind == "unused":
                DONE[second % 3](value)
            elif kind == "wait" and begun:
                values.append(ops.wait_tensor(begun.pop(second % len(begun))))
            elif kind == "join":
                values.append((value + values[second % len(values)]).clamp(-99, 99))
        return [*values[1:], *(ops.wait_tensor(one) for one in begun)]

    return run


def compare(seed: int) -> str:
    """What differs under a seed, empty where nothing does. Both ranks call this at the same time."""
    function, rank = program(seed), dist.get_rank()
    found = ""
    dynacompile.reset()
    compiled = dynacompile.compile(function, fullgraph=True)
    joined = dynacompile.compile(function, fullgraph=True, isolate_recompiles=True, options={"collective_bytes": JOINED[seed % len(JOINED)]})
    try:
        for k, both in enumerate((True, True, False, False, True)):
            numbers = torch.Generator().manual_seed(100 * seed + 10 * k + rank)
            x = torch.randint(-3, 4, (ROWS, 2 + 1000 * (seed % 2)), generator=numbers).float()
            wanted = [made.clone() for made in function(x)]
            if (seed + k) % 2 == rank:
                time.sleep(0.02)
            given = (joined if k == 4 else compiled if both or rank == k % 2 else function)(x)
            if not all(torch.equal(one + 0, other) for one, other in zip(given, wanted, strict=True)):
                found = f"rank {rank}, seed {seed}: results differ in call {k}"
    except Exception:  # noqa: BLE001  (it is what this looks for)
        found = f"rank {rank}, seed {seed}: {traceback.format_exc()[-1500:]}"
    if found:
        print(found, file=sys.stderr, flush=True)
    dist.barrier()
    return found


def both(first: int, last: int, timeout: float = 280) -> list[Ended]:
    return start("tests.fuzz.collectives", "rank", str(first), str(last), timeout=timeout)


def main() -> None:
    arguments: Any = sys.argv[1:]
    if arguments[0] != "rank":
        for ended in both(int(arguments[0]), int(arguments[1]), timeout=36000):
            print(ended.out.strip() or ended.err[-3000:])
        return
    warnings.simplefilter("ignore")  # of groups that are named by ranks
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    seeds = range(int(arguments[1]), int(arguments[2]))
    differing = sum(bool(compare(seed)) for seed in seeds)
    print(f"rank {dist.get_rank()}: {differing} of {len(seeds)} programs differ", flush=True)
    dist.destroy_process_group()
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
