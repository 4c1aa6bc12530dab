"""The compiler takes locks by `with` alone: elsewhere an interrupt can come where a lock is taken that nobody would release (`dynacompile.threads`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dynacompile

FILES = sorted(Path(dynacompile.__file__).parent.rglob("*.py"))
CONDITIONS = frozenset({"Condition", "Thread", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"})
QUEUES = frozenset({"queue", "multiprocessing", "concurrent"})  # modules, which are made of conditions
ASKED = frozenset({"is_alive", "join"})  # of threads; CPython 3.11 takes an interrupted question for the thread's end


def uses(source: str) -> list[str]:
    """What a source uses that waits by conditions."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name("threading"), attr=name) if name in CONDITIONS:
                found.append(f"threading.{name}")
            case ast.ImportFrom(module="threading", names=names):
                found += [f"threading.{alias.name}" for alias in names if alias.name in CONDITIONS]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in QUEUES:
                found.append(module)
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in QUEUES]
            case ast.Attribute(value=ast.Call(func=ast.Attribute(value=ast.Name("threading"))), attr=name) if name in ASKED:
                found.append(f"{name}() of a thread")
    return found


def test_no_file_waits_by_conditions():
    found = {str(path.relative_to(FILES[0].parent)): used for path in FILES if (used := uses(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "source",
    ["threading.Condition()", "from threading import Event", "import queue", "from concurrent.futures import Future", "threading.main_thread().is_alive()"],
)
def test_what_is_no_lock_is_found(source):
    assert uses(source)


def test_locks_may_be_used():
    assert not uses("import threading, time\nwith threading.RLock():\n    threading.get_ident()\n','.join(['a'])")
