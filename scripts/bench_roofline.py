"""How near each kernel of a step is to the roof that memory and arithmetic put over it: bytes and FLOPs of the schedule, time as measured.

Kernels and calls run by themselves on tensors like those of the program: floating-point values are random, integers zero, truth values true. What is
measured is written as a table of the worst, with `--folder` also as CSV and as a picture (SVG): FLOPs a byte to the right, FLOPs a second upwards, the roof
as a line.
"""

from __future__ import annotations

import csv
import html
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dynacompile.build.device import measure_on_device
from dynacompile.build.processor import measure_here
from dynacompile.ir.index import hint
from dynacompile.ir.loops import Buffer, Extern, Ref, root
from dynacompile.ir.schedule import Launch, Module, Schedule
from dynacompile.ir.traffic import moved, operations
from dynacompile.session import SESSION
from dynacompile.timing import Roof

WORST = 10
RUNS = 15


@dataclass
class Row:
    """What one kernel or call does in a step, all its launches together. seconds: nan where it could not run by itself."""

    name: str
    count: int
    bytes: float
    flops: float
    seconds: float

    def share(self, roof: Roof) -> float:
        """Of the roof; 1 is the best."""
        return roof.seconds(self.bytes, self.flops) / self.seconds

    def lost(self, roof: Roof) -> float:
        return self.seconds - roof.seconds(self.bytes, self.flops)


def measure(run: Callable[[], object], device: str) -> float:
    """Seconds of a run, the median of several."""
    run()
    times = []
    for _ in range(RUNS):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def modules_of(step: Callable[[], object]) -> list[Module]:
    """What is built while a step runs for the first times."""
    found: list[Module] = []

    def observer(stage: str, result: object) -> None:
        if isinstance(result, Module):
            found.append(result)

    with SESSION.bus.observing(observer):
        for _ in range(3):
            step()
    return found


def memory_like(buffer: Buffer) -> torch.Tensor:
    """A flat tensor for all of a buffer's memory, and what its offset leaves out."""
    count = max(1, hint(buffer.storage_elements) + hint(buffer.offset))
    if buffer.dtype.is_floating_point:
        return torch.rand(count, device=buffer.device).to(buffer.dtype)
    return (torch.ones if buffer.dtype is torch.bool else torch.zeros)(count, dtype=buffer.dtype, device=buffer.device)  # what is asserted holds


def rows_of(module: Module, device: str) -> Iterator[Row]:
    plan = module.schedule
    for step in plan.steps:
        if isinstance(step, Launch):
            yield row_of_kernel(step, module, device)
        elif isinstance(step, Extern):
            yield row_of_call(step, plan, device)


def row_of_kernel(step: Launch, module: Module, device: str) -> Row:
    plan = module.schedule
    kernel, built = plan.kernels[step.kernel], module.kernels[step.kernel]
    bytes, flops = moved(step, plan, {}), operations(step, plan, {})
    seconds = math.nan
    if not step.sizes and not (kernel.symbols and device == "cpu"):
        tensors = [memory_like(plan.buffers[b]) for b in step.buffers]
        seconds = (measure_on_device(built, tensors) if device == "cuda" else measure_here(built, tensors)) / 1e6  # type: ignore[arg-type]
    return Row(f"{step.kernel} (a list)" if step.sizes else step.kernel, 1, bytes, flops, seconds)


def row_of_call(step: Extern, plan: Schedule, device: str) -> Row:
    """A call by itself; its FLOPs by torch's own counter."""
    memory: dict[str, torch.Tensor] = {}

    def tensor(name: str) -> torch.Tensor:
        buffer, owner = plan.buffers[name], plan.buffers[root(plan.buffers, name)]
        if owner.name not in memory:
            memory[owner.name] = memory_like(owner)
        size, stride = ([hint(n) for n in t] for t in (buffer.size, buffer.stride))
        flat = memory[owner.name]
        return (flat if flat.dtype == buffer.dtype else flat.view(buffer.dtype)).as_strided(size, stride, hint(buffer.offset))

    def filled(value: Any) -> Any:
        if isinstance(value, Ref):
            return tensor(value.buffer)
        if isinstance(value, (tuple, list)):
            return [filled(v) for v in value]
        return value

    names = {*step.reads(), *step.mutates, *(o for o in step.outputs if o)}
    bytes = sum(plan.buffers[n].bytes for n in names)
    try:
        args, kwargs = filled(step.args), {k: filled(v) for k, v in step.kwargs.items()}
        with FlopCounterMode(display=False) as counter:
            step.op(*args, **kwargs)
        return Row(str(step.op), 1, bytes, counter.get_total_flops(), measure(lambda: step.op(*args, **kwargs), device))
    except (RuntimeError, TypeError, NotImplementedError):  # an operation that takes no such arguments alone; its row says that it was not measured
        return Row(str(step.op), 1, bytes, 0, math.nan)


