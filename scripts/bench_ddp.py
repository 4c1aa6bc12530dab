"""DDP on the GPUs of one host: step time, exposed communication and compile time of eager, torch.compile and dynacompile in one run.

torchrun --nproc-per-node 2 scripts/bench_ddp.py [--levels eager,ours,...] [--steps 20]: each rank trains GPT-2 small in bfloat16 (autocast, fused AdamW)
by itself, then under DDP. Levels: eager; torch (torch.compile over DDP, whose optimizer cuts the graph at buckets); ours; ours-one-node (gradients leave
at the end); ours:BYTES (in groups of at least so many bytes).
Exposed is the time of a step in which a kernel of NCCL runs and no other kernel does. first: seconds of the first step, compiles included.
`--tiny --device cpu` runs a small model over gloo, to see that the script works.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import dynacompile

sys.path.insert(0, str(Path(__file__).parent))
from workload_models import Gpt

Interval = tuple[float, float]
LEVELS = ("eager", "torch", "ours", "ours-one-node")


def compiled(level: str, model: nn.Module) -> nn.Module:
    if level == "ours":
        return dynacompile.compile(model)
    if level == "ours-one-node":
        return dynacompile.compile(model, options={"gradient_bytes": 0})
    if level.startswith("ours:"):
        return dynacompile.compile(model, options={"gradient_bytes": int(level.partition(":")[2])})
    return model


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def communication(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Milliseconds of a step in which NCCL runs, and of these in which nothing else does."""
    step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = [(e.name, (e.time_range.start, e.time_range.end)) for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    ours = joined(i for name, i in kernels if "nccl" in name.lower())
    others = joined(i for name, i in kernels if "nccl" not in name.lower())
    return length(ours) / steps / 1e3, (length(joined([*ours, *others])) - length(others)) / steps / 1e3


class Training:
    def __init__(self, level: str, device: torch.device, tiny: bool, together: bool):
        torch.manual_seed(0)
        self.shape, words = ((2, 32), 128) if tiny else ((8, 1024), 50257)
        model: nn.Module = Gpt(2, 32, 2, words, 32) if tiny else Gpt(12, 768, 12, words, 1024)
        model = compiled(level, model.to(device))
        if together:
            model = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device], gradient_as_bucket_view=True)
        self.model = torch.compile(model) if level == "torch" else model
        self.device = device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        generator = torch.Generator(device="cpu").manual_seed(dist.get_rank())
        self.tokens = torch.randint(0, words, self.shape, generator=generator).to(device)
        self.loss = torch.zeros(())

    def step(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16):
            self.loss = self.model(self.tokens, self.tokens)
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def timed(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Milliseconds of a step, the median of five rounds."""
    rounds = []
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(max(steps // 5, 1)):
            step()
        synchronize(device)
        rounds.append((time.perf_counter() - start) * 1e3 / max(steps // 5, 1))
    return median(rounds)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(level: str, device: torch.device, args: argparse.Namespace) -> None:
    single = None
    for together in (False, True):
        torch.compiler.reset()
        training = Training(level, device, args.tiny, together)
        dist.barrier()
        start = time.perf_counter()
        training.step()
        synchronize(device)
        first = time.perf_counter() - start
        for _ in range(5):
            training.step()
        dist.barrier()
        took = timed(training.step, args.steps, device)
        ranks = f"{dist.get_world_size()} ranks" if together else "alone"
        text = f"{level:14} {ranks:8} first {first:6.1f} s  step {took:8.2f} ms  loss {training.loss.item():.4f}"
        if together and device.type == "cuda":
            whole, exposed = communication(training.step, 3)
            text += f"  communication {whole:6.2f} ms, exposed {exposed:6.2f} ms"
        if together and single is not None:
            text += f"  scaling {single / took:5.1%}"
        if device.type == "cuda":
            text += f"  peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        print(f"rank {dist.get_rank()} {text}", flush=True)
        single = took
        del training
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if args.device == "cuda" else torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    for level in args.levels.split(","):
        measure(level, device, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
