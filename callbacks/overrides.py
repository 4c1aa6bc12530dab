"""What command lines of Hydra apps may say of `compile` beyond Hydra's own syntax, and what is wrong in them, said with the nearest name.

Hydra's keys hold no `*` and no `:`, and keys that the config does not have yet need a `+`. `read_arguments` lets `compile.modules.net.blocks.*.mode=default`
and `compile.modules.type:Block.mode=max-autotune` through, choices for sweeps included.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from dynacompile.callbacks.settings import TYPE, CompileSettings
from dynacompile.errors import nearest


def read_arguments() -> None:
    """Makes of `sys.argv` what Hydra reads: call it before the app's main. Ends the program with one line for a key of `compile` that does not exist."""
    arguments = [in_hydras_syntax(argument) for argument in sys.argv[1:]]
    check_compile_overrides(arguments)
    sys.argv[1:] = arguments


def in_hydras_syntax(argument: str) -> str:
    """An override of one module's options as Hydra reads it; any other argument as it is."""
    found = re.fullmatch(r"(\+{0,2})(compile\.modules\.[^=]+)=(.*)", argument, re.DOTALL)
    if not found:
        return argument
    plus, key, value = found.groups()
    return f"{plus or '++'}{'.'.join(map(as_part, key.split('.')))}={value}"


def as_part(part: str) -> str:
    """A part of a glob, between dots, as Hydra's keys can hold it."""
    part = re.sub(r"\*{3,}", "**", part).replace("*", "$")
    if part.startswith(TYPE):
        return f"type$$${part.removeprefix(TYPE)}"
    return f"$$${part}" if part[:1].isdigit() and not re.fullmatch("0|[1-9][0-9]*", part) else part


def check_compile_overrides(arguments: Sequence[str]) -> None:
    """Ends the program with one line for an override of `compile.` whose key does not exist. What isn't an override is left to Hydra."""
    parser = OverridesParser.create()
    for argument in arguments:
        if argument.startswith("-") or "=" not in argument:
            continue
        try:
            override = parser.parse_override(argument)
        except HydraException:
            continue
        key = override.key_or_group
        if key == "compile" and not override.is_delete() and override.value() in (None, ""):
            raise SystemExit(f"error: {argument} names no config of the group compile: compile=none compiles nothing, compile=default is the default")
        group, _, name = key.partition(".")
        if group == "compile" and name and name.split(".")[0] not in CompileSettings.names():
            raise SystemExit(f"error: unknown key {key}: {nearest(name, CompileSettings.names())}")
