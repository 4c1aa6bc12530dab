"""The checks of an app with the config group `compile`, as it is composed: a key that does not exist, or a folder that can't be, ends it before it begins.

Hydra imports this module at the start of every app: it must not import torch, hence not the package `dynacompile`, unless a key is wrong.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import RunMode
from hydra_plugins.dynacompile_searchpath import config_folder
from omegaconf import DictConfig, OmegaConf

GROUP = "compile"


class CheckKeys(Callback):
    """Hydra callback, which every config of the group brings along. It ends an app, or the job of a sweep, with one line that says the nearest names."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        check(config)
        make_folder("hydra.run.dir", config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        make_folder("hydra.sweep.dir", config.hydra.sweep.dir)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.mode == RunMode.MULTIRUN:
            check(config)


def check(config: DictConfig) -> None:
    """Raises SystemExit for a key of `compile` that does not exist."""
    given = config.get(GROUP)
    folder = config_folder()
    if not isinstance(given, DictConfig) or folder is None:
        return
    known = [str(key) for key in OmegaConf.load(folder / GROUP / "default.yaml") if key != "defaults"]
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        nearest = importlib.import_module("dynacompile.errors").nearest
        raise SystemExit("\n".join(f"error: unknown key {GROUP}.{key}: {nearest(key, known)}" for key in unknown))


def make_folder(key: str, folder: str) -> None:
    """Makes the folder of a run, as Hydra is about to. Raises SystemExit where that can't be."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        place = Path(folder).absolute()
        file = next((path for path in (place, *place.parents) if path.exists() and not path.is_dir()), None)
        said = f"{file} is a file, where the run needs a folder" if file else f"no folder can be made there ({error.strerror})"
        raise SystemExit(f"error: {key}={folder}: {said}") from None
