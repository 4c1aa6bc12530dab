"""Settings, versions and events as loggers take them: plain values, YAML, a table of Markdown."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from dynacompile.callbacks.ledger import COLUMNS, Told
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.compilers import run_compiler, toolchain
from dynacompile.config import CompileConfig
from dynacompile.errors import BuildError
from dynacompile.quoting import printable

CONFIG_KEY = "dynacompile"
"""Under it loggers keep what we tell them of a run; other keys of a config are the user's."""
PACKAGES = ("dynacompile", "lightning", "triton")


def in_force(settings: CompileSettings, options: Mapping[str, CompileConfig], known: Mapping[str, str]) -> dict[str, Any]:
    """The settings as they are for this run, with versions and hardware. parts: what is compiled, each with the options in which it differs from the settings.
    known: versions."""
    own = {name: plain(getattr(settings, name)) for name in settings.own_names() if name != "modules"}
    base = of_config(settings.base)
    parts = {name: {k: v for k, v in of_config(config).items() if v != base[k]} for name, config in options.items()}
    return {"settings": {**own, **base}, "parts": parts, "versions": dict(known), "hardware": hardware()}


def of_config(config: CompileConfig) -> dict[str, Any]:
    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def plain(value: Any) -> Any:
    """A value of a setting as JSON and YAML have it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return printable(getattr(value, "__qualname__", type(value).__qualname__))


def versions() -> dict[str, str]:
    """Of all that decides what is compiled, and how."""
    known = {name: version for name in PACKAGES if (version := installed(name))}
    more = {"cuda": torch.version.cuda, "compiler": compiler()}
    return {**known, "torch": str(torch.__version__), "python": platform.python_version(), **{name: str(value) for name, value in more.items() if value}}


def hardware() -> dict[str, str]:
    """Of the machine what decides how fast it is."""
    threads = f"{os.cpu_count()} threads, of which torch uses {torch.get_num_threads()}"
    found = {"processor": ", ".join(filter(None, (processor(), threads))), "memory": memory()}
    for index in range(torch.cuda.device_count()):
        of_device = torch.cuda.get_device_properties(index)
        found[f"GPU {index}"] = f"{of_device.name}, {of_device.total_memory / 2**30:.0f} GiB"
    return {name: value for name, value in found.items() if value}


def processor() -> str:
    """Its name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        return ""


def compiler() -> str:
    """The C++ compiler and its version; empty where there is none."""
    try:
        found = toolchain()
        told = None if found is None else run_compiler((*found.command, "-dumpfullversion", "-dumpversion"), "tell its version")
    except BuildError:
        return ""
    return "" if found is None or told is None else printable(" ".join((*found.command, told.output.strip() if told.status == 0 else "")).strip())


def installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def amount(number: float) -> str:
    """A number with three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def counted(count: float, name: str, plural: str = "") -> str:
    """How many there are of something, in words: "1 graph", "2 graphs". plural: where it is not the name and an s."""
    return f"{count:.0f} {name if count == 1 else plural or f'{name}s'}"


def as_code(values: Mapping[str, Any]) -> str:
    """YAML in a block of Markdown."""
    return f"```\n{yaml.safe_dump(dict(values), sort_keys=False)}```"


def as_markdown(rows: Sequence[Told]) -> str:
    """A table of the events."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
