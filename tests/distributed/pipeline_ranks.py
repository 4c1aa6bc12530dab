"""Run by test_pipeline.py in two processes of gloo: stages of a pipeline, each compiled by itself, under torch's schedules. Prints the name of each case that
held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled
from tests.distributed.ranks import DEVICE, run_cases

WIDTH, LAYERS, PARTS, STEPS = 8, 4, 4, 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def error(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (given - wanted).square().mean()


def stages(looped: bool) -> list[nn.Sequential]:
    """What this rank has of four layers: two neighbours, or, looped, every second one as a stage of its own."""
    torch.manual_seed(0)
    layers, rank = [Layer().to(DEVICE) for _ in range(LAYERS)], dist.get_rank()
    return [nn.Sequential(layers[rank]), nn.Sequential(layers[rank + 2])] if looped else [nn.Sequential(*layers[2 * rank : 2 * rank + 2])]


def trained(schedule: Any, looped: bool, compiled: Callable[[nn.Module], nn.Module]) -> tuple[list[torch.Tensor], list[nn.Parameter]]:
    """Losses of all parts of a batch, on the last rank, and the parameters."""
    own = stages(looped)
    count = len(own) * dist.get_world_size()
    made = [PipelineStage(compiled(m), dist.get_rank() + 2 * i, count, torch.device(DEVICE)) for i, m in enumerate(own)]
    run = schedule(made if looped else made[0], PARTS, loss_fn=error)
    parameters = [p for m in own for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        x, target = torch.randn(2, 2 * PARTS, WIDTH, generator=generator).to(DEVICE)
        told: list[torch.Tensor] = []
        if dist.get_rank() == 0:
            run.step(x)
        else:
            run.step(target=target, losses=told)
        losses += told
        optimizer.step()
        optimizer.zero_grad()
    return losses, parameters


def check(schedule: Any, looped: bool, compiled: Callable[[nn.Module], nn.Module], entries: int) -> None:
    seen: list[Any] = []
    wanted = trained(schedule, looped, lambda m: m)
    end = dynacompile.subscribe(seen.append)
    try:
        got = trained(schedule, looped, compiled)
    finally:
        end()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert (dist.get_rank() == 0) == (not got[0])
    assert not [e.reason for e in seen if isinstance(e, (GraphBroke, FrameSkipped))]
    asked = sum(isinstance(e, Recompiled) and "grad mode: off -> on" in e.failed for e in seen)  # torch 2.11 asks a stage for sizes, without gradients
    assert sum(isinstance(e, Compiled) for e in seen) - asked == entries, [e.frame for e in seen if isinstance(e, Compiled)]


def whole(module: nn.Module) -> nn.Module:
    return dynacompile.compile(module, isolate_recompiles=True)


def by_layers(module: nn.Sequential) -> nn.Module:
    return nn.Sequential(*(whole(layer) for layer in module))


def fill_and_drain() -> None:
    check(ScheduleGPipe, False, whole, 1)


def one_forward_one_backward() -> None:
    check(Schedule1F1B, False, whole, 1)


def stages_of_layers() -> None:
    check(Schedule1F1B, False, by_layers, 2)


def interleaved() -> None:
    check(ScheduleInterleaved1F1B, True, whole, 2)


def zero_bubble() -> None:
    check(ScheduleInterleavedZeroBubble, True, whole, 2)


CASES: Sequence[Callable[[], None]] = (fill_and_drain, one_forward_one_backward, stages_of_layers, interleaved, zero_bubble)

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1:])
