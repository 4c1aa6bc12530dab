"""Run by test_sharded.py in two processes of gloo: training under `FullyShardedDataParallel`, compiled and in eager, to the bit. Prints the name of each case
that held."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.distributed.models import batch
from tests.distributed.ranks import DEVICE, run_cases
from tests.distributed.sharded_ranks import ENTRIES, STEPS, Block, Net, blocks, counted, eager, same, whole

Wrap = Callable[[nn.Module], nn.Module]


def sharded(net: nn.Module, **options: Any) -> nn.Module:
    device = torch.device(DEVICE) if DEVICE == "cpu" else torch.cuda.current_device()
    return Sharded(net, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, **options)


def trained(net: Any, clip: float = 0.0, accumulated: int = 1) -> list[torch.Tensor]:
    """Results, and this rank's part of gradients and parameters."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    found: list[torch.Tensor] = []
    for k in range(STEPS):
        for part in range(accumulated):
            with net.no_sync() if part < accumulated - 1 else nullcontext():
                out = net(batch(10 * k + dist.get_rank() + 100 * part))
                out.float().sum().backward()
            found.append(out.detach().float().clone())
        if clip:
            found.append(net.clip_grad_norm_(clip).detach().clone())
        own = [p for p in net.parameters() if p.grad is not None]
        found += [p.grad.detach().clone() for p in own]
        with torch.no_grad():
            for p in own:
                p.grad.sign_()
        optimizer.step()
        optimizer.zero_grad()
    return found + [p.detach().clone() for p in net.parameters()]


def agrees(again: bool = False, options: dict[str, Any] | None = None, **how: Any) -> None:
    """Compiled before they are wrapped, equal blocks share their entries; around the wrapper, what FSDP does between two blocks runs as Python."""
    run, wrapped = partial(trained, **how), partial(sharded, **{"use_orig_params": True, **(options or {})})
    wanted, _ = counted(eager, run, wrapped(Net(again)))
    found, counts = counted(lambda net: wrapped(blocks(net)), run, Net(again))
    same(found, wanted)
    assert counts == ENTRIES, counts
    for outer in (lambda net: wrapped(whole(net)), lambda net: whole(wrapped(net))):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*compiled in name only")
            found, counts = counted(outer, run, Net(again))
        same(found, wanted)
        assert not counts["LimitHit"], counts


def original_parameters() -> None:
    agrees()


def flat_parameters() -> None:
    agrees(options={"use_orig_params": False})


def kept_after_forward() -> None:
    agrees(options={"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "backward_prefetch": BackwardPrefetch.BACKWARD_POST, "forward_prefetch": True})


def replicated() -> None:
    agrees(options={"sharding_strategy": ShardingStrategy.NO_SHARD})


def mixed_precision() -> None:
    agrees(options={"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)})


def checkpointed() -> None:
    agrees(again=True)


def clipped() -> None:
    agrees(clip=0.5)


def accumulated_without_reduction() -> None:
    agrees(accumulated=2)


def state_dicts() -> None:
    """Names and values of full states are eager's, and training goes on from either."""
    found = []
    for wrap in (eager, blocks):
        net = sharded(wrap(Net()), use_orig_params=True)
        trained(net)
        with Sharded.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
            state = {name: t.clone() for name, t in net.state_dict().items()}
        after = trained(net)
        other = Net()
        other.load_state_dict(state)
        same(trained(sharded((blocks if wrap is eager else eager)(other), use_orig_params=True)), after)
        found.append(state)
    assert list(found[0]) == list(found[1])
    same(list(found[0].values()), list(found[1].values()))


CASES: tuple[Callable[[], None], ...] = (
    original_parameters,
    flat_parameters,
    kept_after_forward,
    replicated,
    mixed_precision,
    checkpointed,
    clipped,
    accumulated_without_reduction,
    state_dicts,
)

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
