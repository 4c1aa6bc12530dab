"""Run by test_dying.py in two processes: one rank dies or fails in a compile or in a step, and the other one must end, too. Argument: how."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dynacompile
from tests.distributed.models import Layers, batch


def dies(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def breaks(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x.sin()


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    failing = dist.get_rank() == 1
    model = Layers()
    if failing and how == "dies in a compile":
        wrapped: Any = dynacompile.compile(model, backend=dies)
    else:
        wrapped = dynacompile.compile(model, options={"gradient_bytes": 1})
    wrapped = DistributedDataParallel(wrapped, bucket_cap_mb=0.002)
    for step in range(3):
        loss = wrapped(batch(step)).sum()
        if failing and step == 1 and how == "dies in a step":
            model.layers[3].weight.register_post_accumulate_grad_hook(dies)
        if failing and step == 1 and how == "refuses to compile":
            dynacompile.compile(breaks, fullgraph=True)(torch.ones(2))
        loss.backward()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
