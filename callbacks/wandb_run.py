"""What Weights & Biases gets beyond metrics: the settings and versions as config, a table of events, a chart of step times, the summary, one artifact.

This module alone imports wandb. It is loaded where a WandbLogger is among the loggers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger

from dynacompile.callbacks.ledger import COLUMNS
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.texts import CONFIG_KEY
from dynacompile.callbacks.trials import COLUMNS as TRIAL_COLUMNS


def configure(logger: WandbLogger, resolved: Mapping[str, Any]) -> None:
    """The run's config gets the settings as they are in force, and versions, under one key of ours: others are the user's."""
    logger.experiment.config.update({CONFIG_KEY: dict(resolved)}, allow_val_change=True)


def send(logger: WandbLogger, outcome: Outcome, numbers: Mapping[str, float], prefix: str, step: int, files: Sequence[Path]) -> None:
    """numbers: by their whole name, for the summary. prefix: what the names of table and chart begin with. files: of the artifact."""
    run = logger.experiment
    shown: dict[str, Any] = {f"{prefix}events": wandb.Table(columns=list(COLUMNS), data=[list(told) for told in outcome.ledger.told()])}
    if outcome.times is not None and outcome.times.compiled is not None:
        times = wandb.Table(columns=["step", "ms"], data=[["eager", outcome.times.eager], ["compiled", outcome.times.compiled]])
        shown[f"{prefix}step_ms"] = wandb.plot.bar(times, "step", "ms", title="milliseconds of a training step, before and after compiling")
    if outcome.trials:
        shown[f"{prefix}auto"] = wandb.Table(columns=list(TRIAL_COLUMNS), data=[list(trial.told()) for trial in outcome.trials])
    logger.log_metrics(shown, step=step)
    run.summary.update(dict(numbers))
    if files:
        artifact = wandb.Artifact(f"compile-{run.id}", type="compile-report", metadata={"modes": list(outcome.modes), "compiled": list(outcome.modules)})
        for path in files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
