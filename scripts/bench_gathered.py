"""Collectives of shards in the graph beside `fully_shard`, on the GPUs of one host.

torchrun --nproc-per-node 2 scripts/bench_gathered.py [--levels ...] [--steps 10] [--tiny --device cpu]: first checks each way on a small model, losses and
gradients against eager of the same way. Then measures a Llama-like model of 1.1 billion parameters: milliseconds of a step, peak memory, communication and its
exposed part (from the profiler), seconds of the first step. "graph": parameters are DTensors that a property gathers (`tests/distributed/by_parameter.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from bench_ddp import communication, synchronize, timed  # noqa: E402
from bench_sharded import Llama  # noqa: E402

import dynacompile  # noqa: E402
from tests.distributed.by_parameter import gathering, gathers_again  # noqa: E402

TINY, LARGE, CHECK = (2, 32, 2, 64, 128, 32), (16, 2048, 16, 5632, 32000, 2048), (3, 128, 4, 256, 512, 64)
MB = 1 << 20
LEVELS = {  # way, how it is compiled, options
    "fsdp eager": ("fsdp", "eager", {}),
    "fsdp blocks": ("fsdp", "blocks", {}),
    "fsdp whole": ("fsdp", "whole", {}),
    "graph eager": ("graph", "eager", {}),
    "graph kept": ("graph", "whole", {}),
    "graph regather": ("graph", "whole", {"regather": True}),
    "graph regather joined 64M": ("graph", "whole", {"regather": True, "collective_bytes": 64 * MB}),
    "graph regather joined 256M": ("graph", "whole", {"regather": True, "collective_bytes": 256 * MB}),
    "graph regather 256M": ("graph", "whole", {"regather": True, "flight_bytes": 256 * MB}),
    "graph regather one": ("graph", "whole", {"regather": True, "flight_bytes": 0}),
    "graph policy": ("policy", "whole", {}),
}


def make(way: str, how: str, options: dict, sizes: tuple, device: torch.device, dtype: torch.dtype | None) -> tuple[nn.Module, nn.Module]:
    """The model, and what is called."""
    torch.manual_seed(0)
    with device:
        model = Llama(*sizes)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if how == "blocks":
        for block in model.blocks:
            dynacompile.compile(block, inplace=True)
    if way == "fsdp":
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    else:
        gathering(model, mesh, contexts=gathers_again if way == "policy" else None, dtype=dtype)
    return model, (dynacompile.compile(model, options=options, fullgraph=way != "fsdp") if how == "whole" else model)


def full(t: torch.Tensor) -> torch.Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().float()


def check(device: torch.device) -> int:
    """Against the same way in eager, in float32: largest relative difference of losses and gradients over three steps. Gives how many ways failed."""
    failed = 0
    reference: dict[str, list[torch.Tensor]] = {}
    for name, (way, how, options) in LEVELS.items():
        try:
            dynacompile.reset()
            model, called = make(way, how, options, CHECK, device, None)
            optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
            for k in range(3):
                generator = torch.Generator().manual_seed(10 * k + dist.get_rank())
                tokens = torch.randint(0, CHECK[4], (2, CHECK[5]), generator=generator).to(device)
                loss = called(tokens)
                loss.backward()
                found += [loss.detach().float(), *(full(p.grad) for p in model.parameters())]
                optimizer.step()
                optimizer.zero_grad()
            wanted = reference.setdefault("fsdp" if way == "fsdp" else "graph", found)
            worst = max(((a - b).abs().max() / (a.abs().max() + 1e-6)).item() for a, b in zip(wanted, found, strict=True))
            failed += worst >= 2e-3
            print(f"rank {dist.get_rank()} check {name:28} {'held' if worst < 2e-3 else 'FAILED'} {worst:.1e}", flush=True)
        except Exception:  # noqa: BLE001 - the other levels are still run
            traceback.print_exc()
            print(f"rank {dist.get_rank()} check {name:28} FAILED with an error", flush=True)
            failed += 1
        dist.barrier()
    return failed


def measure(name: str, device: torch.device, sizes: tuple, steps: int) -> None:
    way, how, options = LEVELS[name]
    dynacompile.reset()
    dtype = torch.bfloat16 if device.type == "cuda" else None
    model, called = make(way, how, options, sizes, device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(0, sizes[4], (2, sizes[5]), generator=generator).to(device)
    kept: list[torch.Tensor] = []

    def step() -> None:
        loss = called(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        kept[:] = [loss.detach()]

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    dist.barrier()
    start = time.perf_counter()
    step()
    synchronize(device)
    first = time.perf_counter() - start
    for _ in range(4):
        step()
    dist.barrier()
    took = timed(step, steps, device)
    text = f"{name:28} first {first:6.1f} s  step {took:8.2f} ms  loss {kept[0].item():.4f}"
    if device.type == "cuda":
        text += f"  peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        whole, exposed = communication(step, 2)
        text += f"  communication {whole:6.2f} ms, exposed {exposed:6.2f} ms"
    print(f"rank {dist.get_rank()} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if args.device == "cuda" else torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    failed = 0 if args.no_check else check(device)
    for name in args.levels.split(","):
        try:
            measure(name, device, TINY if args.tiny else LARGE, args.steps)
        except Exception:  # noqa: BLE001 - the other levels are still run
            traceback.print_exc()
            print(f"rank {dist.get_rank()} {name:28} FAILED", flush=True)
            failed += 1
        if device.type == "cuda":
            torch.cuda.empty_cache()
        dist.barrier()
    dist.destroy_process_group()
    sys.exit(failed and 1)


if __name__ == "__main__":
    main()
