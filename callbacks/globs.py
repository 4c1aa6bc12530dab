"""Which modules `compile.modules` means, and which of several globs decides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from dynacompile.callbacks.settings import STEP_NAMES, TYPE, CompileSettings
from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError, nearest


@dataclass(frozen=True)
class Target:
    """A module to compile. name: its dotted name in the root module; the root's is that of its class, in settings, too. globs: those that match it, the most
    general first."""

    name: str
    module: nn.Module
    options: CompileConfig
    globs: tuple[str, ...] = ()


def pattern(glob: str) -> re.Pattern[str]:
    """`*` matches within one dotted part, `**` across parts, everything else itself."""
    rendered = {"**": r".+", "*": r"[^.]*"}
    return re.compile("".join(rendered.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", glob)))


def specificity(glob: str) -> tuple[int, int, int]:
    """Larger is more specific: `**` anywhere, then a type, then `*`, then a name; among like ones that with more letters of its own, then with more parts."""
    kind = 3 if "*" not in glob else 2 if "**" not in glob else 0
    if glob.startswith(TYPE):
        kind = 1
    return kind, len(glob.replace("*", "")), glob.count(".")


def class_names(module: nn.Module) -> Iterable[str]:
    """The names by which `type:` finds a module: of its class and its bases below nn.Module, bare and with each ending of the path to them."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        parts = f"{kind.__module__}.{kind.__qualname__}".split(".")
        yield from (".".join(parts[at:]) for at in range(len(parts)))


def is_match(glob: str, name: str, module: nn.Module) -> bool:
    if glob.startswith(TYPE):
        wanted = pattern(glob.removeprefix(TYPE))
        return any(wanted.fullmatch(known) for known in class_names(module))
    return pattern(glob).fullmatch(name) is not None


def resolve(settings: CompileSettings, root: nn.Module) -> list[Target]:
    """The modules of `root` that the globs match, parents first. Each option of a module is that of the most specific glob that gives it; of globs that
    are as specific, of the later. Raises ConfigError for a glob or a dispatch that matches nothing."""
    modules, own = dict(root.named_modules()), type(root).__name__
    matched: dict[str, list[str]] = {}
    for glob in sorted(settings.of_modules, key=specificity):
        wanted = "" if glob == own and own not in modules else glob
        names = [name for name, module in modules.items() if is_match(wanted, name, module)]
        if not names:
            raise ConfigError(f"compile.modules: no module matches {glob!r}: {nearest(glob, suggestions(glob, modules))}")
        for name in names:
            matched.setdefault(name, []).append(glob)
    steps = [name for name in STEP_NAMES if name != "optimizer_step"]
    found = [Target(name or own, module, settings.options(*matched[name]), tuple(matched[name])) for name, module in modules.items() if name in matched]
    known = (*steps, *(target.name for target in found))
    for name in settings.dispatch:
        if name not in known:
            raise ConfigError(f"dispatch: {name!r} is no step and no module that compile.modules names: {nearest(name, known)}")
    return found


def check_module(settings: CompileSettings, root: nn.Module) -> None:
    """Raises ConfigError where `settings` do not fit the LightningModule, before anything of a run begins."""
    if getattr(root, "_compiler_ctx", None) is not None:  # Lightning's name for what torch.compile was given
        raise ConfigError(
            f"torch.compile has compiled {type(root).__name__}, whose steps are to be compiled here: "
            "give the trainer the module itself, or set compile=none (DynamoCallback(enabled=False)) to measure it as it is"
        )
    resolve(settings, root)


def suggestions(glob: str, modules: dict[str, nn.Module]) -> set[str]:
    """What a glob may mean: names of classes for a type, else steps, and module names with numbered siblings as one glob:
    `net.blocks.0.mlp` -> `net.blocks.*.mlp`."""
    if glob.startswith(TYPE):
        return {f"{TYPE}{type(module).__name__}" for module in modules.values()}
    return {*STEP_NAMES, *(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in modules if name)}
