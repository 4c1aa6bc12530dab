"""What Weights & Biases gets beyond metrics: the events table, the artifact, the summary values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import wandb
from lightning.pytorch.loggers import WandbLogger

from dynacompile.callbacks.outcome import Outcome


def send(logger: WandbLogger, outcome: Outcome, files: Sequence[Path]) -> None:
    run = logger.experiment
    table = wandb.Table(columns=["batch", "event", "region", "what"], data=[list(row) for row in outcome.ledger.rows()])
    run.log({"compile/events": table})
    run.summary.update({f"compile/{name}": value for name, value in outcome.metrics().items()})
    if files:
        artifact = wandb.Artifact(f"compile-{run.id}", type="compile-report")
        for path in files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
