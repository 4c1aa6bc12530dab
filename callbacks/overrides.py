"""What command lines of Hydra apps may say of `compile` beyond Hydra's own syntax, and what is wrong in them, said with the nearest name.

Hydra's keys hold no `*` and no `:`, and keys that the config does not have yet need a `+`. `read_arguments` lets `compile.modules.net.blocks.*.mode=default`
and `compile.modules.type:Block.mode=max-autotune` through, choices for sweeps included.
"""

from __future__ import annotations

import difflib
import errno
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dynacompile.callbacks.run_folder import file_in_the_way
from dynacompile.callbacks.settings import TYPE, CompileSettings
from dynacompile.errors import ConfigError, DynacompileError, MarkViolated, RecompileLimitError, Unsupported, nearest


def read_arguments() -> None:
    """Makes of `sys.argv` what Hydra reads: call it before the app's main. Ends the program with one line for a key of `compile` that does not exist."""
    arguments = [in_hydras_syntax(argument) for argument in sys.argv[1:]]
    check_compile_overrides(arguments)
    check_plugins(arguments)
    sys.argv[1:] = arguments


def in_hydras_syntax(argument: str) -> str:
    """An override of one module's options, and a value with `=` in it, as Hydra reads them; any other argument as it is."""
    found = re.fullmatch(r"(\+{0,2})(compile\.modules\.[^=]+)=(.*)", argument, re.DOTALL)
    if not found:
        return with_quotes(argument)
    plus, key, value = found.groups()
    return f"{plus or '++'}{'.'.join(map(as_part, key.split('.')))}={value}"


def with_quotes(argument: str) -> str:
    """An override whose value is a path with `=` in it, as Lightning's checkpoints have it (epoch=0-step=12.ckpt): Hydra reads it in quotes alone."""
    found = re.fullmatch(r"([\w.@/+~]+)=([\w./~@: -]*=[\w./~@:= -]*)", argument)
    return f"{found[1]}='{found[2]}'" if found else argument


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


@contextmanager
def told_nearest(config_dir: str | Path, config_name: str) -> Iterator[None]:
    """Around an app's main: where Hydra has refused a key of the command line that does not exist, the nearest one is said after Hydra's own words."""
    try:
        yield
    except SystemExit as end:
        if end.code == 1:
            for told in wrong_keys(sys.argv[1:], Path(config_dir), config_name):
                print(f"error: {told}", file=sys.stderr)
        raise


def wrong_keys(arguments: Sequence[str], config_dir: Path, config_name: str) -> Iterator[str]:
    """Of overrides of a config that do not add to it: those whose key does not exist, each with the nearest."""
    try:
        overrides = OverridesParser.create().parse_overrides([text for text in arguments if "=" in text and not text.startswith("-")])
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(config_dir.absolute()), version_base="1.3"):
            groups = GlobalHydra.instance().config_loader().list_groups("")
            chosen = [str(override.input_line) for override in overrides if is_group(override.key_or_group) and not override.is_sweep_override()]
            config = compose(config_name, overrides=chosen)
            for override in overrides:
                key = override.key_or_group.partition("@")[0]
                if not (override.is_add() or override.is_force_add() or override.is_delete() or is_group(key) or key.startswith("hydra")):
                    yield from missing(key, config, groups)
    except (HydraException, OmegaConfBaseException, ValueError):  # Hydra has said what is wrong
        return


def missing(key: str, config: DictConfig, groups: Sequence[str]) -> Iterator[str]:
    """The first part of a key that a config does not have, with those beside it that are near."""
    node: Any = config
    parts = key.split(".")
    for at, part in enumerate(parts):
        if not isinstance(node, DictConfig):
            return
        if part not in node:
            above = ".".join(parts[:at])
            known = [str(name) for name in node] + ([] if at else [group for group in groups if group != "hydra"])
            yield f"there is no key {key}: {nearest(part, set(known))}" + (f" (in {above})" if above else "")
            return
        node = node._get_node(part)


PLUGINS = {"hydra/launcher": {"joblib": "joblib_launcher", "submitit": "submitit_launcher"}, "hydra/sweeper": {"optuna": "optuna_sweeper"}}
"""Hydra's plugins that the extra `sweep` installs: by the group that they add to, and the beginning of a choice there."""


def check_plugins(arguments: Sequence[str]) -> None:
    """Ends the program with one line for a launcher or sweeper whose plugin is not installed."""
    for argument in arguments:
        group, _, choice = argument.partition("=")
        plugin = PLUGINS.get(group, {}).get(choice.partition("_")[0])
        if plugin is not None and not is_found(f"hydra_plugins.hydra_{plugin}"):
            raise SystemExit(f"error: {argument} needs a plugin that is not installed: pip install 'dynacompile[sweep]'")


