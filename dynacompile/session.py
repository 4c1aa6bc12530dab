"""The state of the compiler in one process, and which code it leaves alone."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
import weakref
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from dynacompile import native
from dynacompile.events import Bus

DEFAULT_BUCKET = -1


class Session:
    """The state of the compiler in one process: subscribers, buckets, the code that was compiled."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.lock = threading.RLock()
        self._buckets = itertools.count()
        self._graphs = itertools.count()
        self._class_buckets: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.codes: weakref.WeakSet[CodeType] = weakref.WeakSet()
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
        if self.ready:
            for code in codes:
                native.core().reset_code(code)


SESSION = Session()


def skipped_folders() -> list[tuple[str, bool]]:
    """(folder, recursive): code there runs as plain Python; recursive: so does all that it calls.

    The standard library and torch are skipped, but what they call is met (a hook, a checkpointed function); torch.nn's layers are compiled.
    """
    torch_folder = Path(torch.__file__).parent
    inside = [p for p in torch_folder.iterdir() if p.is_dir() and p.name != "nn"] + [torch_folder / "nn" / d for d in ("utils", "parallel", "quantized")]
    files = [torch_folder / f for f in ("_ops.py", "_tensor.py", "functional.py", "overrides.py", "library.py", "_compile.py", "random.py", "_jit_internal.py", "_utils.py", "__init__.py")]
    stdlib = Path(sys.modules["os"].__file__ or "").parent
    ours = Path(__file__).parent
    names = [p for p in stdlib.iterdir() if p.name != "site-packages"]
    return [(str(p), False) for p in [*inside, *files, torch_folder / "nn" / "modules" / "module.py", ours, *names]]
