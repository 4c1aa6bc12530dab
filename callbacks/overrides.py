"""A wrong key in a command line's `compile.<key>=...` is refused here, with the nearest names; Hydra would only say that it is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from dynacompile.callbacks.settings import CompileSettings
from dynacompile.errors import nearest


def check_compile_overrides(arguments: Sequence[str]) -> None:
    """Ends the program with one line for an override of `compile.` whose key does not exist. What isn't an override is left to Hydra."""
    parser = OverridesParser.create()
    for argument in arguments:
        if argument.startswith("-") or "=" not in argument:
            continue
        try:
            key = parser.parse_override(argument).key_or_group
        except HydraException:
            continue
        group, _, name = key.partition(".")
        if group == "compile" and name and name.split(".")[0] not in CompileSettings.names():
            raise SystemExit(f"error: unknown key {key}: {nearest(name, CompileSettings.names())}")
