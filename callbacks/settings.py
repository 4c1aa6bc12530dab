"""What the callback is told: which modules are compiled and how, and what is measured. The config group `compile` has the same keys."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dynacompile.config import KEYWORDS, CompileConfig
from dynacompile.errors import ConfigError, nearest

CompileValues = Mapping[str, Any]
FLAGS_VARIABLE = "DYNACOMPILE_ALLOW_CPP_FLAGS"
WHOLE_NET: Mapping[str, CompileValues] = MappingProxyType({"net": {}})


def setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """The callback's own settings, and `base`: the compile options that every module starts from.

    `modules` maps a glob over dotted module names to the options that differ there (null: none differ). `*` stands for one name between
    dots or a part of it, `**` for any number of names. A module that several globs match takes the options of all, later globs first.
    """

    enabled: bool = setting(True, "false: nothing is compiled; the eager step is measured all the same")
    modules: Mapping[str, CompileValues | None] | None = setting(None, "module glob -> options that differ there; null: {net: {}}")
    measure_after: int = setting(10, "training batches before the step times are measured")
    measure_steps: int = setting(5, "steps measured of each kind, eager and compiled; 0: no measurement")
    trace: bool = setting(True, "write every event to compile_events.jsonl and a report to compile_report.html beside the logs")
    log_prefix: str = setting("compile/", "what the names of all numbers in loggers and callback_metrics begin with")
    base: CompileConfig = CompileConfig()

    def __post_init__(self) -> None:
        for name in ("measure_after", "measure_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"compile.{name} must be an int >= 0, not {value!r}")
        if not isinstance(self.log_prefix, str):
            raise ConfigError(f"compile.log_prefix must be a text such as 'compile/', not {self.log_prefix!r}")
        if self.modules is not None and not isinstance(self.modules, Mapping):
            raise ConfigError(f"compile.modules must map globs to options, for example {{net: {{}}}}, not {self.modules!r}")
        for glob in self.overrides:
            self.options(glob)

    @classmethod
    def own_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls) if f.name != "base")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every key of the config group `compile`."""
        return (*cls.own_names(), *CompileConfig.names())

    @classmethod
    def of(cls, values: CompileValues) -> CompileSettings:
        """Settings from the flat mapping of the config group; an unknown key is a ConfigError with the nearest name."""
        for key in values:
            if key not in cls.names():
                raise ConfigError(f"unknown key compile.{key}: {nearest(key, cls.names())}")
        check_compiler_flags(values)
        own = {key: value for key, value in values.items() if key in cls.own_names()}
        return cls(**own, base=CompileConfig.of({key: value for key, value in values.items() if key not in own}))

    @property
    def overrides(self) -> Mapping[str, CompileValues | None]:
        return WHOLE_NET if self.modules is None else self.modules

    def options(self, *globs: str) -> CompileConfig:
        """The compile options of a module that `globs` match, in the order of `modules`."""
        values = {name: getattr(self.base, name) for name in CompileConfig.names()}
        for glob in globs:
            given = self.overrides[glob] or {}
            if not isinstance(given, Mapping):
                raise ConfigError(f"compile.modules[{glob!r}] must map options to values, not {given!r}")
            try:
                CompileConfig.of(given)
            except ConfigError as error:
                raise ConfigError(f"compile.modules[{glob!r}]: {error}") from error
            values |= {key: value for key, value in given.items() if value is not None or key == "dynamic"}
        return CompileConfig.of(values)


def check_compiler_flags(values: CompileValues) -> None:
    """Raises ConfigError for flags of the C++ compiler in a config, which may have come with the artifacts of somebody's run: compilers run programs that
    flags name. Who means them says so by an environment variable; programs pass them in options."""
    modules = values.get("modules")
    parts = [values, *(modules.values() if isinstance(modules, Mapping) else ())]
    given = [options.get("cpp_flags") for options in parts if isinstance(options, Mapping)]
    if any(given) and os.environ.get(FLAGS_VARIABLE) != "1":
        raise ConfigError(
            f"compile.cpp_flags={next(filter(None, given))!r} comes from a config, and flags of the C++ compiler can run any program: "
            f"set {FLAGS_VARIABLE}=1 in the environment if you trust this config"
        )


def call_arguments(config: CompileConfig) -> dict[str, Any]:
    """The keyword arguments of `dynacompile.compile` that mean `config`; what equals the default is left out."""
    plain = CompileConfig()
    changed = {name: getattr(config, name) for name in CompileConfig.names() if getattr(config, name) != getattr(plain, name)}
    options = {name: value for name, value in changed.items() if name not in KEYWORDS}
    return {name: changed[name] for name in KEYWORDS if name in changed} | ({"options": options} if options else {})
