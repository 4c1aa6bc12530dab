"""The state of the compiler in one process, and which code it leaves alone."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
import typing_extensions

from dynacompile import native
from dynacompile.capture import CodeCache
from dynacompile.events import Bus
from dynacompile.markers import DISABLED_CODE

DEFAULT_BUCKET = -1


class Codes:
    """Code objects, none kept alive, each by its identity: functions of the same text have code objects that are equal and own entries of their own."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ReferenceType[CodeType]] = {}

    def add(self, code: CodeType) -> None:
        key, references = id(code), self._references

        def drop(gone: weakref.ReferenceType[CodeType]) -> None:
            if references.get(key) is gone:
                del references[key]

        known = references.get(key)
        if known is None or known() is not code:
            references[key] = weakref.ref(code, drop)

    def __iter__(self) -> Iterator[CodeType]:
        return iter([code for reference in list(self._references.values()) if (code := reference()) is not None])

    def clear(self) -> None:
        self._references.clear()


class Session:
    """The state of the compiler in one process: subscribers, buckets, the code that was compiled."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.lock = threading.RLock()
        self._buckets = itertools.count()
        self._graphs = itertools.count()
        self._class_buckets: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.codes = Codes()
        self.code_cache = CodeCache(drop_entries)
        self.ready = False

    def start(self) -> bool:
        """Loads the native core (built at the first use). False where it does not work here: then regions run eagerly, and a warning says why."""
        usable, reason = native.usable()
        if not usable:
            warnings.warn(f"dynacompile runs eagerly: {reason}", RuntimeWarning, stacklevel=3)
            return False
        if not self.ready:
            for folder, recursive in skipped_folders():
                native.core().add_skip_prefix(folder, recursive)
            native.core().skip_code(DISABLED_CODE, True)
            native.core().skip_code(torch.nn.Module._call_impl.__code__, False)
            native.core().skip_code(torch.nn.Module._wrapped_call_impl.__code__, False)
            self.ready = True
        return True

    def bucket(self, isolate: bool | str, owner: object) -> int:
        """The bucket of a new compile. owner: the function, or the module's class."""
        if isolate is False:
            return DEFAULT_BUCKET
        if isolate == "class":
            with self.lock:
                if owner not in self._class_buckets:
                    self._class_buckets[owner] = next(self._buckets)
                return self._class_buckets[owner]
        return next(self._buckets)

    def next_graph(self) -> int:
        return next(self._graphs)

    def reset(self) -> None:
        """Drops every entry of every compile; the compiled objects stay valid and compile again."""
        with self.lock:
            codes = list(self.codes)
            self.codes.clear()
            self.code_cache.reset()
        if self.ready:
            for code in codes:
                native.core().reset_code(code)
            native.core().release_memory()


def drop_entries(code: CodeType) -> None:
    native.core().reset_code(code)


SESSION = Session()

REPORTERS = ("IPython", "ipykernel", "loguru", "mlflow", "rich", "tensorboard", "tqdm", "wandb")  # what writes for the user, in print()'s place, too


def skipped_folders() -> list[tuple[str, bool]]:
    """(folder or file, recursive): code there runs as plain Python; recursive: so does all that it calls.

    The standard library, NumPy and torch are skipped, but what they call is met (a hook, a checkpointed function); torch.nn's layers are compiled;
    other compilers and their tracing run alone, and so do libraries that report.
    """
    torch_folder = Path(torch.__file__).parent
    alone = [torch_folder / d for d in ("_dynamo", "_inductor", "_functorch", "fx", "_subclasses", "export", "_export")]
    inside = [p for p in torch_folder.iterdir() if p.is_dir() and p.name != "nn" and p not in alone]
    inside += [torch_folder / "nn" / d for d in ("utils", "parallel", "quantized")]
    files = [p for p in torch_folder.iterdir() if p.suffix == ".py"] + [torch_folder / "nn" / f for f in ("modules/module.py", "parameter.py")]
    ours = [p for p in Path(__file__).parent.iterdir() if p.name not in ("selftest.py", "recipes")]  # whose own functions are met
    others = [p for p in Path(os.__file__).parent.iterdir() if p.name != "site-packages"]
    others += [Path(np.__file__).parent, Path(typing_extensions.__file__)]
    specs = [spec for name in REPORTERS if (spec := find_spec(name)) is not None and spec.submodule_search_locations]
    alone += [Path(folder) for spec in specs for folder in spec.submodule_search_locations or ()]
    return [(str(p), True) for p in alone] + [(str(p), False) for p in [*inside, *files, *ours, *others]]
