"""Where the settings of `compile` come from in a Hydra app: the command line, the app's own config, the config that the group names, or the defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dynacompile.callbacks.settings import as_glob
from dynacompile.errors import ConfigError

GROUP = "compile"
HYDRA = "hydra.core.hydra_config"


@dataclass(frozen=True)
class Origins:
    """What is known of a running Hydra job; nothing where there is none. given: overrides of single keys, by key below `compile`. own: what the app's own
    config, of the name `config`, says of `compile`. choice: which config of the group is composed. loses: whether that comes after the app's own keys."""

    given: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    choice: str = ""
    loses: bool = False

    def of(self, key: str) -> str:
        """Where the value of a key of the group comes from, that is not the default's."""
        if key in self.given:
            return "command line"
        if key in self.own:
            return f"{self.config}.yaml"
        return f"{GROUP}={self.choice}" if self.choice not in ("", "default") else "settings"

    def of_module(self, glob: str, option: str) -> str:
        """Where an option of `modules` comes from: its glob, and whether that is the command line's."""
        typed = {as_glob(key.removeprefix("modules.")) for key in self.given}
        return f"modules[{glob}]" + (", command line" if typed & {f"{glob}.{option}", glob, "modules"} else "")

    def check(self) -> None:
        """Raises ConfigError where the group overwrites what the app's own config says of it."""
        lost = [key for key in self.own if key not in self.given]
        if self.loses and lost:
            raise ConfigError(
                f"{self.config}.yaml sets {', '.join(f'{GROUP}.{key}' for key in lost)}, and its defaults list composes `{GROUP}` after `_self_`, so that "
                f"the values of the group replace yours: put `_self_` after `{GROUP}` in the defaults list"
            )


def origins() -> Origins:
    """Of the job that runs. Hydra is not imported for it: without it there are none."""
    module = sys.modules.get(HYDRA)
    if module is None or not module.HydraConfig.initialized():
        return Origins()
    told = module.HydraConfig.get()
    given = {}
    for override in told.overrides.task:
        key, _, value = re.sub(r"^[+~]+", "", override).partition("=")
        if key.startswith(f"{GROUP}."):
            given[key.removeprefix(f"{GROUP}.")] = value
    name = told.job.config_name or ""
    primary = read_primary(name.removesuffix(".yaml"), told.runtime.config_sources)
    own = primary.get(GROUP)
    choice = str(told.runtime.choices.get(GROUP) or "")
    return Origins(given, own if isinstance(own, Mapping) else {}, name.removesuffix(".yaml"), choice, comes_last(primary.get("defaults")))


def read_primary(name: str, sources: Sequence[Any]) -> Mapping[str, Any]:
    """The app's own config as it is written; empty where it is no file."""
    for source in sources:
        path = Path(source.path) / f"{name}.yaml"
        if source.schema == "file" and path.is_file():
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
            return read if isinstance(read, Mapping) else {}
    return {}


def comes_last(defaults: Any) -> bool:
    """Whether a defaults list composes the group after the config's own keys."""
    entries = [entry if isinstance(entry, str) else str(next(iter(entry), "")) for entry in defaults] if isinstance(defaults, Sequence) else []
    groups = [at for at, entry in enumerate(entries) if entry.lstrip("/").removeprefix("optional ").lstrip("/") == GROUP]
    return "_self_" in entries and bool(groups) and entries.index("_self_") < max(groups)
