"""The compiled parts of one training run, and putting them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import MappingProxyType, MethodType
from typing import Any, Protocol

from torch import nn

import dynacompile
from dynacompile.callbacks import optimizer_step
from dynacompile.callbacks.globs import Target
from dynacompile.callbacks.optimizer_step import OptimizerStep
from dynacompile.callbacks.settings import CompileSettings, call_arguments, dispatch_arguments
from dynacompile.config import CompileConfig
from dynacompile.targets import absent_names, nothing_compiled, share_names, was_called

dynacompile.leave_to_python(optimizer_step)
dynacompile.leave_to_python(OptimizerStep.__call__, reason="an optimizer's step is compiled by itself")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Installed(Protocol):
    """What takes the place of a function of the run's, as an optimizer's step."""

    def laid_aside(self) -> AbstractContextManager[Any]: ...


class CompiledParts:
    """The compiled parts of one run. They have buckets of their own, which go with them.

    names: of what is compiled, in the order in which it was. modules: those that are compiled in place, by name.
    """

    def __init__(self, settings: CompileSettings):
        self.settings = settings
        self.modules: dict[str, nn.Module] = {}
        self._options: dict[str, CompileConfig] = {}  # of modules
        self.regions: dict[str, Any] = {}
        self.optimizers: list[Installed] = []
        self._own = ExitStack()
        self._scope: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.modules, *self.regions)

    @property
    def options(self) -> dict[str, CompileConfig]:
        """What the user's settings are for each compiled part, by its name."""
        return {**{name: self._options[name] for name in self.modules}, **{name: self.settings.of_step(name) for name in self.regions}}

    def compile_modules(self, targets: list[Target]) -> None:
        """Compiles modules in place."""
        with self.isolated():
            for target in targets:
                before = {name: target.module.__dict__.get(name) for name in ("_compiled_call_impl", "buckets")}
                arguments = call_arguments(target.options) | dispatch_arguments(self.settings, target.name)
                dynacompile.compile(target.module, inplace=True, name=target.name, **arguments)
                self.note_names(target.module, target.globs)
                self.modules[target.name], self._options[target.name] = target.module, target.options
                self._own.callback(put_back, target.module, before)

    def note_names(self, compiled: Any, globs: Sequence[str]) -> None:
        """A tensor or number that `dynamic` or `varying` names has to be there where `modules` says so of this part alone: a name that all parts share may be
        that of another."""
        share_names(compiled, (key for glob in globs for key in named(CompileConfig.of(self.settings.overrides[glob]))))

    def absent(self) -> Iterator[str]:
        """What is told of each name that the settings give for all parts, and that none of the parts has which calls have come through. Nothing where that is
        not known of one of them, which has a graph break or waits."""
        called = [compiled for name, compiled in self.compiled() if name not in self.idle()]
        found = [absent_names(compiled) for compiled in called]
        for option, name in named(self.settings.base):
            told = [known.get((option, name)) if known is not None else None for known in found]
            if told and all(told):
                yield f"compile.{option} names {told[0]}"

    def compiled(self) -> Iterator[tuple[str, Any]]:
        """The parts by name, as `dynacompile.compile` gave them, the steps first."""
        yield from ((name, region.compiled if isinstance(region, OptimizerStep) else region) for name, region in self.regions.items())
        yield from self.modules.items()

    def arguments(self, name: str, varying: tuple[str, ...]) -> dict[str, Any]:
        """What compile() is called with for a step."""
        options = self.settings.of_step(name)
        return call_arguments(dataclasses.replace(options, varying=(*options.varying, *varying))) | dispatch_arguments(self.settings, name)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        with dynacompile.isolated(self._scope) as self._scope:
            yield

    def idle(self) -> tuple[str, ...]:
        """Names of what no call has come through so far."""
        idle = [name for name, module in self.modules.items() if nothing_compiled(module)]
        return (*idle, *(name for name, region in self.regions.items() if not is_called(region)))

    def left(self) -> list[tuple[str, str]]:
        """Rows on optimizers whose steps are Python, with the reason."""
        steps = [(name, region) for name, region in self.regions.items() if isinstance(region, OptimizerStep)]
        reasons = [(name, step.why_left() or ("" if is_called(step) else step.why_passed_by())) for name, step in steps]
        return [("left to Python", f"{name}: {reason}") for name, reason in reasons if reason]

    @contextmanager
    def laid_aside(self) -> Iterator[None]:
        """The run as it is without a compiler; everything is put back as it was."""
        with ExitStack() as back:
            back.enter_context(self.modules_laid_aside())
            for part in self.optimizers:
                back.enter_context(part.laid_aside())
            for name, region in self.regions.items():
                if isinstance(region, MethodType):
                    owner: Any = region.__self__
                    back.callback(put_back, owner, {name: owner.__dict__.pop(name)})
            yield

    @contextmanager
    def modules_laid_aside(self) -> Iterator[None]:
        with ExitStack() as back:
            for module in self.modules.values():
                back.callback(put_back, module, {"_compiled_call_impl": module.__dict__.pop("_compiled_call_impl", None)})
            yield

    def release(self) -> None:
        """Puts everything back as it was before. Safe to repeat."""
        self._own.close()
        self.modules, self.regions, self.optimizers, self._scope = {}, {}, [], None


def named(config: CompileConfig) -> Iterator[tuple[str, str]]:
    """The names that `dynamic` and `varying` give, each with its option."""
    yield from (("dynamic", name) for name in config.declared_shapes())
    yield from (("varying", name) for name in config.varying)


def is_called(region: Any) -> bool:
    """Whether a call has come through a compiled step."""
    compiled = region.compiled if isinstance(region, OptimizerStep) else region
    return was_called(compiled)


def put_back(module: nn.Module, attributes: Mapping[str, Any], ours: Mapping[str, Any] = NOTHING) -> None:
    """Gives a module's attributes the values that they had; None: it had none. ours: attributes of which only these values are replaced. What somebody
    else has put or left there meanwhile, as a callback that wraps a step and takes its wrapper away again, stays."""
    for name, value in attributes.items():
        if name in ours and module.__dict__.get(name) is not ours[name]:
            continue
        if value is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = value