def together(rows: Iterator[Row]) -> list[Row]:
    """Rows of one name as one."""
    found: dict[str, Row] = {}
    for row in rows:
        same = found.setdefault(row.name, Row(row.name, 0, 0, 0, 0.0))
        same.count, same.bytes, same.flops, same.seconds = same.count + 1, same.bytes + row.bytes, same.flops + row.flops, same.seconds + row.seconds
    return list(found.values())


def table(rows: list[Row], roof: Roof) -> str:
    """The kernels that lose most time beside the roof, and what was not measured."""
    measured = sorted((r for r in rows if not math.isnan(r.seconds)), key=lambda r: -r.lost(roof))
    lines = ["| kernel or call | launches | MB | GFLOP | time | at the roof | share of the roof |", "|---" * 7 + "|"]
    for r in measured[:WORST]:
        lines.append(
            f"| {r.name} | {r.count} | {r.bytes / 1e6:.2f} | {r.flops / 1e9:.3f} | {r.seconds * 1e6:.1f} us | {roof.seconds(r.bytes, r.flops) * 1e6:.1f} us "
            f"| {r.share(roof):.0%} |"
        )
    total, best = sum(r.seconds for r in measured), sum(roof.seconds(r.bytes, r.flops) for r in measured)
    lines.append(f"\nAll {len(measured)} together: {total * 1e6:.1f} us, at the roof {best * 1e6:.1f} us.")
    left = [r.name for r in rows if math.isnan(r.seconds)]
    return "\n".join(lines) + (f" Not measured by themselves: {', '.join(left)}." if left else "")


def picture(rows: list[Row], roof: Roof, title: str) -> str:
    """The rows and the roof as SVG, both axes logarithmic."""
    points = [(max(r.flops, 1) / max(r.bytes, 1), max(r.flops, 1) / r.seconds, r) for r in rows if r.seconds > 0 and r.bytes]
    width, height, edge = 900, 600, 60
    left, right = min([1e-2, *(x for x, _, _ in points)]), max([1e3, *(x for x, _, _ in points)])
    low, high = min([roof.bandwidth * left / 100, *(y for _, y, _ in points)]), roof.flops * 2

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / left) / math.log(right / left)
        up = math.log(y / low) / math.log(high / low)
        return edge + across * (width - 2 * edge), height - edge - up * (height - 2 * edge)

    ridge = roof.flops / roof.bandwidth
    corners = [place(left, roof.bandwidth * left), place(min(max(ridge, left), right), roof.flops), place(right, roof.flops)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<text x="{edge}" y="24" font-size="15">{html.escape(title)}</text>',
        f'<text x="{width / 2}" y="{height - 16}">FLOPs a byte</text><text x="8" y="{edge - 8}">FLOPs a second</text>',
        f'<polyline fill="none" stroke="black" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}"/>',
    ]
    worst = {id(r) for r in sorted((r for _, _, r in points), key=lambda r: -r.lost(roof))[:WORST]}
    for x, y, r in points:
        a, b = place(x, y)
        named = id(r) in worst
        color, size = ("crimson", 5) if named else ("steelblue", 3)
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size}" fill="{color}"><title>{html.escape(r.name)}</title></circle>')
        if named:
            parts.append(f'<text x="{a + 7:.1f}" y="{b + 4:.1f}">{html.escape(r.name[:40])} {r.share(roof):.0%}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_files(rows: list[Row], roof: Roof, title: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in title)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["name", "launches", "bytes", "flops", "seconds", "seconds_at_the_roof"])
        lines.writerows([r.name, r.count, r.bytes, r.flops, r.seconds, roof.seconds(r.bytes, r.flops)] for r in rows)
    (folder / f"{name}.svg").write_text(picture(rows, roof, title))


def report(step: Callable[[], object], title: str, device: str, roof: Roof, folder: Path | None) -> str:
    """The table of one step's kernels; files in `folder`."""
    rows = together(row for module in modules_of(step) for row in rows_of(module, device))
    if folder is not None:
        write_files(rows, roof, title, folder)
    return f"### {title}\n\n{table(rows, roof)}\n"
