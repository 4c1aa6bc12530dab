"""Functions of the standard library that are written in C, in plain Python that capture follows.

Each does what its model does, in the same order: comparisons, calls of the user's methods, what is left behind where one of them raises, and what is
raised. `TABLE` says which model each stands for; `tests/capture/test_polyfills.py` holds them against their models. They import nothing of capture.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from dynacompile.capture.polyfills import heaps, ordered_search

TABLE: dict[Any, Callable[..., Any]] = {**heaps.TABLE, **ordered_search.TABLE}
FOLDER = __file__.rpartition("/")[0] + "/"


def is_polyfill(code: CodeType) -> bool:
    return code.co_filename.startswith(FOLDER)
