"""The text of conf/compile/default.yaml, made from the settings' dataclasses so that the two can't differ."""

from __future__ import annotations

import dataclasses

from omegaconf import OmegaConf

from dynacompile.callbacks.settings import CompileSettings
from dynacompile.config import CompileConfig

HEADING = """# How modules are compiled. Written by `python scripts/write_conf.py` from the settings' dataclasses: edit those.
# Per module: compile.modules.net.blocks.*.mode=max-autotune, or modules: {net.blocks.*: {isolate_recompiles: true, recompile_limit: 4, mode: max-autotune}}
defaults:
  - /hydra/callbacks@_global_.hydra.callbacks.compile_keys: compile_keys
"""


def default_values() -> dict[str, object]:
    """Every key of the group with its default, the callback's own keys first."""
    settings = CompileSettings()
    own = {name: getattr(settings, name) for name in CompileSettings.own_names()}
    return own | {name: getattr(settings.base, name) for name in CompileConfig.names()}


def documentation() -> dict[str, str]:
    fields = [*dataclasses.fields(CompileSettings), *dataclasses.fields(CompileConfig)]
    return {f.name: f.metadata["doc"] for f in fields if "doc" in f.metadata}


def config_text() -> str:
    """The whole file."""
    docs = documentation()
    lines = []
    for name, value in default_values().items():
        lines.append(f"# {docs[name]}")
        lines.append(OmegaConf.to_yaml(OmegaConf.create({name: value})).rstrip())
    return HEADING + "\n".join(lines) + "\n"
