"""Builds and loads `ticks.cpp`, and calls a function with an exception at the n-th place at which CPython looks for signals."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import signal
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import dynacompile
from dynacompile import native
from dynacompile.env import native_dir

SOURCE = Path(__file__).with_name("ticks.cpp")
MANY = 1 << 60


@functools.cache
def ticks() -> ModuleType:
    tools = native.toolchain()
    assert tools is not None
    key = hashlib.sha256(f"{SOURCE.read_text()} {sys.version}".encode()).hexdigest()[:16]
    library = native_dir() / f"ticks-{key}.so"
    if not library.exists():
        partial = library.with_suffix(f".{id(tools)}.tmp")
        command = [*tools.command, "-shared", "-fPIC", "-O1", f"-I{sysconfig.get_path('include')}", str(SOURCE), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        partial.rename(library)
    loader = importlib.machinery.ExtensionFileLoader("ticks", str(library))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("ticks", loader, origin=str(library)))
    loader.exec_module(module)
    signal.signal(signal.SIGUSR2, module.on_signal)
    return module


@dataclass
class Outcome:
    """What a call with an exception in its midst came to. places: at which CPython looked for signals. ignored: what Python dropped, since it was raised
    in a finalizer or the like, and what raised it. where: the frames that were interrupted, the innermost first."""

    result: Any = None
    raised: BaseException | None = None
    places: int = 0
    fired: bool = False
    ignored: list[str] = field(default_factory=list)
    where: str = ""


@contextmanager
def dropped(into: list[str]) -> Iterator[None]:
    before, sys.unraisablehook = sys.unraisablehook, lambda what: into.append(f"{type(what.exc_value).__name__} in {what.object!r}")
    try:
        yield
    finally:
        sys.unraisablehook = before


def interrupted(run: Callable[[], Any], place: int, error: BaseException | None, sent: int = 0, then: Callable[[], None] = lambda: None) -> Outcome:
    """Calls `run`; at the given place `then` is called and `error` raised, if there is one; or where `sent` is a signal, that one is handled."""
    outcome, module = Outcome(), ticks()

    @dynacompile.disable
    def notice() -> None:
        frames = [f"{f.name} {Path(f.filename).name}:{f.lineno}" for f in reversed(traceback.extract_stack()[:-1])]
        outcome.where = " < ".join(frames[:14])
        then()

    with dropped(outcome.ignored):
        try:
            module.start(place, error, sent, notice)
            outcome.result = run()
        except BaseException as raised:  # noqa: BLE001 - it is what is looked at
            outcome.raised = raised
        finally:
            outcome.places, outcome.fired = module.stop()
    return outcome
