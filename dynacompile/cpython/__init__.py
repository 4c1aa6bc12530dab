"""What differs between versions of CPython, in Python (`v311.py` and so on) and in C++ (`v311.h`): one file for each and language."""

from __future__ import annotations

import importlib
import sys

from dynacompile.cpython.instructions import Version

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def version_of(running: tuple[int, int]) -> Version:
    """What the running version has of its own. `native.core` refuses versions that are not supported; until then they count as the nearest that is."""
    major, minor = min(max(running, SUPPORTED[0]), SUPPORTED[-1])
    version: Version = importlib.import_module(f"{__name__}.v{major}{minor}").VERSION
    return version


RUNNING = version_of(sys.version_info[:2])
