"""flex_attention on a GPU, in eager, by torch.compile and by ours in turn: whether results are right, what a step takes, its kernels, and each tile of ours.

The tables of tiles in `codegen/triton/attention_tiles.py` follow from the last column: the fastest tile of a kernel belongs in front.
"""

from __future__ import annotations

import fnmatch
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

import dynacompile
from dynacompile import pipeline
from dynacompile.build.autotune import inputs, named
from dynacompile.build.device import measure_on_device
from dynacompile.build.store import Store
from dynacompile.build.triton import build_candidates
from dynacompile.codegen import emit
from dynacompile.config import CompileConfig
from dynacompile.env import Env, cache_dir
from dynacompile.ir.index import hint
from dynacompile.ir.schedule import Kernel
from scripts.workloads import falling, near

ROUNDS, STEPS = 15, 20
GRADIENTS = ("result", "of queries", "of keys", "of values")


@dataclass(frozen=True)
class Row:
    name: str
    score: Callable | None
    tokens: int
    training: bool
    width: int = 64
    dtype: torch.dtype = torch.bfloat16

    def operands(self) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        size = 4, 8, self.tokens, self.width
        made = [torch.randn(size, device="cuda", generator=generator).to(self.dtype) for _ in range(3)]
        return [t.requires_grad_(self.training) for t in made]


ROWS = (
    Row("in a window, 4x8x1024x64, forward", None, 1024, False),
    Row("with falling scores, 4x8x1024x64, forward", falling, 1024, False),
    Row("in a window, 4x8x4096x64, training", None, 4096, True),
)
MORE = (
    Row("with falling scores, 4x8x4096x64, training", falling, 4096, True),
    Row("with falling scores, 4x8x4096x128, training", falling, 4096, True, 128),
    Row("in a window, 4x8x4096x128, training", None, 4096, True, 128),
    Row("with falling scores, 4x8x1024x64, training, float32", falling, 1024, True, 64, torch.float32),
)


def step_of(row: Row, compiled: Callable, operands: list[torch.Tensor]) -> Callable[[], Any]:
    def step() -> Any:
        result = compiled(*operands)
        return (result, *torch.autograd.grad(result.sum(), operands)) if row.training else (result,)

    return step


def by_definition(row: Row, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a step gives for the first head of the first batch, in float64."""
    leaves = [t.detach()[0, 1].double().requires_grad_(row.training) for t in operands]
    query, key, value = leaves
    q, k = torch.arange(row.tokens, device="cuda")[:, None], torch.arange(row.tokens, device="cuda")
    scores = query @ key.mT / math.sqrt(row.width)
    head = torch.ones((), dtype=torch.int64, device="cuda")
    scores = scores if row.score is None else row.score(scores, head * 0, head, q, k)
    made = torch.where(near(head, head, q, k), scores, -math.inf).softmax(-1) @ value
    return [made, *(torch.autograd.grad(made.sum(), leaves) if row.training else ())]


def errors(row: Row, made: Any, wanted: list[torch.Tensor]) -> str:
    found = [((one.detach()[0, 1].double() - other).abs().max() / other.abs().max()).item() for one, other in zip(made, wanted)]
    return ", ".join(f"{name} {e:.1e}" for name, e in zip(GRADIENTS, found))


def milliseconds(step: Callable[[], Any]) -> float:
    """Of a step, where the device waits for nothing: many in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS


def device_us(step: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of each kernel of a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as run:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    return {e.key[:60]: e.self_device_time_total / 5 for e in run.key_averages() if e.self_device_time_total}


def kernels_of(row: Row, mask: Any, operands: list[torch.Tensor]) -> tuple[Callable, list[Kernel]]:
    """The compiled function, after a step, and its attention kernels."""
    found: list[Kernel] = []
    begin = pipeline.begin_kernels

    def noted(plan: Any, env: Env, part: str = "forward") -> Any:
        found.extend(k for k in plan.kernels.values() if k.call is not None)
        return begin(plan, env, part)

    with patch.object(pipeline, "begin_kernels", noted):
        compiled = dynacompile.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=row.score, block_mask=mask), isolate_recompiles=True)
        step_of(row, compiled, operands)()
    return compiled, found


