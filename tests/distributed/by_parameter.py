"""Sharded training as SimpleFSDP has it: parameters are DTensors of which each rank has a part, and whoever reads one gathers it; its gradient is scattered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def gathers_again() -> Any:
    """As torchtitan's `fsdp_policy`."""

    def policy(ctx: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        gathers = {torch.ops._c10d_functional.all_gather_into_tensor.default, torch.ops._c10d_functional.wait_tensor.default}
        return CheckpointPolicy.MUST_RECOMPUTE if func in gathers else CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(policy)


def keeps_gathers() -> Any:
    return create_selective_checkpoint_contexts(lambda ctx, func, *args, **kwargs: CheckpointPolicy.MUST_SAVE)


class Gathering(nn.Module):
    """contexts: what a checkpoint around the gather is given; None: there is none."""

    def __init__(self, contexts: Callable[[], Any] | None, dtype: torch.dtype | None):
        super().__init__()
        self.contexts, self.dtype = contexts, dtype

    def gather(self, x: Any) -> torch.Tensor:
        whole = x.redistribute(placements=[Replicate()], forward_dtype=self.dtype, backward_dtype=None if self.dtype is None else torch.float32)
        return whole.to_local(grad_placements=[Partial()])

    def forward(self, x: Any) -> torch.Tensor:
        if self.contexts is None:
            return self.gather(x)
        return checkpoint(self.gather, x, use_reentrant=False, context_fn=self.contexts)


def gathering(
    net: nn.Module, mesh: DeviceMesh, contexts: Callable[[], Any] | None = None, dtype: torch.dtype | None = None, dim: Callable[[str], int] = lambda name: 0
) -> nn.Module:
    """The net with the parameters of each module as DTensors, and a class for each module whose properties gather them. dim: of the cut, by name."""
    for module in net.modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            module.register_parameter(name, nn.Parameter(distribute_tensor(getattr(module, name).detach(), mesh, [Shard(dim(name))])))
        read = Gathering(contexts, dtype)
        reads = {name: property(lambda self, name=name, read=read: read(self._parameters[name])) for name in names}
        module.__class__ = type(f"Gathering{type(module).__name__}", (type(module),), reads)
    return net
