"""Nests become one kernel where that saves memory traffic."""

from __future__ import annotations


def fuse(units, env) -> None:
    return None
