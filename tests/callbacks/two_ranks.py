"""A fit on two ranks of gloo, for test_reports: rank 1 has one recompile, rank 0 none. `python -m tests.callbacks.two_ranks FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger

from dynacompile.callbacks import DynamoCallback
from dynacompile.events import Recompiled
from dynacompile.session import SESSION
from tests.callbacks.conftest import Regression, loader


class Recompiles(L.Callback):
    """Tells of as many recompiles as the rank's number says, one in each batch."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        if index < trainer.global_rank:
            SESSION.bus.emit(Recompiled(region="net", frame="f", entries=2, limit=8, failed=("k: 1 -> 2",), site="", seconds=0.5, override=""))


def main(folder: Path) -> None:
    callback = DynamoCallback({"enabled": False, "measure_steps": 0})
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=CSVLogger(folder, name="csv", version=""),
        log_every_n_steps=2,
        callbacks=[Recompiles(), callback],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Regression(), loader(), loader())
    known = {name: float(value) for name, value in trainer.callback_metrics.items()}
    (folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(known))
    torch.distributed.destroy_process_group()  # else gloo's threads may free tensors while the interpreter ends, which aborts the process


if __name__ == "__main__":
    main(Path(sys.argv[1]))
