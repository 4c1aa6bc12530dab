"""The start-up self-test of the native core: what its hot path assumes about this CPython and this torch, tried once per process."""

from __future__ import annotations

from types import ModuleType


def failure(core: ModuleType) -> str:
    """The first assumption that does not hold, or an empty string."""
    return ""
