"""Run by test_sharded.py in two processes of gloo: training with sharded parameters, compiled and in eager, to the bit. Prints the name of each case that
held."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import dynacompile
from dynacompile import events
from tests.distributed.by_parameter import gathering, gathers_again
from tests.distributed.models import batch
from tests.distributed.ranks import DEVICE, run_cases

STEPS, WIDTH, DEPTH = 4, 16, 3


class Block(nn.Module):
    """Of small ints, as its input is: sums are exact in any order."""

    def __init__(self, seed: int = 0, again: bool = False):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.again = again
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randint(-1, 2, p.shape, generator=generator))

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu().clamp(max=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)
        return (x + made).clamp(-4, 4)


class Net(nn.Module):
    def __init__(self, again: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(k, again) for k in range(DEPTH))
        if not next(self.parameters()).is_meta:
            self.to(DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def eager(net: nn.Module) -> nn.Module:
    return net


def blocks(net: nn.Module) -> nn.Module:
    for block in net.blocks:
        dynacompile.compile(block, inplace=True)
    return net


def whole(net: nn.Module) -> nn.Module:
    return dynacompile.compile(net)


def counted(
    wrap: Callable[[nn.Module], nn.Module], run: Callable[[nn.Module], list[torch.Tensor]], net: nn.Module
) -> tuple[list[torch.Tensor], dict[str, int]]:
    """What `run` gives for the wrapped net, and how many events of each kind there were."""
    dynacompile.reset()
    seen: list[events.Event] = []
    end = dynacompile.subscribe(seen.append)
    found = run(wrap(net))
    end()
    return found, {kind.__name__: sum(isinstance(e, kind) for e in seen) for kind in (events.Compiled, events.Recompiled, events.LimitHit, events.FrameSkipped)}


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(mine) == len(theirs)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert torch.equal(a, b), f"tensor {i} differs by {(a - b).abs().max()}"


def mesh() -> DeviceMesh:
    return init_device_mesh(DEVICE, (dist.get_world_size(),))


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(net: nn.Module, clip: float = 0.0, accumulated: int = 1) -> list[torch.Tensor]:
    """Results and gradients of each step, and the parameters after the last one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    found: list[torch.Tensor] = []
    for k in range(STEPS):
        for part in range(accumulated):
            out = net(batch(10 * k + dist.get_rank() + 100 * part))
            out.float().sum().backward()
            found.append(out.detach().float().clone())
        if clip:
            found.append(full(nn.utils.clip_grad_norm_(net.parameters(), clip)))
        found += [full(p.grad) for p in net.parameters()]
        with torch.no_grad():
            for p in net.parameters():
                p.grad.sign_()
        optimizer.step()
        optimizer.zero_grad()
    return found + [full(p) for p in net.parameters()]


def sharded(net: Any, **options: Any) -> nn.Module:
    for block in net.blocks:
        fully_shard(block, mesh=mesh(), **options)
    return fully_shard(net, mesh=mesh(), **options)


ENTRIES = {"Compiled": 2, "Recompiled": 1, "LimitHit": 0, "FrameSkipped": 0}
"""Of equal blocks: the first block's input needs no gradient."""


def agrees(again: bool = False, options: dict[str, Any] | None = None, **how: Any) -> None:
    """Compiled by blocks, equal blocks share their entries; compiled whole, FSDP's hooks run as Python between graphs."""
    wanted, _ = counted(eager, lambda net: trained(net, **how), sharded(Net(again), **options or {}))
    by_block, counts = counted(blocks, lambda net: trained(net, **how), sharded(Net(again), **options or {}))
    same(by_block, wanted)
    assert counts == ENTRIES, counts
    together, counts = counted(whole, lambda net: trained(net, **how), sharded(Net(again), **options or {}))
    same(together, wanted)
    assert not counts["LimitHit"] and not counts["FrameSkipped"], counts


def plain() -> None:
    agrees()


def kept_after_forward() -> None:
    agrees(options={"reshard_after_forward": False})


