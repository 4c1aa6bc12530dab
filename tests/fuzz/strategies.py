"""Fits on two ranks of gloo under random strategies, options, modules and settings of the callback, with the callback and in eager.

`python -m tests.fuzz.strategies FIRST LAST` starts both ranks. Judged: losses, metrics and parameters; that the ranks know the same numbers; and that the third
epoch, which brings nothing new, tells of nothing.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dynacompile
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.projects import QUIET, SIZE, CountsUp, Gives, Manual, Metered, Project, Ran, left_nothing, loader, run
from tests.callbacks.strategies_fit import Blocks, full, of_ranks
from tests.distributed.ranks import Ended, start

WAIT = timedelta(seconds=60)


@dataclass(frozen=True)
class Program:
    """cls and strategy are made anew for each fit. settings: of the callback. options: of the trainer. rows: of data, for all ranks."""

    told: str
    cls: type[L.LightningModule]
    strategy: Callable[[], Strategy]
    settings: dict[str, Any]
    options: dict[str, Any]
    rows: int
    tolerance: float


def module_class(rng: random.Random, kind: str) -> type[L.LightningModule]:
    base: Any = rng.choice((Project, CountsUp, Metered, Gives, Manual) if kind == "ddp" else (Project, CountsUp, Gives))
    deep, by_part, momentum = kind != "tensor" and rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.4

    class Made(base):
        def __init__(self):
            super().__init__()
            if deep:
                self.net = Blocks()

        def configure_model(self):
            if kind == "fsdp2":
                parts = self.net.blocks if deep else (self.net[0], self.net[2])
                for part in (*(parts if by_part else ()), self.net):
                    fully_shard(part, mesh=self.device_mesh["data_parallel"])
            elif kind == "tensor":
                parallelize_module(self.net, self.device_mesh["tensor_parallel"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

        def configure_optimizers(self):
            parameters = self.parameters()
            made = torch.optim.SGD(parameters, lr=self.lr, momentum=0.9) if momentum else torch.optim.AdamW(parameters, lr=self.lr)
            return {"optimizer": made, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(made, 2, 0.9), "interval": "step"}}

    Made.__name__ = f"{base.__name__} deep={deep} by_part={by_part} momentum={momentum}"
    return Made


def program(seed: int) -> Program:
    rng = random.Random(seed)
    kind = rng.choices(("ddp", "fsdp2", "tensor"), (4, 2, 1))[0]
    cls = module_class(rng, kind)
    options: dict[str, Any] = {}
    manual = "Manual" in cls.__name__
    if not manual:
        options["accumulate_grad_batches"] = rng.choice((1, 1, 2, 3))
        if rng.random() < 0.4:
            options["gradient_clip_val"] = 0.3
    if kind == "ddp" and rng.random() < 0.2:
        options["precision"] = "bf16-mixed"
    once = options.get("accumulate_grad_batches", 2) == 1  # torch has static graphs for that alone
    ddp: dict[str, Any] = {
        name: True for name in ("static_graph", "gradient_as_bucket_view", "find_unused_parameters") if rng.random() < 0.25 and (once or name != "static_graph")
    }
    if rng.random() < 0.3:
        ddp["bucket_cap_mb"] = 0.0005
    if rng.random() < 0.3:
        ddp["ddp_comm_hook"] = rng.choice((allreduce_hook, bf16_compress_hook))
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1} if kind == "fsdp2" else {"data_parallel_size": 1, "tensor_parallel_size": 2}
    if kind == "ddp":
        strategy: Callable[[], Strategy] = lambda: DDPStrategy(process_group_backend="gloo", timeout=WAIT, **ddp)  # noqa: E731
    else:
        strategy = lambda: ModelParallelStrategy(timeout=WAIT, **sizes)  # noqa: E731
    settings: dict[str, Any] = {"trace": rng.random() < 0.3, "dynamic": rng.choice((None, None, False, True))}
    if rng.random() < 0.4:
        settings |= {"modules": [rng.choice(("net", "net.*"))], "step": rng.random() < 0.3}
    if rng.random() < 0.3:
        settings["gradient_bytes"] = 1
    half = options.get("precision") or ddp.get("ddp_comm_hook") is bf16_compress_hook and kind == "ddp"
    rows = SIZE * rng.choice((8, 12)) + rng.choice((0, 0, 2))
    told = f"{kind} {cls.__name__} {ddp if kind == 'ddp' else ''} {options} {settings} {rows} rows"
    return Program(told, cls, strategy, settings, options, rows, 3e-2 if half else 1e-4)


class Late(L.Callback):
    """What is told in the third epoch's training."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.ends: list[Callable[[], None]] = []

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2:
            self.ends.append(dynacompile.subscribe(self.told.append))

    def on_train_epoch_end(self, trainer, module):
        while self.ends:
            self.ends.pop()()


