"""What would be compiled, and why so: the table that `compile.show=true` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden
from rich.table import Table
from rich.text import Text

from dynacompile.callbacks.globs import Target
from dynacompile.callbacks.origins import Origins
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.config import CompileConfig
from dynacompile.quoting import printable

Reason = tuple[str, str]  # an option with its value, and where that comes from


@dataclasses.dataclass(frozen=True)
class Planned:
    """A module or step. options: those that are not the defaults."""

    name: str
    kind: str
    options: Sequence[Reason]


def planned(settings: CompileSettings, module: L.LightningModule, targets: Sequence[Target], steps: Sequence[str], known: Origins) -> list[Planned]:
    """Steps first. steps: those that this run calls."""
    found = []
    if settings.enabled and settings.step:
        written = [name for name in steps if is_overridden(name, module) or name == "predict_step"]
        for name in (*written, *(("optimizer_step",) if "training_step" in steps else ())):
            of_step = reasons(settings, settings.of_step(name), settings.globs_of_step(name), known)
            found.append(Planned(name, "step", [*of_step, *dispatched(settings, name)]))
    if settings.enabled:
        for target in targets:
            of_module = reasons(settings, target.options, target.globs, known)
            found.append(Planned(target.name, type(target.module).__name__, [*of_module, *dispatched(settings, target.name)]))
    return found


def reasons(settings: CompileSettings, options: CompileConfig, globs: Sequence[str], known: Origins) -> Iterator[Reason]:
    """The options in which something differs from the defaults, or that a glob names."""
    defaults = CompileConfig()
    for name in CompileConfig.names():
        value: Any = getattr(options, name)
        naming = [glob for glob in globs if name in settings.overrides[glob] and (settings.overrides[glob][name] is not None or name == "dynamic")]
        if naming:
            yield f"{name}={value}", known.of_module(naming[-1], name)
        elif value != getattr(defaults, name):
            yield f"{name}={value}", known.of(name)


def dispatched(settings: CompileSettings, name: str) -> Iterator[Reason]:
    """By what the calls of a step or module have buckets, and the options that differ in each."""
    if name in settings.dispatch:
        given = settings.dispatch[name]
        yield f"dispatch={given['by']!r}", "dispatch"
        for key, options in given.get("options", {}).items():
            yield from ((f"[{key}] {option}={value}", "dispatch") for option, value in options.items())


def table(plan: Sequence[Planned]) -> Table:
    shown = Table(title="what would be compiled (compile.show=true: nothing is trained)", title_justify="left")
    for heading in ("module or step", "class", "option", "from"):
        shown.add_column(heading, overflow="fold")
    for part in plan:
        rows = list(part.options) or [("defaults", "")]
        for at, (option, origin) in enumerate(rows):
            name, kind = (part.name, part.kind) if at == 0 else ("", "")
            shown.add_row(*(Text(printable(cell)) for cell in (name, kind, option, origin)))
    if not plan:
        shown.add_row("nothing", "", "", "")
    return shown
