"""Says which rank compiles what, where processes train together and others may be waiting for it in a collective.

A compile asks no other process for anything, so a rank that compiles longer than others holds them up in their next collective, and no longer than it
takes. Whoever looks at a run that stands still is told why.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from dynacompile.complaints import COMPLAINTS
from dynacompile.env import watchdog_seconds
from dynacompile.threads import after, can_start_threads


def together() -> bool:
    """Whether this process works with others, with which it reduces gradients or does other collectives."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextmanager
def watched(what: str, region: str) -> Iterator[None]:
    """A block in which this rank compiles, and does not take part in collectives. what: it compiles, builds, ..."""
    seconds = watchdog_seconds() if together() and can_start_threads() else 0.0
    if not seconds:
        yield
        return
    end = after(seconds, functools.partial(tell, what, region, time.monotonic()))
    try:
        yield
    finally:
        end()


def tell(what: str, region: str, begin: float) -> None:
    """Warns once for a region and what is done for it."""
    if not together():
        return
    rank, ranks, seconds = dist.get_rank(), dist.get_world_size(), time.monotonic() - begin
    COMPLAINTS.warn(
        ("watchdog", region, what),
        f"rank {rank} of {ranks} has been {what} region {region!r} for {seconds:.0f} s and goes on; ranks that have come to their next collective "
        "wait for it. DYNACOMPILE_WATCHDOG_SECONDS says from when on this is told (0: never)",
    )
