"""What compiled programs do with their time: each kernel and each call of a library, in the calls that run meanwhile, beside what the machine could do."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dynacompile.events import ProgramTimed
from dynacompile.ir.loops import Extern
from dynacompile.ir.schedule import Launch
from dynacompile.ir.traffic import moved, operations
from dynacompile.native import core as native_core
from dynacompile.session import SESSION

RUNS = 5  # of a copy and of a product, for the roof
COPIED = {"cpu": 2**26, "cuda": 2**30}  # bytes, which no cache holds
WIDTH = {"cpu": 1024, "cuda": 8192}  # of the matrices


@dataclass(frozen=True)
class Roof:
    """bandwidth: bytes a second of a copy; flops: a second of a large product of half precision on GPUs, of float32 on CPUs."""

    bandwidth: float
    flops: float

    def seconds(self, bytes: float, flops: float) -> float:
        """What moving so much and computing so much takes at the least."""
        return max(bytes / self.bandwidth, flops / self.flops)


@contextmanager
def kernel_times() -> Iterator[list[ProgramTimed]]:
    """Times each step of the compiled programs that run inside the block. The list has one event for each program once the block ends.

    On a GPU each launch lies between two events, and programs run as they are, not as CUDA graphs. It is on or off for all threads of the process, and costs a
    few hundred nanoseconds a step while it is on.
    """
    core = native_core()
    found: list[ProgramTimed] = []
    core.time_steps(True)
    try:
        yield found
    finally:
        core.time_steps(False)
        timed = core.timed_programs()
    for program, runs, rows, numbers in timed:
        if runs and program.told:
            found.append(of_program(program, runs, dict(rows), numbers))
    found.sort(key=lambda event: event.number)
    for event in found:
        SESSION.bus.emit(event)


def of_program(program: Any, runs: int, nanoseconds: dict[int, int], numbers: tuple[int, ...]) -> ProgramTimed:
    """nanoseconds: by row of the native program. numbers: of its last call, its symbols first."""
    plan, told = program.schedule, program.told
    values = dict(zip(plan.sizes.symbols, numbers))
    rows: dict[str, list[float]] = {}
    rest = 0
    for row, spent in nanoseconds.items():
        step = plan.steps[told.rows[row]]
        if not isinstance(step, Launch | Extern):
            rest += spent
            continue
        name = step.kernel if isinstance(step, Launch) else str(step.op)
        known = rows.setdefault(name, [0, 0.0, 0, 0])
        known[1] += spent / runs / 1e3
    for step in plan.steps:
        if isinstance(step, Launch | Extern):
            known = rows[step.kernel if isinstance(step, Launch) else str(step.op)]
            known[0] += 1
            known[2] += moved(step, plan, values)
            known[3] += operations(step, plan, values)
    roof = roof_of(plan.device.type)
    steps = tuple((name, int(count), round(us, 3), int(bytes), int(flops)) for name, (count, us, bytes, flops) in rows.items())
    return ProgramTimed(
        region=told.region,
        bucket=told.bucket,
        number=told.number,
        part=told.part,
        device=str(plan.device),
        runs=runs,
        steps=steps,
        rest_us=round(rest / runs / 1e3, 3),
        bandwidth=roof.bandwidth,
        flops=roof.flops,
    )


@functools.cache
def roof_of(kind: str) -> Roof:
    """Of the current device of a kind, "cpu" or "cuda", as it measures now: a copy, and a product of matrices. It draws no random numbers, which are the
    program's."""
    x = torch.empty(COPIED[kind], dtype=torch.uint8, device=kind)
    y = torch.empty_like(x)
    width, dtype = WIDTH[kind], torch.bfloat16 if kind == "cuda" else torch.float32
    a = (torch.arange(width * width, device=kind).remainder(251) / 125 - 1).to(dtype).view(width, width)
    with torch.no_grad():
        return Roof(2 * x.numel() / seconds(lambda: y.copy_(x), kind), 2 * width**3 / seconds(lambda: a @ a, kind))


def seconds(run: Callable[[], object], kind: str) -> float:
    """Of a run: the median of several."""
    run()
    times = []
    for _ in range(RUNS):
        if kind == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        if kind == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
