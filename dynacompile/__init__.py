"""dynacompile: a compiler for PyTorch programs. See README.md beside this file for the map."""

from __future__ import annotations

import gc

_collects = gc.isenabled()
gc.disable()  # a collection goes through all of torch's objects, too, and would be a third of the time that the import takes
try:
    from dynacompile import errors as exc
    from dynacompile.api import cache_entries, compile, decompile, explain, isolated, list_backends, reset, restore, subscribe, subscribe_from_environment, wait
    from dynacompile.markers import (
        after_graph,
        allow_in_graph,
        disable,
        graph_break,
        is_compiling,
        leave_to_python,
        mark_dynamic,
        mark_static,
        maybe_mark_dynamic,
        trace_through,
    )
    from dynacompile.timing import kernel_times
finally:
    if _collects:
        gc.enable()

__version__ = "0.1.0"
__all__ = [
    "after_graph",
    "allow_in_graph",
    "cache_entries",
    "compile",
    "decompile",
    "disable",
    "exc",
    "explain",
    "graph_break",
    "is_compiling",
    "isolated",
    "kernel_times",
    "leave_to_python",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "reset",
    "restore",
    "subscribe",
    "trace_through",
    "wait",
]

subscribe_from_environment()
