"""Results of templates that a concatenation alone reads are written where it wants them, and nothing is copied: gradients of queries, keys and values."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch.fx

from dynacompile.ir.index import Extent
from dynacompile.ir.loops import Buffer, Extern
from dynacompile.lower.context import Lowering


def join_in_place(low: Lowering, node: torch.fx.Node, parts: Sequence[torch.fx.Node], dim: int) -> bool:
    """Makes what the parts are views of views of the concatenation, where all are results of templates. False: nothing was done."""
    made = {o for step in low.steps if isinstance(step, Extern) and step.template is not None for o in step.outputs}
    val = node.meta["val"]
    start: Extent = 0
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
    size, stride, shown, apart = (constants(numbers) for numbers in (of.size, of.stride, view.size, view.stride))
    if size is None or stride is None or shown is None or apart is None or view.numel != of.numel or view.offset != of.offset:
        return None
    dims = sorted((d for d, n in enumerate(shown) if n > 1), key=lambda d: -apart[d])
    digits: dict[int, list[tuple[int, int]]] = {d: [] for d in dims}
    found: list[int] = []
    for n, step in zip(size, stride, strict=True):
        d = next((d for d in dims if apart[d] <= step), None)
        if n == 1:
            found.append(1)
        elif d is None or step % apart[d]:
            return None
        else:
            digits[d].append((step // apart[d], n))
            found.append(step // apart[d] * int(whole.stride[d]))  # type: ignore[arg-type]
    if not all(fills(own, shown[d]) for d, own in digits.items()):
        return None
    return tuple(found) if size[-1] == 1 or found[-1] == 1 else None


def constants(numbers: Sequence[Extent]) -> list[int] | None:
    """None where one of them is symbolic."""
    found = [n for n in numbers if isinstance(n, int)]
    return found if len(found) == len(numbers) else None


def fills(digits: Sequence[tuple[int, int]], count: int) -> bool:
    """Whether digits, (step, number) each, count from 0 to `count` without a gap."""
    expected = 1
    for step, n in sorted(digits):
        if step != expected:
            return False
        expected *= n
    return expected == count
