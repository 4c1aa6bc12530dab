"""Trains what conf/train.yaml composes: `python train.py compile=max_autotune model=mlp trainer.max_steps=100`."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
import lightning as L
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig

import dynacompile
from dynacompile.callbacks.overrides import check_added_keys, read_arguments, told_nearest, wrong_setting
from dynacompile.callbacks.sweep_runs import Result
from dynacompile.errors import ConfigError, DynacompileError, nearest


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> Result:
    """One fit. Returns what callbacks know of it: its losses and, under compile/, what compiling cost and brought; a sweeper may optimise any of them.

    A wrong setting is one line at the end of a run of its own. In a sweep it raises, as every error does, which ends this job alone.
    """
    try:
        check_added_keys()
        L.seed_everything(cfg.seed, workers=True, verbose=False)
        if cfg.matmul_precision not in (known := ("highest", "high", "medium")):
            raise ConfigError(f"unknown matmul_precision {cfg.matmul_precision!r}: {nearest(str(cfg.matmul_precision), known)}")
        torch.set_float32_matmul_precision(cfg.matmul_precision)
        callbacks = [instantiate(callback) for callback in cfg.callbacks.values()]
        if cfg.ckpt_path is not None and cfg.trainer.max_epochs == 1:
            cfg.trainer.max_epochs = -1  # max_steps ends the fit: the one epoch of the fit before may be over
        trainer = instantiate(cfg.trainer, callbacks=callbacks, logger=[instantiate(logger) for logger in cfg.logger.values()])
        trainer.fit(instantiate(cfg.model), datamodule=instantiate(cfg.data), ckpt_path=cfg.ckpt_path)
        return Result({name: float(value) for name, value in trainer.callback_metrics.items()}, cfg.objective or "")
    except (DynacompileError, InstantiationException, OSError, TypeError, ValueError) as error:
        cause = wrong_setting(error)
        if cause is None:
            raise
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise cause from None
        raise SystemExit(f"error: {cause}") from None
    finally:
        if "wandb" in sys.modules:  # a logger has imported it
            sys.modules["wandb"].finish()
        dynacompile.reset()


if __name__ == "__main__":
    read_arguments()
    try:
        with told_nearest(Path(__file__).parent / "conf", "train"):
            main()
    except KeyboardInterrupt:  # outside of a fit, which Lightning ends
        raise SystemExit("interrupted") from None
