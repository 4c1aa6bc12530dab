"""bisect over sequences."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any


def place(a: Sequence, x: Any, lo: int, hi: int | None, key: Callable | None, is_right: bool) -> int:
    """Where an item belongs."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    high = len(a) if hi is None or hi == -1 else hi
    while lo < high:
        middle = (lo + high) // 2
        other = a[middle]
        if key is not None:
            other = key(other)
        if x < other if is_right else not other < x:
            high = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Sequence, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> int:
    return place(a, x, lo, hi, key, False)


def bisect_right(a: Sequence, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> int:
    return place(a, x, lo, hi, key, True)


def insort_left(a: list, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> None:
    a.insert(place(a, x if key is None else key(x), lo, hi, key, False), x)


def insort_right(a: list, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable | None = None) -> None:
    a.insert(place(a, x if key is None else key(x), lo, hi, key, True), x)


TABLE = {getattr(bisect, f.__name__): f for f in (bisect_left, bisect_right, insort_left, insort_right)}