def tiles(kernel: Kernel, mask: Any) -> list[tuple[str, float]]:
    """Microseconds of each candidate, over the blocks of the mask."""
    env = Env(CompileConfig(), lambda event: None, "bench", -1, cache_dir())
    source, store = emit(kernel, env), Store(cache_dir() / "binaries")
    data = inputs(source, torch.device("cuda", torch.cuda.current_device()))
    assert data is not None and kernel.call is not None
    ways = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
    if kernel.call.template != "attention_key_gradient":
        ways = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    memory = dict(zip((p.name for p in kernel.params), data, strict=True))
    for name, view in zip(ways, kernel.call.argument("blocks")):
        place = memory[str(view.base)].as_strided([*map(hint, view.size)], [*map(hint, view.stride)], hint(view.offset))
        place.copy_(getattr(mask, name))
    built = build_candidates({"kernel": source}, [("kernel", i) for i in range(len(source.candidates))], env, store)
    written = [i for i, p in enumerate(kernel.params) if p.mode != "in"]
    first: list[torch.Tensor] = []
    found = []
    for (_, i), made in sorted(built.items()):
        candidate, tensors = source.candidates[i], [t.clone() if n in written else t for n, t in enumerate(data)]
        us = measure_on_device(made, tensors)
        first = first or [tensors[n].float() for n in written]
        off = max(((tensors[n].float() - f).abs().max() / f.abs().max().clamp(min=1e-6)).item() for n, f in zip(written, first, strict=True))
        found.append((f"{named(candidate)} stages={candidate.stages}" + (f" OFF BY {off:.1e}" if off > 3e-2 else ""), us))
    return sorted(found, key=lambda pair: pair[1])


def main(only: str | None) -> int:
    """only: a pattern of the names of rows, of which there are more; None: the usual ones."""
    begun, missing = time.perf_counter(), 0
    for row in ROWS if only is None else [row for row in (*ROWS, *MORE) if fnmatch.fnmatch(row.name, only)]:
        operands = row.operands()
        mask = create_block_mask(near, None, None, row.tokens, row.tokens, device="cuda")
        compiled, kernels = kernels_of(row, mask, operands)
        torch._dynamo.reset()

        def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = mask, score: Callable | None = row.score) -> torch.Tensor:
            return flex_attention(q, k, v, score_mod=score, block_mask=mask)  # type: ignore[return-value]

        systems = {"eager": plain, "torch.compile": torch.compile(plain), "dynacompile": compiled}
        steps = {name: step_of(row, fn, operands) for name, fn in systems.items()}
        wanted = by_definition(row, operands)
        print(f"\n{row.name}")
        times: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            for _ in range(5):
                step()
        for _ in range(ROUNDS):
            for name, step in steps.items():
                times[name].append(milliseconds(step))  # in turn, so that all meet the same clock
        for name, step in steps.items():
            used = device_us(step)
            print(f"  {name:13s} {median(times[name]) * 1e3:8.1f} us a step, {sum(used.values()):7.1f} us of kernels; wrong by {errors(row, step(), wanted)}")
            for kernel, us in sorted(used.items(), key=lambda pair: -pair[1])[:5]:
                print(f"      {us:8.1f} us {kernel}")
        for kernel in kernels:
            assert kernel.call is not None
            print(f"    tiles of {kernel.call.template}: " + "; ".join(f"{name} {us:.1f} us" for name, us in tiles(kernel, mask)))
        sys.stdout.flush()
        missing += not kernels
    print(f"\n{time.perf_counter() - begun:.0f} s")
    return 1 if missing else 0
