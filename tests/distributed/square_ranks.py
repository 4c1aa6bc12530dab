"""Run by test_parallel.py in four processes of gloo: FSDP2 over tensor parallelism, compiled and in eager. Prints the name of each case that held."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dynacompile
from tests.distributed.models import batch
from tests.distributed.parallel_ranks import Made, clipped_step, counted, same
from tests.distributed.ranks import DEVICE, run_cases
from tests.distributed.sharded_ranks import Net, blocks, eager, whole


def square() -> nn.Module:
    """Each layer is cut over one dimension of the mesh, and what is left over the other."""
    both = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("data", "model"))
    net = Net().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # numbers that roundings bring to the other side of no bound
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    for block in net.blocks:
        parallelize_module(block, both["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=both["data"])
    return fully_shard(net, mesh=both["data"])  # type: ignore[return-value]


def steps(net: nn.Module, update: Callable[..., Any] = clipped_step) -> Made:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    found: Made = []
    for k in range(3):
        out = net(batch(10 * k + dist.get_rank() // 2).double() / 3)
        out.sum().backward()
        found += [out.detach(), update(optimizer, net)]
        optimizer.zero_grad()
    return [*found, *(p.detach() for p in net.parameters()), *(v for state in optimizer.state.values() for v in state.values())]


def block_by_block() -> None:
    compiled_by(blocks)


def as_one() -> None:
    compiled_by(whole)


def compiled_by(wrap: Callable[[nn.Module], nn.Module]) -> None:
    wanted = steps(eager(square()))
    found, seen = counted(lambda: steps(wrap(square())))
    same(found, wanted, 1e-9)
    assert seen[3] == seen[4] == 0, seen


def optimizer_step() -> None:
    wanted = steps(eager(square()))
    found, seen = counted(lambda: steps(square(), dynacompile.compile(clipped_step)))
    same(found, wanted, 1e-9)
    assert seen == (1, 0, 0, 0, 0), seen


CASES = (block_by_block, as_one, optimizer_step)
FURTHER = frozenset({"block_by_block"})

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
