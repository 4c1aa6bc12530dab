"""What the environment says (variables, folders), and the context that stages take."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError
from dynacompile.events import Event, Observer
from dynacompile.trusted import secret


def unobserved(stage: str, result: object) -> None:
    """The observer where nobody looks at hand-offs."""


@dataclass(frozen=True)
class Env:
    """The context of one compile, passed to every stage.

    config: the options. emit: where events go. region, bucket: names for events. cache: folder of the compile caches.
    hand_off: is told what each stage hands on. breaks: the graph ends before its frame does, so that Python goes on with its results.
    leaves_first_steps: a call in which an optimizer makes its state is left to Python. asks_inputs: branches on what inputs decide are guards. restarts: as in
    Manner. rely: is told of a setting of torch that what is compiled relies on (its name, how it is read, what it was), so that it is guarded; None where
    nothing may rely on settings, since nobody guards them. meanwhile: what the caller has to do while the compilers of kernels run.
    """

    config: CompileConfig
    emit: Callable[[Event], None]
    region: str
    bucket: int
    cache: Path
    hand_off: Observer = unobserved
    breaks: bool = False
    leaves_first_steps: bool = False
    asks_inputs: bool = True
    restarts: bool = True
    rely: Callable[[str, Callable[[], object], object], None] | None = None
    meanwhile: Callable[[], None] | None = None

    def with_config(self, **changes: Any) -> Env:
        return replace(self, config=replace(self.config, **changes))


def cache_dir() -> Path:
    """The folder of the compile caches: DYNACOMPILE_CACHE_DIR, else `dynacompile/compiled` in the user's cache folder. What builds makes it, or not."""
    return chosen_folder("DYNACOMPILE_CACHE_DIR") or user_cache() / "compiled"


def native_dir() -> Path:
    """The folder of the native core: DYNACOMPILE_NATIVE_DIR, else `dynacompile/native` in the user's cache folder."""
    return chosen_folder("DYNACOMPILE_NATIVE_DIR") or user_cache() / "native"


def user_cache() -> Path:
    """`dynacompile` in the user's cache folder. A relative XDG_CACHE_HOME is ignored, as its standard asks for."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else home() / ".cache") / "dynacompile"


def home() -> Path:
    """The user's home. Where the system knows of none, a folder that nobody can make, not even the administrator, so that nothing is kept."""
    found = os.path.expanduser("~")
    return Path(found) if os.path.isabs(found) else Path(os.devnull, "home")


def chosen_folder(variable: str) -> Path | None:
    """The folder that an environment variable names, `~` expanded, absolute from the first time on that it is asked for; None where it is unset."""
    given = os.environ.get(variable)
    return absolute(given, variable) if given else None


@functools.cache
def absolute(given: str, variable: str) -> Path:
    path = os.path.expanduser(given)
    if path.startswith("~"):
        raise ConfigError(f"{variable}={given!r}: there is no home folder {path.split('/')[0]!r}; name the folder by its whole path")
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{variable}={given!r} is relative to the program's folder, which is gone: name the folder by its whole path") from error


def secret_key() -> bytes:
    """The user's key, under which what is kept in the caches is sealed."""
    return secret(user_cache())


def cache_bytes() -> int:
    """How large the compile cache may grow: DYNACOMPILE_CACHE_BYTES, a number with K, M, G or T behind it if need be, else 4G. 0: without a bound."""
    given = os.environ.get("DYNACOMPILE_CACHE_BYTES", "")
    found = re.fullmatch(r"\s*(\d{1,15})\s*([KMGT]?)\s*", given or "4G", re.IGNORECASE)
    if found is None:
        raise ConfigError(f"DYNACOMPILE_CACHE_BYTES must be a number of bytes, such as 500M or 4G, or 0 for no bound, not {given!r}")
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")


def wait_seconds() -> float:
    """How long a process waits for another one that builds the same kernels: DYNACOMPILE_WAIT_SECONDS, else 300. Then it builds them itself."""
    return seconds("DYNACOMPILE_WAIT_SECONDS", 300.0)


def watchdog_seconds() -> float:
    """From when on a rank that compiles says so: DYNACOMPILE_WATCHDOG_SECONDS, else 60. 0: never."""
    return seconds("DYNACOMPILE_WATCHDOG_SECONDS", 60.0)


def seconds(variable: str, default: float) -> float:
    """What an environment variable says in seconds, 0 or more."""
    given = os.environ.get(variable, "")
    found = re.fullmatch(r"\s*(\d{1,9}(\.\d{1,6})?)\s*", given) if given else None
    if given and found is None:
        raise ConfigError(f"{variable} must be a number of seconds, such as 60, not {given!r}")
    return float(found[1]) if found else default


def log_topics() -> frozenset[str]:
    """DYNACOMPILE_LOGS=recompiles,graph_breaks,... as a set; empty when unset."""
    return frozenset(t.strip() for t in os.environ.get("DYNACOMPILE_LOGS", "").split(",") if t.strip())


PREFIX = "DYNACOMPILE_"
VARIABLES = ("ALLOW_CPP_FLAGS", "CACHE_BYTES", "CACHE_DIR", "COMPILER_SECONDS", "LOGS", "NATIVE_DIR", "TRACE", "WAIT_SECONDS", "WATCHDOG_SECONDS")
"""What is read of the environment, behind the prefix."""


def misspelt_variables() -> dict[str, str]:
    """By variable of the environment that nothing reads: the one that its name is near to. Others that begin like ours are their owners'."""
    given = [name.removeprefix(PREFIX) for name in sorted(os.environ) if name.startswith(PREFIX)]
    near = {name: difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.6) for name in given if name not in VARIABLES}
    return {PREFIX + name: PREFIX + known[0] for name, known in near.items() if known}
