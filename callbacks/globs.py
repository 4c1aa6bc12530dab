"""Which modules `compile.modules` means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from dynacompile.callbacks.settings import CompileSettings
from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError, nearest


@dataclass(frozen=True)
class Target:
    """A module to compile. name: its dotted name in the root module; the root's is that of its class."""

    name: str
    module: nn.Module
    options: CompileConfig


def pattern(glob: str) -> re.Pattern[str]:
    """`*` matches within one dotted part, `**` across parts, everything else itself."""
    rendered = {"**": r".+", "*": r"[^.]*"}
    return re.compile("".join(rendered.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", glob)))


def resolve(settings: CompileSettings, root: nn.Module) -> list[Target]:
    """The modules of `root` that the globs match, parents first. Raises ConfigError for a glob that matches nothing."""
    modules = dict(root.named_modules())
    matched: dict[str, list[str]] = {}
    for glob in settings.of_modules:
        names = [name for name in modules if pattern(glob).fullmatch(name)]
        if not names:
            raise ConfigError(f"compile.modules: no module matches {glob!r}: {nearest(glob, suggestions(modules))}")
        for name in names:
            matched.setdefault(name, []).append(glob)
    return [Target(name or type(root).__name__, module, settings.options(*matched[name])) for name, module in modules.items() if name in matched]


def suggestions(names: dict[str, nn.Module]) -> set[str]:
    """Module names, with numbered siblings as one glob: `net.blocks.0.mlp` -> `net.blocks.*.mlp`."""
    return {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names if name}
