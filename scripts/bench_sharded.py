"""FSDP2 and tensor parallelism on the GPUs of one host: step time, memory and communication of eager, torch.compile and dynacompile in one run.

torchrun --nproc-per-node 2 scripts/bench_sharded.py [--levels eager,torch,ours] [--ways fsdp,tp] [--steps 10]: a Llama-like model of 1.1 billion parameters
in bfloat16 (float32 shards under FSDP2), 2 sequences of 2048 a rank (fsdp) or in all (tp). Blocks are compiled one by one, as torchtitan does: in place, before
they are sharded. `--tiny --device cpu` runs a small model over gloo, to see that the script works.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dynacompile

sys.path.insert(0, str(Path(__file__).parent))
from bench_ddp import communication, synchronize, timed

LEVELS, WAYS = ("eager", "torch", "ours"), ("fsdp", "tp")


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.size = width // heads
        self.norm, self.norm2 = Norm(width), Norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, hidden: int, words: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, hidden) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, words, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


def spread(model: Llama, way: str, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        if way == "fsdp":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        else:
            columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
            parallelize_module(block, mesh, {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}})
    if way == "fsdp":
        fully_shard(model, mesh=mesh, mp_policy=policy)


class Training:
    def __init__(self, level: str, way: str, device: torch.device, tiny: bool):
        torch.manual_seed(0)
        sizes = (2, 32, 2, 64, 128, 32) if tiny else (16, 2048, 16, 5632, 32000, 2048)
        with device:
            model = Llama(*sizes)
        if way == "tp":
            model = model.to(torch.bfloat16)
            model.cos, model.sin = model.cos.float(), model.sin.float()
        for block in model.blocks:
            if level == "torch":
                block.compile()
            elif level == "ours":
                dynacompile.compile(block, inplace=True)
        spread(model, way, init_device_mesh(device.type, (dist.get_world_size(),)))
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda" and way == "fsdp")
        generator = torch.Generator().manual_seed(dist.get_rank() if way == "fsdp" else 0)
        self.tokens = torch.randint(0, sizes[4], (2, sizes[5]), generator=generator).to(device)
        self.loss = torch.zeros(())

    def step(self) -> None:
        self.loss = self.model(self.tokens)
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def measure(level: str, way: str, device: torch.device, args: argparse.Namespace) -> None:
    torch.compiler.reset()
    dynacompile.reset()
    training = Training(level, way, device, args.tiny)
    dist.barrier()
    start = time.perf_counter()
    training.step()
    synchronize(device)
    first = time.perf_counter() - start
    for _ in range(4):
        training.step()
    dist.barrier()
    took = timed(training.step, args.steps, device)
    loss = training.loss.full_tensor() if isinstance(training.loss, DTensor) else training.loss
    text = f"{way:5} {level:6} first {first:6.1f} s  step {took:8.2f} ms  loss {loss.item():.4f}"
    if device.type == "cuda":
        text += f"  peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        whole, exposed = communication(training.step, 2)
        text += f"  communication {whole:6.2f} ms, exposed {exposed:6.2f} ms"
    print(f"rank {dist.get_rank()} {text}", flush=True)
    del training
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if args.device == "cuda" else torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    for way in args.ways.split(","):
        for level in args.levels.split(","):
            measure(level, way, device, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
