"""What the environment says (variables, folders), and the context that stages take."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError
from dynacompile.events import Event, Observer


def unobserved(stage: str, result: object) -> None:
    """The observer where nobody looks at hand-offs."""


@dataclass(frozen=True)
class Env:
    """The context of one compile, passed to every stage.

    config: the options. emit: where events go. region, bucket: names for events. cache: folder of the compile caches.
    hand_off: is told what each stage hands on.
    """

    config: CompileConfig
    emit: Callable[[Event], None]
    region: str
    bucket: int
    cache: Path
    hand_off: Observer = unobserved

    def with_config(self, **changes: Any) -> Env:
        return replace(self, config=replace(self.config, **changes))


def cache_dir() -> Path:
    """The folder of the compile caches: DYNACOMPILE_CACHE_DIR, else `dynacompile` in the user's cache folder. Created on demand, 0700."""
    chosen = os.environ.get("DYNACOMPILE_CACHE_DIR")
    return private_folder(Path(chosen) if chosen else user_cache() / "compiled", "DYNACOMPILE_CACHE_DIR")


def native_dir() -> Path:
    """The folder of the native core: DYNACOMPILE_NATIVE_DIR, else `dynacompile/native` in the user's cache folder."""
    chosen = os.environ.get("DYNACOMPILE_NATIVE_DIR")
    return private_folder(Path(chosen) if chosen else user_cache() / "native", "DYNACOMPILE_NATIVE_DIR")


def user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "dynacompile"


def private_folder(folder: Path, variable: str) -> Path:
    """Makes `folder`; refuses one that other users can write, since we run the code in it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = folder.stat().st_mode
    if mode & (stat.S_IWOTH | stat.S_IWGRP) and folder.stat().st_uid != os.getuid():
        raise ConfigError(f"cache folder {folder} can be written by other users: chmod go-w it, or set {variable} to a private folder")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(f"cache folder {folder} can be written by everybody: chmod o-w it, or set {variable} to a private folder")
    return folder


def log_topics() -> frozenset[str]:
    """DYNACOMPILE_LOGS=recompiles,graph_breaks,... as a set; empty when unset."""
    return frozenset(t.strip() for t in os.environ.get("DYNACOMPILE_LOGS", "").split(",") if t.strip())
