"""Run by test_strategies.py: a fit of two processes that Lightning spawns. `python -m tests.callbacks.spawned_fit FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import CSVLogger

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.projects import QUIET, SIZE, Project, loader


class Counts(L.Callback):
    """Writes down, in each process, what its fit came to."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_fit_start(self, trainer, module):
        self.told: list[events.Event] = []
        self.end = dynacompile.subscribe(self.told.append)

    def on_train_end(self, trainer, module):
        self.end()
        again = sum(isinstance(event, events.Recompiled) for event in self.told)
        parts = sorted(event.region for event in self.told if isinstance(event, events.Compiled) and event.ops)
        (self.folder / f"rank{trainer.global_rank}").write_text(f"{' '.join(parts)}, {again} recompiles, loss {module.losses[-1]:.4f}")


def main(folder: Path) -> None:
    L.seed_everything(0, verbose=False)
    module = Project()
    options = {**QUIET, "max_epochs": 2, "log_every_n_steps": 2, "default_root_dir": folder, "logger": CSVLogger(folder, name="csv", version="")}
    trainer = L.Trainer(**options, devices=2, strategy="ddp_spawn", callbacks=[Counts(folder), DynamoCallback()])
    trainer.fit(module, loader(18 * SIZE), loader(4 * SIZE, 2))
    known = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert known["compile/recompiles"] == known["compile/graph_breaks"] == 0 < known["compile/seconds"] and known["compile/communication_exposed"] >= 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
