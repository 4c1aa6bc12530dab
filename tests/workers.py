"""The worker that compiles Triton's kernels, as a module of this process: it is a script, which imports nothing of dynacompile."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

from dynacompile.build import pool


@functools.cache
def triton_worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("triton_worker", Path(pool.__file__).with_name("triton_worker.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