def fit(made: Program, folder: str, *callbacks: L.Callback) -> Ran:
    L.seed_everything(0, verbose=False)
    module = made.cls()
    options = {**QUIET, "max_epochs": 3, "log_every_n_steps": 2, "default_root_dir": folder, **made.options}
    ran = Ran(module, L.Trainer(**options, devices=2, strategy=made.strategy(), callbacks=list(callbacks)))
    run(ran, lambda: ran.trainer.fit(module, loader(made.rows), loader(4 * SIZE, 2)))
    return ran


def check(made: Program, folder: str) -> None:
    plain = fit(made, folder)
    callback, late = pickle.loads(pickle.dumps(DynamoCallback(made.settings))), Late()
    compiled = fit(made, folder, callback, late)
    known = of_ranks({name: float(value) for name, value in compiled.trainer.callback_metrics.items() if name.startswith("compile/") and value == value})
    parameters = [(name, full(mine), full(theirs)) for (name, mine), theirs in zip(compiled.module.named_parameters(), plain.module.parameters(), strict=True)]
    # no collective from here on: one rank alone may raise
    assert known[0] == known[1], "the ranks know different numbers"
    (losses, metrics), (others, other_metrics) = compiled.numbers(), plain.numbers()
    assert losses and losses == pytest.approx(others, rel=made.tolerance)
    assert metrics.keys() == other_metrics.keys()
    for name in metrics.keys() - {name for name in metrics if "accuracy" in name or name.startswith("metric")}:  # of a few rows: rounding decides one
        assert metrics[name] == pytest.approx(other_metrics[name], rel=made.tolerance, abs=made.tolerance), name
    for name, mine, theirs in parameters:
        torch.testing.assert_close(mine, theirs, rtol=30 * made.tolerance, atol=made.tolerance, msg=lambda text, name=name: f"{name}: {text}")
    constant = made.settings["dynamic"] is False  # then each rate of the scheduler is an entry of its own
    assert constant or not late.told, f"the third epoch tells of {late.told[:3]}"
    left_nothing(compiled)


def compare(seed: int) -> str:
    """What differs under a seed, empty where nothing does. Both ranks call this at the same time, in a process group."""
    made = program(seed)
    dynacompile.reset()
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(made, folder)
        except Exception:  # noqa: BLE001  (it is what this looks for)
            found = f"rank {dist.get_rank()}, seed {seed}: {made.told}\n{traceback.format_exc()[-1500:]}"
            print(found, file=sys.stderr, flush=True)  # at once: the other rank may wait for this one
        else:
            found = ""
    dist.barrier()
    return found


def both(first: int, last: int, timeout: float = 280) -> list[Ended]:
    return start("tests.fuzz.strategies", "rank", str(first), str(last), timeout=timeout)


def main() -> None:
    if sys.argv[1] != "rank":
        for ended in both(int(sys.argv[1]), int(sys.argv[2]), timeout=36000):
            print("\n".join(line for line in ended.out.splitlines() if line.startswith("rank ")))
            print(ended.err[-4000:] if ended.code else "", file=sys.stderr)
        return
    dist.init_process_group("gloo", timeout=WAIT)
    seeds = range(int(sys.argv[2]), int(sys.argv[3]))
    differing = [found for seed in seeds if (found := compare(seed))]
    print(f"rank {dist.get_rank()}: {len(differing)} of {len(seeds)} programs differ", flush=True)
    dist.destroy_process_group()
    sys.exit(bool(differing))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
