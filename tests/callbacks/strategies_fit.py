"""Run by test_strategies.py in two processes of gloo: fits under Lightning's strategies, with the callback and without. Prints the name of each case that held.

`python -m tests.callbacks.strategies_fit FOLDER [CASE]...`, started once for each rank.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.projects import QUIET, SIZE, STEPS, Project, Ran, left_nothing, loader, run

WAIT = timedelta(seconds=60)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + F.gelu(self.linear(x))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Deep(Project):
    """Of equal blocks."""

    def __init__(self):
        super().__init__()
        self.net = Blocks()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Whole(Deep):
    """One group of shards."""

    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class ByBlock(Deep):
    def configure_model(self):
        for block in self.net.blocks:
            fully_shard(block, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class InTensors(Project):
    def configure_model(self):
        parallelize_module(self.net, self.device_mesh["tensor_parallel"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


class BreaksOnOneRank(Project):
    def training_step(self, batch, batch_idx):
        if self.global_rank == 1:
            print(end="")
        return super().training_step(batch, batch_idx)


def ddp(**options: Any) -> Callable[[], Strategy]:
    return lambda: DDPStrategy(process_group_backend="gloo", timeout=WAIT, **options)


def fsdp2() -> Strategy:
    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, timeout=WAIT)


def tensor_parallel() -> Strategy:
    return ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2, timeout=WAIT)


@dataclass(frozen=True)
class Case:
    """entries: with graphs, by part, and recompiles, on each rank. breaks: by rank. reduces: whether DDP does."""

    cls: type[Project]
    strategy: Callable[[], Strategy]
    entries: Mapping[str, int] = field(default_factory=lambda: STEPS)
    recompiles: int = 0
    breaks: tuple[int, int] = (0, 0)
    reduces: bool = True
    compile: Any = "default"
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4


BY_SHARDS = {"validation_step": 2, "training_step": 3, "optimizer_step": 1}
CLIPPED = {"gradient_clip_val": 0.1}
CASES = {
    "ddp": Case(Project, ddp()),
    "ddp, a rank breaks its graphs": Case(BreaksOnOneRank, ddp(), breaks=(0, 1)),
    "ddp, static graph, compressed": Case(Deep, ddp(static_graph=True, ddp_comm_hook=bf16_compress_hook), tolerance=2e-2),
    "ddp, accumulation": Case(Deep, ddp(), options={"accumulate_grad_batches": 3}),
    "fsdp2": Case(Whole, fsdp2, BY_SHARDS, breaks=(4, 4), reduces=False, options=CLIPPED),
    "fsdp2, blocks": Case(ByBlock, fsdp2, {"net.blocks.0": 2, "net.blocks.1": 1}, 2, (0, 0), False, {"modules": ["net.blocks.*"], "step": False}),
    "tensor parallel": Case(InTensors, tensor_parallel, reduces=False, options=CLIPPED),
}


def fit(case: Case, folder: Path, callback: DynamoCallback | None) -> Ran:
    L.seed_everything(0, verbose=False)
    module = case.cls()
    loggers = [CSVLogger(folder, name="csv", version=""), WandbLogger(save_dir=folder, offline=True)] if callback else False
    options = {**QUIET, "max_epochs": 2, "log_every_n_steps": 2, "default_root_dir": folder, "logger": loggers, **case.options}
    trainer = L.Trainer(**options, devices=2, strategy=case.strategy(), callbacks=[callback] if callback else [])
    ran = Ran(module, trainer)
    run(ran, lambda: trainer.fit(module, loader(18 * SIZE), loader(4 * SIZE, 2)))
    if callback and trainer.is_global_zero:
        sys.modules["wandb"].finish()
    return ran


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def of_ranks(value: Any) -> list[Any]:
    found = [None, None]
    dist.all_gather_object(found, value)
    return found


KINDS = (events.GraphBroke, events.Recompiled, events.FrameSkipped)


def check(case: Case, folder: Path) -> None:
    plain = fit(case, folder / "plain", None)
    (folder / f"loss{plain.trainer.global_rank}").write_text(f"{plain.module.losses[-1]:.4f}")
    callback = DynamoCallback(case.compile)
    compiled = fit(case, folder / "compiled", callback)
    (losses, metrics), (others, other_metrics) = compiled.numbers(), plain.numbers()
    assert losses and losses == pytest.approx(others, rel=case.tolerance)
    assert metrics == pytest.approx(other_metrics, rel=case.tolerance)
    for (name, mine), theirs in zip(compiled.module.named_parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(full(mine), full(theirs), rtol=10 * case.tolerance, atol=case.tolerance, msg=lambda text, name=name: f"{name}: {text}")
    told = [f"{type(e).__name__}: {e.site} {getattr(e, 'reason', '') or getattr(e, 'failed', '')}" for e in compiled.told if isinstance(e, KINDS)]
    assert compiled.entries == case.entries, (compiled.entries, told)
    assert compiled.count(events.Recompiled) == case.recompiles and not compiled.count(events.LimitHit), told
    rank = compiled.trainer.global_rank
    assert compiled.count(events.GraphBroke) == case.breaks[rank], told
    left_nothing(compiled)
    assert callback.outcome is not None
    assert "left to Python" not in dict(callback.outcome.notes)
    check_numbers(case, callback, {name: float(value) for name, value in compiled.trainer.callback_metrics.items() if name.startswith("compile/")})
    dist.barrier()
    if rank == 0:
        names = sorted(p.name for p in (folder / "compiled").rglob("*") if p.is_file())
        for once in ("summary.json", "compile_report.html", "compile_events.jsonl", "metrics.csv"):
            assert names.count(once) == 1, (once, names)
        assert len(list((folder / "compiled" / "wandb").glob("offline-run-*"))) == 1


def check_numbers(case: Case, callback: DynamoCallback, known: dict[str, float]) -> None:
    """What loggers and callbacks know is the same on both ranks: the largest seconds, the sum of breaks."""
    assert callback.outcome is not None
    mine, theirs = of_ranks({name: value for name, value in known.items() if value == value})
    assert mine == theirs
    assert known["compile/seconds"] == pytest.approx(max(of_ranks(callback.outcome.ledger.compile_seconds)))
    assert known["compile/graph_breaks"] == sum(case.breaks)
    communication = callback.outcome.communication
    if case.reduces:
        assert len(communication.samples) >= 3 and all(exposed >= 0 and hidden >= 0 for exposed, hidden in communication.samples)
        shares = of_ranks(communication.shares())
        assert known["compile/communication_exposed"] == pytest.approx(max(exposed for exposed, _ in shares))
        assert known["compile/communication_hidden"] == pytest.approx(max(hidden for _, hidden in shares))
        assert "of a step exposed" in dict(communication.rows())["communication"]
    else:
        assert "compile/communication_exposed" not in known
        assert dict(communication.rows())["communication"].startswith("not measured: ModelParallelStrategy")


def one_epoch(folder: Path, compiled: bool, devices: int, source: tuple[Path, int] | None = None, cls: type[Project] = Project, strategy: Any = None) -> Ran:
    """source: a checkpoint, and the epochs that it has behind it; the next one is trained."""
    L.seed_everything(0, verbose=False)
    module = cls()
    callbacks = [DynamoCallback(trace=False)] if compiled else []
    place, done = source or (None, 0)
    options = {**QUIET, "max_epochs": done + 1, "default_root_dir": folder, "callbacks": callbacks}
    trainer = L.Trainer(**options, devices=devices, strategy=strategy or (ddp()() if devices == 2 else "auto"))
    ran = Ran(module, trainer)
    run(ran, lambda: trainer.fit(module, loader(12 * SIZE), loader(4 * SIZE, 2), ckpt_path=place, weights_only=False if place else None))
    assert module.losses and trainer.current_epoch == done + 1
    return ran


def agree(compiled: Ran, plain: Ran, entries: Mapping[str, int] = STEPS) -> None:
    assert compiled.module.losses == pytest.approx(plain.module.losses, rel=1e-4) and compiled.trainer.global_step == plain.trainer.global_step
    for mine, theirs in zip(compiled.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(full(mine), full(theirs), rtol=1e-3, atol=1e-4)
    assert compiled.entries == entries and not compiled.count(events.Recompiled), compiled.entries


def from_one_rank_to_two_and_back(folder: Path) -> None:
    """Checkpoints of compiled runs go on with another number of ranks, compiled as in eager."""
    one, two = (folder / "one.ckpt", 1), (folder / "two.ckpt", 2)
    if dist.get_rank() == 0:
        one_epoch(folder, True, 1).trainer.save_checkpoint(one[0])
    dist.barrier()
    compiled = one_epoch(folder, True, 2, one)
    agree(compiled, one_epoch(folder, False, 2, one))
    compiled.trainer.save_checkpoint(two[0])
    if dist.get_rank() == 0:
        saved, alone = (torch.load(file, weights_only=False) for file, _ in (two, one))
        assert list(saved["state_dict"]) == list(alone["state_dict"]) and not [name for name in saved["callbacks"] if "Dynamo" in name]
        agree(one_epoch(folder, True, 1, two), one_epoch(folder, False, 1, two))


def sharded_checkpoints(folder: Path) -> None:
    """Of FSDP2: what a compiled run has saved goes on in eager, and the other way round."""
    mine, theirs = ((folder / name, 1) for name in ("mine.ckpt", "theirs.ckpt"))
    for place, _ in (mine, theirs):
        one_epoch(folder, place.name == "mine.ckpt", 2, None, Whole, fsdp2()).trainer.save_checkpoint(place)
    eager = one_epoch(folder, False, 2, mine, Whole, fsdp2())
    for source in (mine, theirs):
        agree(one_epoch(folder, True, 2, source, Whole, fsdp2()), eager, BY_SHARDS)


def synchronized_batch_norm(folder: Path) -> None:
    """torch has none on CPUs: DDP says so, in the words that it has without us, before anything is compiled."""

    class Normed(Project):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    told = []
    for compiled in (False, True):
        trainer = L.Trainer(
            **QUIET,
            max_epochs=1,
            num_sanity_val_steps=0,
            devices=2,
            strategy=ddp()(),
            sync_batchnorm=True,
            default_root_dir=folder,
            callbacks=[DynamoCallback(trace=False)] if compiled else [],
        )
        with pytest.raises(ValueError, match="SyncBatchNorm") as error:
            run(Ran(None, trainer), lambda trainer=trainer: trainer.fit(Normed(), loader()))
        told.append(str(error.value))
    assert told[0] == told[1]


def without_training(folder: Path) -> None:
    for stage in ("validate", "test", "predict"):
        found = []
        for callbacks in ([], [DynamoCallback(trace=False)]):
            L.seed_everything(0, verbose=False)
            trainer = L.Trainer(**QUIET, devices=2, strategy=ddp()(), default_root_dir=folder, callbacks=callbacks)
            ran = Ran(Project(), trainer)
            quiet = {} if stage == "predict" else {"verbose": False}
            given = run(ran, lambda ran=ran, quiet=quiet: getattr(ran.trainer, stage)(ran.module, loader(4 * SIZE), **quiet))  # noqa: B023
            found.append(torch.cat(given) if stage == "predict" else torch.tensor(list(given[0].values())))
        torch.testing.assert_close(*found)
        assert ran.entries == {"validation_step" if stage == "validate" else f"{stage}_step": 1}
        mine, theirs = of_ranks({name: float(value) for name, value in trainer.callback_metrics.items() if "compile/" in name})
        assert mine == theirs and mine[f"{stage}/compile/recompiles"] == 0


ALONE = {
    "without training": (without_training, 3),
    "from one rank to two and back": (from_one_rank_to_two_and_back, 3),
    "sharded checkpoints": (sharded_checkpoints, 3),
    "synchronized batch norm": (synchronized_batch_norm, 0),
}
"""Functions that make several fits, and how many of these are with the callback on the first rank."""
FURTHER = frozenset({"ddp, accumulation", "ddp, static graph, compressed", "fsdp2, blocks", "from one rank to two and back"})


def main() -> None:
    folder, *wanted = sys.argv[1:]
    failed = False
    dist.init_process_group("gloo", timeout=WAIT)
    for name in wanted or (*CASES, *ALONE):
        try:
            place = Path(folder) / name.replace(" ", "_")
            place.mkdir(parents=True, exist_ok=True)
            ALONE[name][0](place) if name in ALONE else check(CASES[name], place)
            print("held", name, flush=True)
        except Exception:  # noqa: BLE001  (told, and the process fails)
            traceback.print_exc()
            failed = True
        dist.barrier()
    dist.destroy_process_group()  # else gloo's threads may free tensors while the interpreter ends, which aborts the process
    sys.exit(int(failed))


if __name__ == "__main__":
    os.environ.setdefault("WANDB_SILENT", "true")
    main()
