"""Puts dynacompile's config group `compile` on the search path of every Hydra app, so that a user's own config can say `- compile: default`.

Nothing else of ours is found there but `hydra/callbacks`: the table at the end of a sweep (`comparison`), and the check that the group brings along. The groups
model, data, trainer, logger, callbacks and experiment are those of train.py alone.
Hydra imports this module at the start of every app: it must not import torch, hence not the package `dynacompile`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

GROUPS = ("compile", "hydra/callbacks")


def config_folder() -> Path | None:
    """Where the configs lie: `conf` of the installed package, or of the checkout that an editable install points to."""
    installed = Path(__file__).parents[2] / "dynacompile" / "conf"
    checkout = Path(__file__).parents[2]
    package = importlib.util.find_spec("dynacompile")
    beside = [Path(place) / "conf" for place in package.submodule_search_locations or ()] if package else []
    return next((folder for folder in (installed, checkout, *beside) if (folder / "compile").is_dir()), None)


def is_shared(path: str) -> bool:
    """Whether a path is one of GROUPS or lies in one."""
    return any(f"{path.strip('/')}/".startswith(f"{group}/") for group in GROUPS)


def leads_to_shared(path: str) -> bool:
    """Whether a path is a folder above one of GROUPS."""
    inside = path.strip("/")
    return any(group.startswith(f"{inside}/" if inside else "") for group in GROUPS)


class SharedConfigs(FileConfigSource):
    """A folder of which GROUPS alone are there."""

    @staticmethod
    def scheme() -> str:
        return "dynacompile"

    def load_config(self, config_path: str) -> ConfigResult:
        if not is_shared(config_path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        found = super().load_config(config_path)
        if config_path.startswith("compile/"):
            OmegaConf.set_struct(found.config, False)  # options of modules need no `+`; keys are checked by keys.py, which says the nearest ones
        return found

    def is_group(self, config_path: str) -> bool:
        return (is_shared(config_path) or leads_to_shared(config_path)) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return is_shared(config_path) and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        known = super().list(config_path, results_filter)
        above = config_path.strip("/")
        found = (f"{above}/{name}" if above else name for name in known)
        return [name for name, path in zip(known, found) if is_shared(path) or leads_to_shared(path)]


class DynacompileSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = config_folder()
        if folder is not None:
            search_path.append(provider="dynacompile", path=f"{SharedConfigs.scheme()}://{folder}")
