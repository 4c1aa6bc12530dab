"""Random trees of modules, with random options by names, globs and types, written flat, nested, and as a command line: which options each module has.

The oracle matches and ranks globs in a way of its own. `python -m tests.fuzz.module_options FIRST LAST` runs the seeds.
"""

from __future__ import annotations

import argparse
import functools
import random
from typing import Any

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from torch import nn

from dynacompile.callbacks.auto import changed, offered
from dynacompile.callbacks.globs import resolve
from dynacompile.callbacks.origins import Origins
from dynacompile.callbacks.overrides import in_hydras_syntax
from dynacompile.callbacks.plan import reasons
from dynacompile.callbacks.settings import CompileSettings, by_glob
from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError

OPTIONS: dict[str, tuple[Any, ...]] = {
    "mode": ("default", "reduce-overhead", "max-autotune"),
    "recompile_limit": (1, 2, 3, 9),
    "fullgraph": (True, False),
    "fuse": (True, False),
    "memory_budget": (0.25, 0.5, 1.0),
    "isolate_recompiles": (True, "class"),
}
NAMES = ("net", "blocks", "head", "mode_net", "a", "ab", "abc", "0", "1", "10")


class Block(nn.Module):
    pass


class Wide(Block):
    pass


class Head(nn.Module):
    pass


KINDS: tuple[type[nn.Module], ...] = (nn.Module, Block, Wide, Head, nn.Identity)


def tree(choose: random.Random, depth: int = 3) -> nn.Module:
    module = choose.choice(KINDS)()
    if depth:
        for name in choose.sample(NAMES, choose.randint(0, 3)):
            module.add_module(name, tree(choose, depth - 1))
    return module


def glob_near(choose: random.Random, name: str, module: nn.Module) -> str:
    """One that matches a module."""
    if choose.random() < 0.2 and type(module) is not nn.Module:
        kind = choose.choice([known.__name__ for known in type(module).__mro__[: type(module).__mro__.index(nn.Module)]])
        return "type:" + choose.choice([kind, kind[0] + "*", f"*{kind[-1]}"])
    parts = name.split(".")
    for at in range(len(parts)):
        if choose.random() < 0.3:
            part = parts[at]
            parts[at] = choose.choice(["*", f"{part[0]}*", f"*{part[-1]}"])
    if choose.random() < 0.25:
        at = choose.randrange(len(parts))
        parts[at:] = ["**"]
    return ".".join(parts)


def matches_text(glob: str, text: str) -> bool:
    """By going through both: `*` is any letters but dots, `**` any letters, at least one."""

    @functools.cache
    def go(i: int, j: int) -> bool:
        if i == len(glob):
            return j == len(text)
        if glob.startswith("**", i):
            return any(go(i + 2, k) for k in range(j + 1, len(text) + 1))
        if glob[i] == "*":
            ends = [j]
            while ends[-1] < len(text) and text[ends[-1]] != ".":
                ends.append(ends[-1] + 1)
            return any(go(i + 1, k) for k in ends)
        return j < len(text) and glob[i] == text[j] and go(i + 1, j + 1)

    return go(0, 0)


def matches(glob: str, name: str, module: nn.Module) -> bool:
    if not glob.startswith("type:"):
        return matches_text(glob, name)
    return any(matches_text(glob[5:], kind.__name__) for kind in type(module).__mro__ if issubclass(kind, nn.Module) and kind is not nn.Module)


def rank(glob: str) -> tuple[int, int, int]:
    kind = 1 if glob.startswith("type:") else 0 if "**" in glob else 2 if "*" in glob else 3
    return kind, sum(letter != "*" for letter in glob), len(glob.split("."))


def expected(options: dict[str, dict[str, Any]], name: str, module: nn.Module) -> CompileConfig:
    """The options of a module, each by the best of the globs that give it."""
    found = {}
    for option in OPTIONS:
        giving = [(rank(glob), at, given[option]) for at, (glob, given) in enumerate(options.items()) if option in given and matches(glob, name, module)]
        if giving:
            found[option] = max(giving, key=lambda one: one[:2])[2]
    return CompileConfig.of(found)


