"""Results of templates that a concatenation alone reads are written where it wants them, and nothing is copied: gradients of queries, keys and values."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch.fx

from dynacompile.ir.loops import Buffer, Extern
from dynacompile.lower.context import Lowering


def join_in_place(low: Lowering, node: torch.fx.Node, parts: Sequence[torch.fx.Node], dim: int) -> bool:
    """Makes what the parts are views of views of the concatenation, where all are results of templates. False: nothing was done."""
    made = {o for step in low.steps if isinstance(step, Extern) and step.template is not None for o in step.outputs}
    val, start = node.meta["val"], 0
    whole = Buffer(node.name, val.dtype, val.device, tuple(val.size()), tuple(val.stride()), "temp")
    if not made or any(type(n) is not int for n in (*whole.size, *whole.stride)):
        return False
    moved: list[Buffer] = []
    for part in parts:
        view = low.buffer_of(part)
        of = low.buffers[view.base or view.name]
        if of.name not in made or of.base is not None or view.dtype != whole.dtype or not is_read_here_alone(part, node):
            return False
        stride = strides_within(of, view, whole)
        if stride is None or of in moved:
            return False
        moved.append(replace(of, stride=stride, offset=start * whole.stride[dim], base=whole.name))
        start += view.size[dim]
    if len({of.name for of in moved}) != len(moved):
        return False
    low.buffers[whole.name] = whole
    low.buffers.update({of.name: of for of in moved})
    low.values[node] = whole.name
    return True


def is_read_here_alone(part: torch.fx.Node, reader: torch.fx.Node) -> bool:
    """Whether one chain of views leads from a result of a call with several to the reader."""
    node = part
    while len(node.users) == 1 and reader in node.users:
        if node.target is operator.getitem:
            same = [u for u in node.args[0].users if u.target is operator.getitem and u.args[1] == node.args[1]]  # type: ignore[union-attr]
            return same == [node]
        if len(node.all_input_nodes) != 1:
            return False
        reader, node = node, node.all_input_nodes[0]
    return False


def strides_within(of: Buffer, view: Buffer, whole: Buffer) -> tuple[int, ...] | None:
    """The strides of `of` where `view`, which shows all of its elements, lies in `whole` as a part of its shape; None: it can't lie there."""
    if view.numel != of.numel or view.offset != of.offset or any(type(n) is not int for n in (*of.size, *of.stride, *view.size, *view.stride)):
        return None
    dims = sorted((d for d, n in enumerate(view.size) if n > 1), key=lambda d: -view.stride[d])
    digits: dict[int, list[tuple[int, int]]] = {d: [] for d in dims}
    found: list[int] = []
    for n, stride in zip(of.size, of.stride, strict=True):
        d = next((d for d in dims if view.stride[d] <= stride), None)
        if n == 1 or d is None or stride % view.stride[d]:
            if n != 1:
                return None
            found.append(1)
            continue
        digits[d].append((stride // view.stride[d], n))
        found.append(stride // view.stride[d] * whole.stride[d])
    for d, own in digits.items():
        expected = 1
        for step, n in sorted(own):
            if step != expected:
                return None
            expected *= n
        if expected != view.size[d]:
            return None
    return tuple(found) if of.size[-1] == 1 or found[-1] == 1 else None