def is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def check_added_keys() -> None:
    """Within a job: raises ConfigError for an override `+key=...` whose key is near to one of the config, and that no other override refers to by `${key}`:
    Hydra adds it, and nothing reads it."""
    overrides = list(overrides_of_this_job())
    added = [override for override in overrides if override.is_add() and not is_group(override.key_or_group)]
    if not added:
        return
    known = [str(key) for key in as_composed()]
    for override in added:
        key = override.key_or_group.partition(".")[0]
        is_referred_to = any(re.search(rf"\$\{{{re.escape(key)}\b", str(other.input_line)) for other in overrides)
        if key not in known and not is_referred_to and difflib.get_close_matches(key, known, n=1, cutoff=0.7):
            raise ConfigError(f"{override.input_line} adds a new key {key!r}, which nothing reads: {nearest(key, known)}")


ASKED_FOR = (MarkViolated, RecompileLimitError, Unsupported)
"""What settings turn into errors: `dynamic`, limits and `fullgraph`. Each says which line of the program does not keep to them."""


def wrong_setting(error: Exception) -> DynacompileError | None:
    """Within a job: the setting that ended it with `error`, wrong or not kept to. None for an error of the program, which gets a note
    where a setting may be at fault."""
    cause = error.__cause__ if isinstance(error, InstantiationException) else error
    if isinstance(cause, (ConfigError, *ASKED_FOR)):
        return cause
    if isinstance(cause, NotADirectoryError) and cause.filename and (file := file_in_the_way(os.fsdecode(cause.filename))) is not None:
        return ConfigError(f"{next(overrides_that_name(file), file)} is a file, where the run needs a folder")
    if isinstance(cause, FileNotFoundError) and (missing := missing_checkpoint()) is not None:
        return missing
    if isinstance(error, InstantiationException) and (package := missing_package(error)):
        key = next((line.removeprefix("full_key: ") for line in str(error).splitlines() if line.startswith("full_key: ")), "the config")
        instead = " (or choose logger=csv)" if key.startswith("logger.") else ""
        return ConfigError(f"{key} needs the package {package}, which is not installed: pip install 'dynacompile[train]'{instead}")
    if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EROFS, errno.ENOENT) and cause.filename:
        place = Path(os.fsdecode(cause.filename)).absolute()
        if named := [text for part in (place, *place.parents) for text in overrides_that_name(part)]:
            return ConfigError(f"{named[0]}: {cause.strerror}: {place}")
    words = words_for_numbers()
    if words and isinstance(error, InstantiationException):
        return ConfigError(f"{words} ({type(cause).__name__}: {cause})")
    if words:
        error.add_note(words)
    return None


def missing_package(error: BaseException) -> str:
    """The package that an import behind an error did not find; empty where it was no such import."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ModuleNotFoundError) and seen.name:
            package = seen.name.partition(".")[0]
            return "" if is_found(package) else package
        seen = seen.__cause__ or seen.__context__
    return ""


def missing_checkpoint() -> ConfigError | None:
    """Within a job: that `ckpt_path` names a file that is not there, and the checkpoints that lie where it would. None where it is not so."""
    for override in overrides_of_this_job():
        value = override.value()
        if override.key_or_group == "ckpt_path" and isinstance(value, str) and "${" not in value and not Path(value).exists():
            given = Path(value)
            beside = {path.name: str(path) for path in given.parent.glob("*.ckpt")} or {str(path): str(path) for path in Path("logs").glob("**/*.ckpt")}
            hint = nearest(given.name if given.name in beside or given.parent.is_dir() else value, beside) if beside else "there is no checkpoint beside it"
            return ConfigError(f"ckpt_path={value}: there is no such file: {hint}")
    return None


def words_for_numbers() -> str:
    """Within a job: which overrides gave text where the config has a number, or nothing. Some settings take both: this is for errors to mention."""
    given = [override for override in overrides_of_this_job() if not is_group(override.key_or_group)]
    words = [override for override in given if isinstance(value := override.value(), str) and "${" not in value]
    found = []
    try:
        config = as_composed() if words else OmegaConf.create()
        for override in words:
            number = OmegaConf.select(config, override.key_or_group)
            if isinstance(number, Number):
                found.append(f"{override.key_or_group} is a number in the config ({number}), and {override.value()!r} here")
    except (HydraException, OmegaConfBaseException):  # the error that this would be mentioned by is told all the same
        pass
    return "; ".join(found)


def overrides_of_this_job() -> Iterator[Override]:
    """As they were given: `${key}` is not replaced."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    yield from OverridesParser.create().parse_overrides([str(text) for text in given or ()])


def overrides_that_name(file: Path) -> Iterator[str]:
    """The overrides of this job whose value is the path of a file."""
    for override in overrides_of_this_job():
        if isinstance(value := override.value(), str) and Path(value).absolute() == file:
            yield str(override.input_line)


def is_group(key: str) -> bool:
    """Whether `key` chooses a file of a config group."""
    return bool(GlobalHydra.instance().config_loader().get_group_options(key.partition("@")[0]))


def as_composed() -> DictConfig:
    """This job's config without its overrides of values: its groups are chosen as in the job."""
    chosen = [str(override.input_line) for override in overrides_of_this_job() if is_group(override.key_or_group)]
    return compose(HydraConfig.get().job.config_name, overrides=chosen)