def nested(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same with a mapping for each part of a name."""
    whole: dict[str, Any] = {}
    for glob, given in options.items():
        inside = whole
        for part in glob.split("."):
            inside = inside.setdefault(part, {})
        inside.update(given)
    return whole


def from_command_line(options: dict[str, dict[str, Any]]) -> Any:
    """What Hydra makes of one override for each option."""
    config = OmegaConf.create({"compile": {"modules": None}})
    OmegaConf.set_struct(config, True)
    for glob, given in options.items():
        for option, value in given.items():
            override = OverridesParser.create().parse_override(in_hydras_syntax(f"compile.modules.{glob}.{option}={str(value).lower()}"))
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=override.is_force_add())
    return OmegaConf.to_container(config.compile.modules)


def generate(seed: int) -> tuple[nn.Module, dict[str, dict[str, Any]]]:
    choose = random.Random(seed)
    root = nn.Module()
    while not [*root.children()]:
        root = tree(choose)
    modules = {name: module for name, module in root.named_modules() if name}
    options: dict[str, dict[str, Any]] = {}
    for _ in range(choose.randint(1, 5)):
        name = choose.choice(list(modules))
        chosen = choose.sample(list(OPTIONS), choose.randint(1, 3))
        options[glob_near(choose, name, modules[name])] = {option: choose.choice(OPTIONS[option]) for option in chosen}
    return root, options


def difference(seed: int) -> str | None:
    """What is wrong, as text."""
    root, options = generate(seed)
    modules = dict(root.named_modules())
    wanted = {name: expected(options, name, module) for name, module in modules.items() if any(matches(glob, name, module) for glob in options)}
    for form, given in (("flat", options), ("nested", nested(options)), ("command line", from_command_line(options))):
        flat = by_glob(given)
        if form != "command line" and flat != options:
            return f"{form}: {given} means {flat}"
        settings = CompileSettings.of({"modules": given})
        targets = {target.name: target for target in resolve(settings, root)}
        found = {name: targets[name or type(root).__name__].options for name in wanted if (name or type(root).__name__) in targets}
        tied = form != "flat" and len({rank(glob) for glob in options}) < len(options)  # others come in another order
        if found != wanted and not tied:
            return f"{form}: {given} gives {found}, not {wanted}"
        for target in targets.values():
            told = {reason.partition("=")[0]: origin for reason, origin in reasons(settings, target.options, target.globs, Origins())}
            for option, origin in told.items():
                glob = origin.removeprefix("modules[").removesuffix("]")
                if settings.overrides[glob][option] != getattr(target.options, option):
                    return f"{form}: {target.name}.{option} is said to come from {glob}"
    return mistyped(seed, options) or tried(root, options)


def tried(root: nn.Module, options: dict[str, dict[str, Any]]) -> str | None:
    """What compile=auto tries of parts has the user's options where it names what the user named, and nothing is tried twice."""
    for module in root.modules():
        module.register_parameter("own", nn.Parameter(torch.zeros(1)))
    root.device = torch.device("cpu")  # type: ignore[assignment]
    settings = CompileSettings.of({"modules": options})
    named = {target.name: target.options for target in resolve(settings, root)}
    seen: list[dict[str, CompileConfig]] = []
    for changes in offered("parts", settings, {}, root):  # type: ignore[arg-type]
        found = {target.name: target.options for target in resolve(changed(settings, changes), root)}
        if {name: found.get(name) for name in named} != named:
            return f"{changes} changes the options of modules that {options} name"
        if found in seen:
            return f"{changes} is tried twice"
        seen.append(found)
    return None


def mistyped(seed: int, options: dict[str, dict[str, Any]]) -> str | None:
    """An option with a letter less is refused, flat and nested, with the option's name."""
    choose = random.Random(seed)
    glob = choose.choice(list(options))
    option = choose.choice(list(options[glob]))
    at = choose.randrange(1, len(option))
    wrong = option[:at] + option[at + 1 :]
    misspelt = {**options, glob: {**options[glob], wrong: options[glob][option]}}
    for given in (misspelt, nested(misspelt)):
        try:
            CompileSettings.of({"modules": given})
        except ConfigError as refused:
            if option not in str(refused):
                return f"the refusal of {wrong} does not name {option}: {refused}"
        else:
            return f"{wrong} for {option} is accepted: {given}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.first, arguments.last):
        if told := difference(seed):
            wrong += 1
            print(f"seed {seed}: {told}", flush=True)
    print(f"{arguments.last - arguments.first} trees, {wrong} differed")


if __name__ == "__main__":
    main()
