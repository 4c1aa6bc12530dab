"""Runs a module as `python -m tests.distributed.gloo MODULE ARGUMENT...`, with groups of gloo that have one thread each.

Of the two threads that torch gives such a group (2.11 and 2.13), each writes the names of the collectives that began and ended last into strings of the group,
without a lock. Where a name is longer than 15 characters, as ALLGATHER_COALESCED is, both may free the same memory. Eager alone dies of it, within thousands of
calls of `torch.ops._c10d_functional.all_gather_into_tensor`, eight under way at a time.
"""

from __future__ import annotations

import runpy
import sys
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo, Store, distributed_c10d


class OneThread(ProcessGroupGloo):
    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, **more: Any):
        # torch 2.15 passes enable_reconfigure, too, which stays off here.
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_default_device()]
        options._threads = 1
        options._timeout = timeout
        super().__init__(store, rank, size, options)


if __name__ == "__main__":
    distributed_c10d.ProcessGroupGloo = OneThread  # type: ignore[misc]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