def mixed_precision() -> None:
    agrees(options={"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)})


def offloaded() -> None:
    agrees(options={"offload_policy": CPUOffloadPolicy(pin_memory=False)})


def checkpointed() -> None:
    agrees(again=True)


def clipped() -> None:
    agrees(clip=0.5)


def accumulated() -> None:
    agrees(accumulated=2)


def synchronized_last() -> None:
    """Methods of FSDP are asked of what compile() gave."""

    def steps(net: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for k in range(STEPS):
            for part in range(2):
                net.set_requires_gradient_sync(part == 1)
                net(batch(10 * k + dist.get_rank() + 100 * part)).sum().backward()
            found += [full(p.grad) for p in net.parameters()]
            net.zero_grad()
        return found

    wanted = steps(sharded(Net()))
    for wrap in (blocks, whole):
        found, _ = counted(wrap, steps, sharded(Net()))
        same(found, wanted)


def checkpointed_by_wrappers() -> None:
    """`checkpoint_wrapper` around each block, compiled with what it wraps."""

    def made(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        net = Net()
        for k, block in enumerate(net.blocks):
            net.blocks[k] = checkpoint_wrapper(block)
        return sharded(wrap(net))

    wanted, _ = counted(eager, trained, made(eager))
    dynacompile.reset()
    found, counts = counted(eager, trained, made(blocks))
    same(found, wanted)
    assert counts == ENTRIES, counts


def built_on_meta() -> None:
    def made() -> nn.Module:
        with torch.device("meta"):
            net = Net()
        net = sharded(net)
        net.to_empty(device=DEVICE)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(distribute_tensor(torch.arange(p.numel(), device=DEVICE).reshape(p.shape) % 3.0 - 1, mesh(), [Shard(0)]))
        return net

    wanted, _ = counted(eager, trained, made())
    found, counts = counted(blocks, trained, made())
    same(found, wanted)
    assert counts == ENTRIES, counts


FEW, JOINED = {"flight_bytes": 1 << 11}, {"collective_bytes": 1 << 12}
GATHERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kept": ({}, {}),
    "again": ({}, {"regather": True}),
    "again, as the user says, few at a time": ({"contexts": gathers_again}, FEW),
    "again, few at a time, joined": ({}, {"regather": True, **FEW, **JOINED}),
    "uneven, few at a time": ({"uneven": True}, FEW),
    "uneven, again, few at a time, joined": ({"uneven": True}, {"regather": True, **FEW, **JOINED}),
}
"""Arguments of by_parameter, and options."""


def gathered_by_parameter(name: str) -> Callable[[], None]:
    """Collectives in the graph, which is one: parameters are gathered where they are read, all kept or gathered again, few at a time, or joined."""
    how, options = GATHERED[name]

    def case() -> None:
        wanted, _ = counted(eager, trained, by_parameter(Net(), **how))
        found, counts = counted(partial(dynacompile.compile, fullgraph=True, options=options), trained, by_parameter(Net(), **how))
        same(found, wanted)
        assert counts == {"Compiled": 1, "Recompiled": 0, "LimitHit": 0, "FrameSkipped": 0}, counts

    case.__name__ = f"gathered by parameter, {name}"
    return case


def by_parameter(net: Net, uneven: bool = False, **how: Any) -> nn.Module:
    """uneven: with a head of a size that the ranks have unequal parts of."""
    if uneven:
        net.blocks.append(nn.Linear(WIDTH, 5).requires_grad_())
        nn.init.ones_(net.blocks[-1].weight)
        nn.init.zeros_(net.blocks[-1].bias)
    return gathering(net, mesh(), **how)


def state_dicts() -> None:
    """Full, and sharded through the distributed checkpoint: names and values are eager's, and training goes on from either."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    found = []
    for wrap in (eager, blocks):
        net = wrap(sharded(Net()))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
        trained(net)
        whole_state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
        model_state, optimizer_state = get_state_dict(net, optimizer)
        place = Path(folder[0]) / wrap.__name__
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=place)
        after = trained(net)
        other = (blocks if wrap is eager else eager)(sharded(Net()))
        optimizer = torch.optim.AdamW(other.parameters(), lr=0.5)
        model_state, optimizer_state = get_state_dict(other, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=place)
        set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        same(trained(other), after)
        found.append((list(whole_state), [t.clone() for t in whole_state.values()]))
    assert found[0][0] == found[1][0]
    same(found[0][1], found[1][1])


def parallel(net: nn.Module, sequence: bool = False) -> nn.Module:
    for block in net.blocks:
        up = ColwiseParallel(input_layouts=Shard(0)) if sequence else ColwiseParallel()
        down = RowwiseParallel(output_layouts=Shard(0)) if sequence else RowwiseParallel()
        parallelize_module(block, mesh(), {"up": up, "down": down})
    return net


def alike(net: nn.Module) -> list[torch.Tensor]:
    """Steps on data that all ranks have alike, as tensor parallelism wants them."""
    found: list[torch.Tensor] = []
    for k in range(STEPS):
        out = net(batch(k))
        out.sum().backward()
        found += [out.detach().clone(), *(full(p.grad) for p in net.parameters())]
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.grad.sign())
        net.zero_grad()
    return found + [full(p) for p in net.parameters()]


ALL = [0, 1]


def talks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Every kind of collective, with temps between that want memory, results that nothing uses, and equal calls."""
    size = dist.get_world_size()
    sent = x * 2
    begun = torch.ops._c10d_functional.all_gather_into_tensor(sent, size, "0")
    scattered = torch.ops._c10d_functional.reduce_scatter_tensor(x + 3, "sum", size, "0")
    rows = ((x.sum(0, keepdim=True) + x).clamp(max=3).sum(1, keepdim=True) * x).sum(0, keepdim=True) + x * 4
    functional.all_reduce(rows, "max", ALL)
    once = functional.all_reduce(x, "sum", ALL) + functional.all_reduce(x, "sum", ALL)
    number = functional.all_reduce(torch.tensor(2.0, device=x.device), "sum", ALL)
    exchanged = functional.all_to_all_single(x.flatten() + 1, None, None, ALL)
    gathered = torch.ops._c10d_functional.wait_tensor(begun)
    return gathered + 1, torch.ops._c10d_functional.wait_tensor(scattered) * 2, once * number, exchanged - 1, rows


def collectives() -> None:
    """Compiled on both ranks, and on one of them alone, whose partner is late: the calls are the same, in the same order."""
    compiled = dynacompile.compile(talks, fullgraph=True)
    for k in range(6):
        x = batch(10 * k + dist.get_rank(), rows=64, width=256)
        wanted = [t.clone() for t in talks(x)]
        if k % 2 == dist.get_rank():
            time.sleep(0.05)  # the other rank's calls are under way meanwhile
        both = k < 4 or dist.get_rank() == k % 2
        same(list((compiled if both else talks)(x)), wanted)


CASES = (
    collectives,
    plain,
    kept_after_forward,
    mixed_precision,
    offloaded,
    checkpointed,
    clipped,
    accumulated,
    synchronized_last,
    checkpointed_by_wrappers,
    *map(gathered_by_parameter, GATHERED),
    built_on_meta,
    state_dicts,
)
FURTHER = frozenset({f"gathered by parameter, {name}" for name in ("again", "again, as the user says, few at a time", "uneven, few at a time")})


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
