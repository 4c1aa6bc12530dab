"""Run by tests/gpu/test_nccl.py in two processes of NCCL: attention under context parallelism, compiled and in eager. Prints the name of each case that held.

Torch has context parallelism on GPUs alone. It puts another function in the place of `scaled_dot_product_attention` in each block of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import dynacompile
from dynacompile.events import Recompiled
from tests.distributed.ranks import DEVICE, run_cases

WIDTH, HEADS, LENGTH = 256, 4, 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = (part.view(n, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).reshape(n, length, WIDTH))


def gradients(wrap: Callable[[nn.Module], nn.Module], steps: int = 4) -> list[torch.Tensor]:
    """Of each step: the loss over this rank's part of the sequences, and the gradients."""
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(DEVICE, torch.bfloat16)
    run = wrap(model)
    whole = torch.randn(2, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    found = []
    for _ in range(steps):
        x = whole.clone()
        model.zero_grad()
        with context_parallel(mesh, buffers=(x,), buffer_seq_dims=(1,)), sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            loss = run(x).float().square().mean()
            loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


def check(wrap: Callable[[nn.Module], nn.Module]) -> None:
    wanted = gradients(lambda model: model)
    recompiled: list[Recompiled] = []
    end = dynacompile.subscribe(lambda event: recompiled.append(event) if isinstance(event, Recompiled) else None)
    try:
        found = gradients(wrap)
    finally:
        end()
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2 * want.abs().max().item())
    replaced = [text for event in recompiled for text in event.failed if "scaled_dot_product_attention" in text]
    assert not replaced, replaced


def whole_model() -> None:
    check(dynacompile.compile)


def block_by_block() -> None:
    check(lambda model: nn.Sequential(*(dynacompile.compile(block) for block in model)))  # type: ignore[union-attr]


CASES = (whole_model, block_by_block)

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
