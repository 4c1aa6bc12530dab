"""Reductions with too few results to fill the device run as two nests: results of chunks, then the results of those. Scans of few rows run as three."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynacompile.ir.index import hint
from dynacompile.ir.loops import Buffer, Extern, LoopProgram, Nest
from dynacompile.schedule.domain import runs_along
from dynacompile.schedule.split import split
from dynacompile.schedule.split_scans import split_scan, splits
from dynacompile.schedule.variance import Mean, is_drift_from, is_squares_about, mean_of, split_drift, split_variance

SPLITTABLE = ("sum", "prod", "max", "min", "any", "all")


@dataclass(frozen=True)
class Device:
    """What a kind of device wants: a reduction with fewer than `programs` programs is cut into chunks of about `row` adjacent or `column`
    distant elements, in at most `chunks` of them; `lanes` adjacent results share a program of a column reduction. Reductions of fewer than
    `least` elements in all stay whole. A chunk that is read again, for a variance, has at most `near` bytes, to be still in the cache."""

    programs: int
    chunks: int
    row: int
    column: int
    lanes: int
    least: int
    near: int


DEVICES = {"cuda": Device(512, 512, 2048, 128, 64, 1 << 14, 1 << 62), "cpu": Device(16, 32, 1 << 12, 1 << 10, 64, 1 << 17, 1 << 19)}
FAR = 4  # times `near`: what is read in several passes, and is more, comes from beyond a core's own cache each time
LONG_SCANS = {"cuda": 8}
"""The fewest chunks in which scans are cut, which read what they scan twice."""


def split_reductions(program: LoopProgram) -> LoopProgram:
    """The program with each starved reduction in two; their partial results are new temps."""
    buffers = dict(program.buffers)
    steps: list[Nest | Extern] = []
    means: dict[str, Mean] = {}
    for position, step in enumerate(program.steps):
        count = chunks(step, buffers) if isinstance(step, Nest) and step.r_axes else 1
        starved = count > 1
        if isinstance(step, Nest) and step.r_axes and not starved:
            count = far_chunks(step, buffers)
        if count > 1 and isinstance(step, Nest) and step.scans():
            steps += split_scan(step, count, buffers)
            continue
        if count == 1:
            steps.append(step)
            continue
        assert isinstance(step, Nest)
        about = next((m for m in means.values() if is_squares_about(step, m)), None)
        if about is not None:
            steps += split_variance(step, about, buffers)
            continue
        about = next((m for m in means.values() if is_drift_from(step, m)), None)
        if about is not None:
            *parts, drift = split_drift(step, about, buffers)
            means[about.buffer] = replace(about, drift=drift)
            steps += parts
            continue
        of_variance = is_of_variance(step, count, program.steps[position + 1 :])
        if of_variance:
            count = near_chunks(step, count, buffers)
        elif not starved or cuts_itself(step, buffers):
            steps.append(step)
            continue
        first, second = split(step, count, buffers)
        steps += (first, second)
        mean = mean_of(step, count, first.stores()[0].buffer)
        if mean is not None:
            means[mean.buffer] = mean
    return replace(program, steps=tuple(steps), buffers=buffers) if len(steps) > len(program.steps) else program


def cuts_itself(nest: Nest, buffers: dict[str, Buffer]) -> bool:
    """Whether the kernel's own code runs over chunks, as many as a call has: it needs no mask at the end, and joins other nests as it is."""
    return buffers[nest.stores()[0].buffer].device.type == "cpu" and not all(isinstance(a.size, int) for a in nest.r_axes)


def is_of_variance(nest: Nest, count: int, later: Sequence[Nest | Extern]) -> bool:
    """Whether it is the mean that a later nest takes squares about, which then are one pass over memory."""
    mean = mean_of(nest, count, "")
    return mean is not None and any(isinstance(s, Nest) and s.is_reduction and is_squares_about(s, mean) for s in later)


def near_chunks(nest: Nest, count: int, buffers: dict[str, Buffer]) -> int:
    """At least `count` chunks, more where they had better be smaller."""
    device = DEVICES[buffers[nest.stores()[0].buffer].device.type]
    moved = math.prod(hint(a.size) for a in nest.axes) * sum({a.buffer: buffers[a.buffer].dtype.itemsize for a in nest.loads()}.values())
    return max(count, min(device.chunks, -(-moved // device.near)))


def far_chunks(nest: Nest, buffers: dict[str, Buffer]) -> int:
    """How many chunks a variance of many groups is cut into on a CPU, since groups whose elements lie between those of others are read together, and may be
    more than a cache has room for; 1: none."""
    if buffers[nest.stores()[0].buffer].device.type != "cpu" or nest.scans() or sum(op.name == "reduce" for op in nest.body) != 1 or len(nest.stores()) != 1:
        return 1
    reduced = {a.var for a in nest.r_axes}
    read = 0
    for access in nest.loads():
        strides = {a: access.index.stride(a.var) for a in nest.axes}
        if reduced.isdisjoint(access.index.variables()):
            continue
        if any(s is None for s in strides.values()) or access.index.stride(nest.r_axes[-1].var) != 1:
            return 1
        apart = max(hint(s) for a, s in strides.items() if a.role == "r")  # type: ignore[arg-type]
        between = [a for a, s in strides.items() if a.role == "x" and 0 < hint(s) < apart]  # type: ignore[arg-type]
        if not between:
            return 1
        read += math.prod(hint(a.size) for a in (*between, *nest.r_axes)) * buffers[access.buffer].dtype.itemsize
    device = DEVICES["cpu"]
    return min(device.chunks, -(-read // device.near)) if read > FAR * device.near else 1


def chunks(nest: Nest, buffers: dict[str, Buffer]) -> int:
    """How many chunks the r axes should be cut into; 1: none."""
    reduces = [op for op in nest.body if op.name == "reduce"]
    scans = splits(nest)
    if not scans and (len(reduces) != 1 or reduces[0].attr not in SPLITTABLE or len(nest.stores()) != 1 or nest.scans()):
        return 1
    kind = buffers[nest.stores()[0].buffer].device.type
    device = DEVICES.get(kind) if not scans or kind in LONG_SCANS else None
    x, r = math.prod(hint(a.size) for a in nest.x_axes), math.prod(hint(a.size) for a in nest.r_axes)
    if device is None or x * r < device.least:
        return 1
    reduced = {a.var for a in nest.r_axes}
    deep = [a.index for a in nest.loads() if not reduced.isdisjoint(a.index.variables())]
    row = runs_along(deep, nest.axes, nest.r_axes[-1].var)
    programs = x if row else -(-x // device.lanes)
    if programs >= device.programs:
        return 1
    if row and cuts_itself(nest, buffers):
        return 1
    if scans:
        most = min(r // (device.row if row else device.column), device.chunks, -(-device.programs // programs))
        return most if most >= LONG_SCANS[kind] else 1
    if not row:
        return min(max(1, r // device.column), device.chunks)
    return min(-(-device.programs // programs), device.chunks, max(1, r // device.row)) if device.programs >= 4 * programs else 1
