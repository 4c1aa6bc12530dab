"""Blocks of operations that repeat themselves on the same symbolic sizes, of which only the first is asked about its sizes (`ir/repeated_fakes.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def repeating(number: int | torch.SymInt) -> Iterator[None]:
    """While operations on sizes that follow from `number` repeat themselves: what an operation gives is kept until the end, where it is one new tensor.
    Without effect where the number is no symbol."""
    env: Any = number.node.shape_env if isinstance(number, torch.SymInt) else None
    if env is None or known_in(env) is not None:
        yield
        return
    env.repeats = {}
    try:
        yield
    finally:
        del env.repeats


def known_in(env: Any) -> dict[Any, tuple] | None:
    return getattr(env, "repeats", None)
