"""What the callback is told: what is compiled and how, and what is measured. The config group `compile` has the same keys."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynacompile.config import KEYWORDS, MODES, CompileConfig, check_types
from dynacompile.errors import ConfigError, nearest

CompileValues = Mapping[str, Any]
STEP_NAMES = ("training_step", "validation_step", "test_step", "predict_step", "optimizer_step")
FLAGS_VARIABLE = "DYNACOMPILE_ALLOW_CPP_FLAGS"
TYPE = "type:"
"""A glob that begins so is over names of classes."""
IN_KEYS = (("type$$$", TYPE), ("$$$", ""), ("$", "*"))
"""What keys of Hydra's command line can hold, and what it stands for in globs: `$` is `*`, `$$` is `**`, `type$$$Block` is `type:Block`, and `$$$` before a
part lets that begin with a digit and go on with others than digits: `$$$1$` is `1*`."""


def setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """The callback's own settings, and `base`: the compile options that the steps have, and every module starts from.

    `modules` maps a glob over dotted module names to the options that differ there (null: none differ). `*` stands for one name between
    dots or a part of it, `**` for any number of names; `type:Block` is every module of that class. Of a module that several globs match, each option
    is that of the most specific glob that gives it. Names may be nested, too: {net: {mode: ..., head: {mode: ...}}} is about net and net.head.

    `dispatch` is no key of the group, since it holds functions. It maps the name of a step or of a module that is compiled by itself to
    {by: function of a call's arguments (without self) that gives a key, options: {key, or "*" for all others: what differs there}}; each key has a bucket.
    """

    enabled: bool = setting(True, "false: nothing is compiled; the eager step is measured all the same")
    step: bool = setting(True, "compile training_step, validation_step, test_step, predict_step, and the optimizer's step with clipping")
    modules: Mapping[str, CompileValues | str | None] | Sequence[str] | str | None = setting(
        None,
        'module glob -> options that differ there, or a mode; or a list of globs. "" is the LightningModule; steps have their names. null: no module by itself',
    )
    show: bool = setting(False, "print what would be compiled, with which options and where each comes from, and train nothing")
    measure_after: int = setting(10, "training batches before the step times are measured; at least those of the first optimizer step")
    measure_steps: int = setting(5, "steps measured of each kind, eager and compiled; 0: no measurement")
    auto: float = setting(0.0, "seconds in which settings are tried on a batch; the fastest that verifies is kept and written as a config; 0: none are tried")
    trace: bool = setting(True, "write every event to compile_events.jsonl and a report to compile_report.html beside the logs")
    log_prefix: str = setting("compile/", "what the names of all numbers in loggers and callback_metrics begin with")
    base: CompileConfig = CompileConfig()
    dispatch: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self, "compile.")
        for name in ("measure_after", "measure_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"compile.{name} must be an int >= 0, not {getattr(self, name)!r}")
        if not self.auto >= 0:
            raise ConfigError(f"compile.auto must be a number of seconds >= 0, not {self.auto!r}")
        for glob in self.overrides:
            self.options(glob)
            check_step(glob)
        if not isinstance(self.dispatch, Mapping):
            raise ConfigError(f"dispatch must map names of steps or modules to {{by: ..., options: ...}}, not {self.dispatch!r}")
        for name, given in self.dispatch.items():
            check_dispatch(name, given)
        if self.enabled and not self.step and not self.of_modules:
            raise ConfigError("compile.step=false and compile.modules names no module, so nothing would be compiled: name one, or set compile=none")

    @classmethod
    def own_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in ("base", "dispatch"))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every key of the config group `compile`."""
        return (*cls.own_names(), *CompileConfig.names())

    @classmethod
    def of(cls, values: CompileValues | Sequence[str] | str | None) -> CompileSettings:
        """Settings from the flat mapping of the config group; an unknown key is a ConfigError with the nearest name. A text is a mode; a list, or a mapping
        whose keys are no settings and not like one, are `modules`."""
        values = cls.mapping(values)
        cls.check_names(values)
        check_compiler_flags(values)
        own = {key: value for key, value in values.items() if key in cls.own_names()}
        return cls(**own, base=CompileConfig.of({key: value for key, value in values.items() if key not in own}))

    @classmethod
    def given(cls, settings: CompileSettings | CompileValues | Sequence[str] | str | None, options: CompileValues) -> CompileSettings:
        """Settings as a callback is given them: in one object, or in a form that `of` takes, and keys of the config group one by one, which win."""
        cls.check_names(options)
        if not isinstance(settings, CompileSettings):
            return cls.of({**cls.mapping(settings), **options})
        check_compiler_flags(options)
        own = {key: value for key, value in options.items() if key in cls.own_names()}
        base = {name: getattr(settings.base, name) for name in CompileConfig.names()} | {key: value for key, value in options.items() if key not in own}
        return dataclasses.replace(settings, **own, base=CompileConfig.of(base))

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raises ConfigError for a name that is no key of the config group."""
        for name in names:
            if name not in cls.names():
                raise ConfigError(f"unknown key compile.{name}: {nearest(name, cls.names())}")

    @classmethod
    def mapping(cls, values: CompileValues | Sequence[str] | str | None) -> dict[str, Any]:
        """The flat mapping that a short form of it means."""
        if values is None:
            return {}
        if isinstance(values, Mapping) and isinstance(values.get("compile"), Mapping):
            raise ConfigError("the settings hold a group `compile`, as the config of a whole app does: pass that group, config.compile")
        if isinstance(values, Mapping) and (not values or any(key in cls.names() or close(str(key), cls.names()) for key in values)):
            return dict(values)
        return {"mode" if isinstance(values, str) else "modules": values}

    @property
    def of_modules(self) -> tuple[str, ...]:
        """The globs of `modules` that do not name a step."""
        return tuple(glob for glob in self.overrides if glob.partition(".")[0] not in STEP_NAMES)

    def check_steps(self, names: Sequence[str], what: str) -> None:
        """Raises ConfigError for a step that `modules` names and that is none of `names`. what: whose steps these are."""
        for glob in self.overrides:
            if glob not in self.of_modules and glob not in names:
                raise ConfigError(f"compile.modules: {what} has no {glob!r}: {nearest(glob, names)}")

    def of_step(self, name: str) -> CompileConfig:
        """The options of a step: training_step, optimizer_step.1, ..."""
        return self.options(*self.globs_of_step(name))

    def globs_of_step(self, name: str) -> tuple[str, ...]:
        """What `modules` says of a step, the more general first: optimizer_step, then optimizer_step.1."""
        return tuple(glob for glob in dict.fromkeys((name.partition(".")[0], name)) if glob in self.overrides)

    @functools.cached_property
    def overrides(self) -> Mapping[str, CompileValues]:
        """The options of each glob of `modules`."""
        return by_glob(self.modules)

    @property
    def in_background(self) -> bool:
        """Whether anything is compiled without its calls waiting for it."""
        return self.base.background or any(given.get("background") for given in self.overrides.values())

    def options(self, *globs: str) -> CompileConfig:
        """The compile options of a module that `globs` match: later ones win."""
        values = {name: getattr(self.base, name) for name in CompileConfig.names()}
        for glob in globs:
            given = self.overrides[glob]
            for key in given:
                if key in self.own_names():
                    raise ConfigError(f"compile.modules[{glob!r}]: {key!r} is no option of single modules: set compile.{key}, for all")
            try:
                CompileConfig.of(given)
            except ConfigError as error:
                raise ConfigError(f"compile.modules[{glob!r}]: {error}") from error
            values |= {key: value for key, value in given.items() if value is not None or key == "dynamic"}
        return CompileConfig.of(values)


def check_step(glob: str) -> None:
    """Raises ConfigError for what begins with the name of a step and is none: of the steps, those of several optimizers alone have numbers."""
    step, _, rest = glob.partition(".")
    if step in STEP_NAMES and rest and not (step == "optimizer_step" and rest.isdecimal()):
        numbered = "; those of several optimizers are optimizer_step.0, optimizer_step.1, ..." if step == "optimizer_step" else ""
        raise ConfigError(f"compile.modules: {glob!r} is no step: the step is {step!r}{numbered}")


def close(name: str, names: Sequence[str]) -> bool:
    """Whether it may be one of the names, mistyped."""
    return bool(difflib.get_close_matches(name, names, n=1, cutoff=0.75))


def by_glob(modules: Any) -> dict[str, CompileValues]:
    """The options of each glob of `compile.modules`. Raises ConfigError for what is no form of it."""
    if isinstance(modules, str):
        modules = [modules]
    if isinstance(modules, Sequence) and all(isinstance(glob, str) for glob in modules):
        modules = dict.fromkeys(modules)
    if modules is None:
        return {}
    if not isinstance(modules, Mapping) or not all(isinstance(glob, str) for glob in modules):
        raise ConfigError(f"compile.modules must map globs to options, for example {{net: {{}}}}, or list globs, not {modules!r}")
    found: dict[str, CompileValues] = {}
    for key, given in modules.items():
        for glob, options in flattened(as_glob(key), given):
            found[glob] = {**found.get(glob, {}), **options}
    return found


def as_glob(key: str) -> str:
    """The glob that a key means."""
    for written, meant in IN_KEYS:
        key = key.replace(written, meant)
    return key


def flattened(glob: str, given: Any) -> Iterator[tuple[str, CompileValues]]:
    """The options of `glob`, and of the modules below it that a nested mapping names: what is no option and maps, names a mode, or is null."""
    given = {"mode": given} if isinstance(given, str) else {} if given is None else given
    if not isinstance(given, Mapping):
        raise ConfigError(f"compile.modules[{glob!r}] must map options to values, or name a mode, not {given!r}")
    below = {key: value for key, value in given.items() if key not in CompileConfig.names() and names_module(str(key), value)}
    if len(below) < len(given) or not given:
        yield glob, {key: value for key, value in given.items() if key not in below}
    for key, value in below.items():
        yield from flattened(f"{glob}.{as_glob(str(key))}" if glob else as_glob(str(key)), value)


def names_module(key: str, value: Any) -> bool:
    """Whether a key that is no option is a module's name, by its value; else it is an option, mistyped."""
    is_short = value is None or (isinstance(value, str) and value.replace("_", "-") in MODES)
    return isinstance(value, Mapping) or (is_short and not close(key, CompileConfig.names()))


def check_compiler_flags(values: CompileValues) -> None:
    """Raises ConfigError for flags of the C++ compiler in a config, which may have come with the artifacts of somebody's run: compilers run programs that
    flags name. Who means them says so by an environment variable; programs pass them in options."""
    given = [options.get("cpp_flags") for options in (values, *by_glob(values.get("modules")).values())]
    if any(given) and os.environ.get(FLAGS_VARIABLE) != "1":
        raise ConfigError(
            f"compile.cpp_flags={next(filter(None, given))!r} comes from a config, and flags of the C++ compiler can run any program: "
            f"set {FLAGS_VARIABLE}=1 in the environment if you trust this config"
        )


def check_dispatch(name: str, given: Any) -> None:
    """Raises ConfigError for what is no form of one name's dispatch."""
    if not isinstance(given, Mapping) or not callable(given.get("by")) or not isinstance(given.get("options", {}), Mapping):
        raise ConfigError(f"dispatch[{name!r}] must be {{by: function of a call's arguments that gives a key, options: {{key: {{...}}}}}}, not {given!r}")
    for key in given:
        if key not in ("by", "options"):
            raise ConfigError(f"dispatch[{name!r}]: unknown key {key!r}: {nearest(str(key), ('by', 'options'))}")
    for key, options in given.get("options", {}).items():
        try:
            CompileConfig.of(options)
        except ConfigError as error:
            raise ConfigError(f"dispatch[{name!r}][{key!r}]: {error}") from error


def dispatch_arguments(settings: CompileSettings, name: str) -> dict[str, Any]:
    """The keyword arguments of `dynacompile.compile` that mean the dispatch of a step or module."""
    given = settings.dispatch.get(name)
    if given is None:
        return {}
    return {"dispatch": given["by"], "dispatch_options": {key: dict(options) for key, options in given.get("options", {}).items()}}


def call_arguments(config: CompileConfig) -> dict[str, Any]:
    """The keyword arguments of `dynacompile.compile` that mean `config`; what equals the default is left out."""
    plain = CompileConfig()
    changed = {name: getattr(config, name) for name in CompileConfig.names() if getattr(config, name) != getattr(plain, name)}
    options = {name: value for name, value in changed.items() if name not in KEYWORDS}
    return {name: changed[name] for name in KEYWORDS if name in changed} | ({"options": options} if options else {})
