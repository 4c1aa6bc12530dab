"""What Weights & Biases gets beyond metrics: the events table, the artifact, the summary values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import wandb
from lightning.pytorch.loggers import Logger, WandbLogger

from dynacompile.callbacks.outcome import Outcome
from dynacompile.complaints import Reporting


def publish(loggers: Sequence[Logger], outcome: Outcome, files: Sequence[Path]) -> None:
    """To every W&B logger of `loggers`: a table of events, one artifact of `files`, the outcome's numbers as summary."""
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            continue
        with Reporting(f"the report to {type(logger).__qualname__}"):
            send(logger, outcome, files)


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
