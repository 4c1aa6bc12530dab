"""Run by test_elastic.py under torchrun: a fit on two ranks, one of which is killed once in the second epoch. `elastic_fit.py FOLDER`.

Each life of a rank, before the kill (0) and after it (1), writes what the compiler had to build into FOLDER/RANK-LIFE, and the last one whether it ended as a
fit in eager that nobody disturbs. Torchrun may start the ranks anew for another reason, too: gloo's ranks do not always find each other.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.projects import QUIET, SIZE, Project, loader

EPOCHS = 3
KILLED = Path(sys.argv[1]) / "killed"
LIFE = int(KILLED.exists())


class Killed(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if LIFE == 0 and trainer.current_epoch == 1 and batch_idx == 1 and trainer.global_rank == 1:
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class WritesLooks(L.Callback):
    """How often the store had what was looked for and how often not, the epochs behind a start, and recompiles: a line whenever an epoch ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.told: list[events.Event] = []
        dynacompile.subscribe(self.told.append)

    def on_train_epoch_start(self, trainer, module):
        self.begun = getattr(self, "begun", trainer.current_epoch)

    def on_train_epoch_end(self, trainer, module):
        looks = [event.hit for event in self.told if isinstance(event, events.CacheLooked)]
        again = sum(isinstance(event, events.Recompiled) for event in self.told)
        text = f"from epoch {self.begun}: {sum(looks)} loaded, {len(looks) - sum(looks)} built, {again} recompiles"
        (self.folder / f"{trainer.global_rank}-{LIFE}").write_text(text)


def fit(folder: Path, *callbacks: L.Callback, source: str | None = None) -> Project:
    L.seed_everything(0, verbose=False)
    module = Project()
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60))
    options = {**QUIET, "enable_checkpointing": source is not None, "max_epochs": EPOCHS, "default_root_dir": folder}
    trainer = L.Trainer(**options, devices=2, strategy=strategy, callbacks=list(callbacks))
    trainer.fit(module, loader(12 * SIZE), loader(4 * SIZE, 2), ckpt_path=source, weights_only=False)
    return module


def main(folder: Path) -> None:
    saves = ModelCheckpoint(folder, save_last=True, every_n_epochs=1)
    compiled = fit(folder, DynamoCallback(trace=False), WritesLooks(folder), saves, Killed(), source="last")
    plain = fit(folder)
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    print("held", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
