"""Where the settings of `compile` come from in a Hydra app: the command line, an experiment, the app's own config, the config that the group names, or the
defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dynacompile.callbacks.settings import as_glob, by_glob
from dynacompile.errors import ConfigError

GROUP = "compile"
HYDRA = "hydra.core.hydra_config"


@dataclass(frozen=True)
class Origins:
    """What is known of a running Hydra job; nothing where there is none. given: overrides of single keys, by key below `compile`. own: what the app's own
    config, of the name `config`, says of `compile`. choice: which config of the group is composed. loses: whether that comes after the app's own keys.
    chosen: keys below `compile`, `modules.<glob>` among them, that a config of another group sets over the app's own: which, as in experiment=distill."""

    given: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    choice: str = ""
    loses: bool = False
    chosen: Mapping[str, str] = field(default_factory=dict)

    def of(self, key: str) -> str:
        """Where the value of a key of the group comes from, that is not the default's."""
        if key in self.given:
            return "command line"
        if key in self.chosen:
            return self.chosen[key]
        if key in self.own:
            return f"{self.config}.yaml"
        return f"{GROUP}={self.choice}" if self.choice not in ("", "default") else "settings"

    def of_module(self, glob: str, option: str) -> str:
        """Where an option of `modules` comes from: its glob, and whether that is the command line's or an experiment's."""
        typed = {as_glob(key.removeprefix("modules.")) for key in self.given}
        by = "command line" if typed & {f"{glob}.{option}", glob, "modules"} else self.chosen.get(f"modules.{glob}")
        return f"modules[{glob}]" + (f", {by}" if by else "")

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
    primary = read_written(name.removesuffix(".yaml"), told.runtime.config_sources)
    own = primary.get(GROUP)
    choice = str(told.runtime.choices.get(GROUP) or "")
    loses = comes_last(primary.get("defaults"))
    chosen = {
        key: f"{group}={option}"
        for group, option in told.runtime.choices.items()
        if group != GROUP and not group.startswith("hydra/") and comes_last(primary.get("defaults"), group)
        for key in keys_of_all(read_written(f"{group}/{option}", told.runtime.config_sources))
    }
    return Origins(given, own if isinstance(own, Mapping) else {}, name.removesuffix(".yaml"), choice, loses, chosen)


def has_group() -> bool:
    """Whether a Hydra job runs whose config has the group."""
    module = sys.modules.get(HYDRA)
    return module is not None and module.HydraConfig.initialized() and bool(module.HydraConfig.get().runtime.choices.get(GROUP))


def keys_of_all(written: Mapping[str, Any]) -> list[str]:
    """The keys below `compile` that a config for the package of all sets."""
    section = written.get(GROUP)
    if not isinstance(section, Mapping):
        return []
    return [*section, *(f"modules.{glob}" for glob in by_glob(section.get("modules")))]


def read_written(name: str, sources: Sequence[Any]) -> Mapping[str, Any]:
    """A config as it is written; empty where it is no file, or, of a group, where its keys are not those of the whole config (`@package _global_`)."""
    for source in sources:
        path = Path(source.path) / f"{name}.yaml"
        if source.schema == "file" and path.is_file():
            text = path.read_text(encoding="utf-8")
            read = yaml.safe_load(text) if "/" not in name or re.search(r"^#\s*@package\s+_global_\s*$", text, re.MULTILINE) else None
            return read if isinstance(read, Mapping) else {}
    return {}


def comes_last(defaults: Any, group: str = GROUP) -> bool:
    """Whether a defaults list composes a group after the config's own keys."""
    entries = [entry if isinstance(entry, str) else str(next(iter(entry), "")) for entry in defaults] if isinstance(defaults, Sequence) else []
    groups = [at for at, entry in enumerate(entries) if entry.lstrip("/").removeprefix("optional ").lstrip("/") == group]
    return "_self_" in entries and bool(groups) and entries.index("_self_") < max(groups)
