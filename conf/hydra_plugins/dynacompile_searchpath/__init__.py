"""Puts dynacompile's config groups on the search path of every Hydra app, so that a user's own config can say `- /compile: default`.

Hydra imports this module at the start of every app: it must not import torch, hence not the package `dynacompile` either.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


def config_folder() -> Path | None:
    """Where the configs lie: `conf` of the installed package, or of the checkout that an editable install points to."""
    installed = Path(__file__).parents[2] / "dynacompile" / "conf"
    checkout = Path(__file__).parents[2]
    package = importlib.util.find_spec("dynacompile")
    beside = [Path(place) / "conf" for place in package.submodule_search_locations or ()] if package else []
    return next((folder for folder in (installed, checkout, *beside) if (folder / "compile").is_dir()), None)


class DynacompileSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = config_folder()
        if folder is not None:
            search_path.append(provider="dynacompile", path=folder.as_uri())
