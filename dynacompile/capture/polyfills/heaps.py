"""heapq over lists."""

from __future__ import annotations

import heapq
from typing import Any


def is_before(heap: list, left: int, right: int, is_max: bool) -> bool:
    """Whether the item at `left` is to be nearer to the root than the one at `right`."""
    size = list.__len__(heap)
    first, second = list.__getitem__(heap, left), list.__getitem__(heap, right)
    found = bool(second < first if is_max else first < second)
    if list.__len__(heap) != size:
        raise RuntimeError("list changed size during iteration")
    return found


def swap(heap: list, left: int, right: int) -> None:
    kept = list.__getitem__(heap, left)
    list.__setitem__(heap, left, list.__getitem__(heap, right))
    list.__setitem__(heap, right, kept)


def rise(heap: list, start: int, at: int, is_max: bool) -> None:
    """Moves an item towards the root of the part that begins at `start`."""
    while at > start:
        parent = (at - 1) // 2
        if not is_before(heap, at, parent, is_max):
            return
        swap(heap, at, parent)
        at = parent


def settle(heap: list, at: int, is_max: bool) -> None:
    """Moves an item down to a leaf, the better child up in its place, and from there to where it belongs."""
    start, end = at, list.__len__(heap)
    while at < end // 2:
        child = 2 * at + 1
        if child + 1 < end and not is_before(heap, child, child + 1, is_max):
            child += 1
        swap(heap, child, at)
        at = child
    rise(heap, start, at, is_max)


def check_list(heap: Any, argument: str) -> None:
    if not isinstance(heap, list):
        raise TypeError(f"{argument} must be list, not {'None' if heap is None else type(heap).__name__}")


def replaced(heap: list, item: Any, is_max: bool) -> Any:
    first = list.__getitem__(heap, 0)
    list.__setitem__(heap, 0, item)
    settle(heap, 0, is_max)
    return first


def popped(heap: list, is_max: bool) -> Any:
    if not list.__len__(heap):
        raise IndexError("index out of range")
    last = list.pop(heap)
    return replaced(heap, last, is_max) if list.__len__(heap) else last


def exchanged(heap: list, item: Any, is_max: bool) -> Any:
    if not list.__len__(heap):
        raise IndexError("index out of range")
    return replaced(heap, item, is_max)


def ordered(heap: list, is_max: bool) -> None:
    for at in reversed(range(list.__len__(heap) // 2)):
        settle(heap, at, is_max)


def heappush(heap: list, item: Any, /) -> None:
    check_list(heap, "heappush() argument 1")
    list.append(heap, item)
    rise(heap, 0, list.__len__(heap) - 1, False)


def heappushpop(heap: list, item: Any, /) -> Any:
    check_list(heap, "heappushpop() argument 1")
    if not list.__len__(heap) or not list.__getitem__(heap, 0) < item:
        return item
    if not list.__len__(heap):
        raise IndexError("index out of range")
    return replaced(heap, item, False)


def heappop(heap: list, /) -> Any:
    check_list(heap, "heappop() argument")
    return popped(heap, False)


def heapreplace(heap: list, item: Any, /) -> Any:
    check_list(heap, "heapreplace() argument 1")
    return exchanged(heap, item, False)


def heapify(heap: list, /) -> None:
    check_list(heap, "heapify() argument")
    ordered(heap, False)


def heappop_max(heap: list, /) -> Any:
    check_list(heap, "_heappop_max() argument")
    return popped(heap, True)


def heapreplace_max(heap: list, item: Any, /) -> Any:
    check_list(heap, "_heapreplace_max() argument 1")
    return exchanged(heap, item, True)


def heapify_max(heap: list, /) -> None:
    check_list(heap, "_heapify_max() argument")
    ordered(heap, True)


TABLE = {getattr(heapq, f.__name__): f for f in (heappush, heappushpop, heappop, heapreplace, heapify)}
MAXIMA = {"_heappop_max": heappop_max, "_heapreplace_max": heapreplace_max, "_heapify_max": heapify_max}  # which merge and nsmallest call
TABLE |= {getattr(heapq, name): f for name, f in MAXIMA.items() if hasattr(heapq, name)}
