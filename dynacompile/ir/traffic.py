"""What a step of a schedule moves and computes at the least: bytes and operations, for a roof over its time."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.index import Extent, Index, Symbol, evaluated
from dynacompile.ir.loops import Buffer, Extern, Ref, levels
from dynacompile.ir.schedule import Kernel, Launch, Schedule
from dynacompile.private import of_torch

Values = Mapping[Symbol, int]  # what a call's symbols are; those that are missing are as in the example

COUNTER = "torch.utils.flop_counter"  # it imports Triton, which takes a second: it is imported where something is counted
FREE = frozenset({"load", "store", "constant", "index", "given", "cast", "where", "and", "or", "not"})
ALSO = {  # operators that torch's counter does not know, and names of those that compute the same
    "aten::_scaled_dot_product_flash_attention_for_cpu": "aten_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "aten_flash_attention_backward",
}


def at(extent: Extent, values: Values) -> int:
    return evaluated(extent, {s: values.get(s, s.hint) for s in extent.symbols()}) if isinstance(extent, Index) else extent


def size_of(buffer: Buffer, values: Values) -> tuple[int, ...]:
    return tuple(at(n, values) for n in buffer.size)


def bytes_of(buffer: Buffer, values: Values) -> int:
    return math.prod(size_of(buffer, values)) * buffer.dtype.itemsize


def moved(step: Launch | Extern, schedule: Schedule, values: Values) -> int:
    """Bytes that a launch or call reads and writes at the least, what it both reads and writes twice."""
    if isinstance(step, Extern):
        every = {*step.reads(), *step.mutates, *(name for name in step.outputs if name)}
        return sum(bytes_of(schedule.buffers[name], values) for name in every)
    kernel = schedule.kernels[step.kernel]
    if kernel.call is not None or kernel.is_list:
        sides = [2 if p.mode == "inout" else 1 for p in kernel.params]
        return sum(side * bytes_of(schedule.buffers[name], values) for names in step.members() for side, name in zip(sides, names, strict=True))
    (names,) = step.members()
    return touched(kernel, {p.name: schedule.buffers[name] for p, name in zip(kernel.params, names, strict=True)}, values)


def touched(kernel: Kernel, buffers: Mapping[str, Buffer], values: Values) -> int:
    """Of each param the elements that the nest's points name, no more than it has. buffers: by param."""
    most: dict[str, int] = {}
    for access in (*kernel.nest.loads(), *kernel.nest.stores()):
        names = access.index.variables()
        points = math.prod(at(a.size, values) for a in kernel.nest.axes if a.var in names or any(v.name[0] == "%" for v in names))
        buffer = buffers[access.buffer]
        most[access.buffer] = max(most.get(access.buffer, 0), min(points * buffer.dtype.itemsize, bytes_of(buffer, values)))
    both = {p.name for p in kernel.params if p.mode == "inout"}
    return sum(n * (2 if name in both else 1) for name, n in most.items())


def operations(step: Launch | Extern, schedule: Schedule, values: Values) -> int:
    """Of a launch the scalar operations, loads, stores and choices not counted; of a call what torch's counter counts, 0 where it does not know it."""
    if isinstance(step, Extern):
        return of_call(step, schedule.buffers, values)
    kernel = schedule.kernels[step.kernel]
    if kernel.call is not None:
        return of_call(kernel.call.step, {view.name: view for view in kernel.call.views}, values)
    own = kernel.own or ()
    return sum(of_nest(kernel, {**values, **dict(zip(own, row, strict=True))}) for row in step.sizes or ((),))


def of_nest(kernel: Kernel, values: Values) -> int:
    x = math.prod(at(a.size, values) for a in kernel.nest.x_axes)
    every = x * math.prod(at(a.size, values) for a in kernel.nest.r_axes)
    body = list(zip(kernel.nest.body, levels(kernel.nest), strict=True))
    sums = sum({"reduce": 1, "product": 2}.get(op.name, 0) for op, _ in body)
    deep = [level == "r" or not kernel.nest.r_axes for op, level in body if op.name not in FREE | {"reduce", "product"}]
    return (sums + sum(deep)) * every + (len(deep) - sum(deep)) * x


def of_call(step: Extern, buffers: Mapping[str, Buffer], values: Values) -> int:
    like = ALSO.get(step.op.name().partition(".")[0])
    count = importlib.import_module(COUNTER).flop_registry.get(getattr(of_torch, like) if like else step.op.overloadpacket)
    if count is None:
        return 0

    def sizes(value: Any) -> Any:
        if isinstance(value, Ref):
            return torch.Size(size_of(buffers[value.buffer], values))
        if isinstance(value, Index):
            return at(value, values)
        return type(value)(map(sizes, value)) if isinstance(value, (tuple, list)) else value

    given: Sequence[Any] = sizes(step.args)
    made = [None if name is None else sizes(Ref(name)) for name in step.outputs]
    return int(count(*given, **{name: sizes(value) for name, value in step.kwargs.items()}, out_val=made[0] if len(made) == 1 else tuple(made)))
