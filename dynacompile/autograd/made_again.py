"""Which values of the forward the backward makes again although forward has them in memory, by what that costs on the device.

An operand of products that forward and backward take, such as what a norm or an activation gives, has its sources saved anyway, since the backward of the norm
or the activation reads them: the kernel that reads them makes the operand as well, at the price of writing it. A sum of a residual stream is made again from
the sum before and what was added, where that takes less memory: in half precision what is added is half as large. Both cost memory traffic, and no product.
All that is made again may take a share of the step's expected time; what costs least per byte comes first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
import torch.fx

from dynacompile.autograd.facts import byte_size, is_view, kind, real_users, view_base
from dynacompile.ir.shapes import hint_of
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node


@dataclass(frozen=True)
class Device:
    """bytes: that kernels move in a microsecond. rates: multiplications and additions of products in a microsecond, by the bytes of a number. share: of a
    step's time that may go into making values again. least: bytes saved for backward of a step that is worth it."""

    bytes: float
    rates: Mapping[int, float]
    share: float
    least: int


DEVICES = {"cuda": Device(4.0e6, {2: 7.5e8, 4: 5.0e7}, 0.025, 1 << 30)}
"""As measured on an H200; smaller devices have less of both, in about the same ratio. On CPUs, where memory is slow and plenty, nothing is made again."""
OTHERS = Device(2.0e4, {2: 1.0e5, 4: 1.0e5, 8: 5.0e4}, 0.0, 0)
"""What others are taken for where a budget asks for less, which takes prices."""
LARGE = 1 << 20
"""Bytes from which a value counts."""
MOST_SUMS = 1
"""Of a residual stream, one after the other, that are made again from one that is kept: what more of them take, which are written and read, is no gain."""
CALLS = 3
"""Of a chain of calls of ATen that are made again from what is kept, for each sum and one more; so far apart are the sums of a residual stream."""


@dataclass(frozen=True)
class Candidate:
    """moved: bytes that making the node again moves, beside what backward moves anyway. gained: bytes that are not kept."""

    node: Node
    moved: int
    gained: int


def cheap_again(
    primal: Sequence[Node],
    backward: Sequence[Node],
    operands: Collection[Node],
    sums: Collection[Node],
    costs: Mapping[Node, int],
    kept: int,
    watched: Set[Node],
) -> set[Node]:
    """Of the operands of products and the sums of streams, which the backward would not make again by their costs, those that it does. kept: bytes saved for
    backward if it makes none of them. watched: inputs that may not be written before the backward if it reads them, while eager's may; none of them is
    read for this, such as a weight whose cast eager keeps."""
    device = next((DEVICES.get(n.meta["val"].device.type) for n in (*operands, *sums)), None)
    if device is None or kept < device.least:
        return set()
    read = read_anyway(backward, costs)
    found = sorted(candidates(primal, operands, sums, costs, read, watched), key=lambda c: c.moved / c.gained)
    left = device.share * step_us([*primal, *backward], device)
    chosen: set[Node] = set()
    for candidate in found:
        taken = candidate.moved / device.bytes
        if taken <= left:
            left -= taken
            chosen.add(candidate.node)
    return chosen


def by_price(nodes: Sequence[Node], costs: Mapping[Node, int], sums: Collection[Node], never: int, reach: int) -> list[Node]:
    """The nodes that may be made again, by microseconds per byte, the cheapest first. reach: how many sums may be made again in a row, and for how many calls
    with CALLS for each; what lies further from what is kept is kept, so that a backward makes its values again layer by layer, and not all at its begin."""
    rows: dict[Node, tuple[int, int]] = {}
    prices: dict[Node, float] = {}
    for node in nodes:
        if not 0 < costs[node] < never:
            continue
        sources = ends(node, costs)
        before = [rows[n] for n in sources if n in rows]
        found = max((s for s, _ in before), default=0) + (node in sums), max((c for _, c in before), default=0) + (kind(node) == "extern")
        if found[0] <= reach and found[1] <= CALLS * (reach + 1):
            rows[node] = found
            prices[node] = price(node, sources)
    return sorted(prices, key=prices.__getitem__)  # stable: the graph's order among equals


def price(node: Node, sources: Collection[Node]) -> float:
    value = node.meta.get("val")
    device = DEVICES.get(value.device.type, OTHERS) if isinstance(value, FakeTensor) else OTHERS
    moved = byte_size(node) + sum(map(byte_size, sources))
    return (moved / device.bytes + product_us(node, device)) / max(byte_size(node), 1)


def product_us(node: Node, device: Device) -> float:
    """Microseconds of a product's arithmetic; 0 where the rate is not known."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    rate = device.rates.get(max((v.dtype.itemsize for v in values if isinstance(v, FakeTensor)), default=0), 0.0)
    return multiplications(node) / rate if rate else 0.0


def read_anyway(backward: Sequence[Node], costs: Mapping[Node, int]) -> set[Node]:
    """What kernels of the backward read, and what they make again to that end, down to what is saved."""
    found: set[Node] = set()
    pending = [a for n in backward if kind(n) not in ("extern", "view") for a in n.all_input_nodes if a in costs]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if costs[node] == 0 or is_view(node):
                pending.extend(node.all_input_nodes)
    return found


def candidates(
    primal: Sequence[Node],
    operands: Collection[Node],
    sums: Collection[Node],
    costs: Mapping[Node, int],
    read: Collection[Node],
    watched: Set[Node],
) -> Iterator[Candidate]:
    """read: by kernels of the backward anyway."""
    hops: dict[Node, int] = {}  # how many sums are made again from one that is kept, this one included
    ends_of_sum: dict[Node, set[Node]] = {}
    new: set[Node] = set()  # kept for sums that are made again
    for node in primal:
        size = byte_size(node)
        if size < LARGE:
            continue
        if node in operands:
            found = ends(node, costs, read)
            more = found if is_made_apart(node) else {n for n in found if n not in read}
            if watched.isdisjoint(n for n in found if n not in read):
                yield Candidate(node, size + sum(map(byte_size, more)), size)
        elif node in sums:
            found = ends(node, costs)
            again = {n for n in found if n in hops}
            found = (found - again).union(*(ends_of_sum[n] for n in again))
            count = 1 + max((hops[n] for n in again), default=0)
            more = {n for n in found if n not in read and n not in new}
            if not more.isdisjoint(watched):
                continue
            gained, moved = size - sum(map(byte_size, more)), sum(map(byte_size, found)) - size
            if count <= MOST_SUMS and gained >= LARGE:
                hops[node], ends_of_sum[node] = count, found
                new |= more
                yield Candidate(node, max(moved, 0), gained)


def is_made_apart(node: Node) -> bool:
    """Whether a kernel of its own makes an operand again: what else reads its sources comes after the gradient that the operand is needed for, since one call
    gives that and the weight's, as for convolutions. Of products the weight's gradient can wait."""
    return any(len(u.target._schema.returns) > 1 for u in real_users(node) if kind(u) == "extern" and isinstance(u.target, of_torch.OpOverload))


def ends(node: Node, costs: Mapping[Node, int], stops: Collection[Node] = ()) -> set[Node]:
    """What a node is made of that has a cost, or is one of `stops`."""
    found: set[Node] = set()
    pending, seen = list(node.all_input_nodes), set()
    while pending:
        arg = pending.pop()
        if arg in seen:
            continue
        seen.add(arg)
        if is_view(arg) or (costs[arg] == 0 and arg not in stops):
            pending.extend(arg.all_input_nodes)
        else:
            found.add(arg)
    return found


def step_us(nodes: Sequence[Node], device: Device) -> float:
    """Microseconds of a step: products, and the traffic of calls; what kernels between them move is about that of the calls."""
    total = 0.0
    for node in nodes:
        if kind(node) == "extern":
            size = sum(byte_size(n) for n in {view_base(a) for a in node.all_input_nodes}) + byte_size(node)
            total += size / device.bytes + product_us(node, device)
    return total


def multiplications(node: Node) -> float:
    """Multiplications and additions of a product or a convolution; of other calls 0, which makes the step's time an underestimate."""
    value = node.meta.get("val")
    shapes = [tuple(map(hint_of, a.meta["val"].shape)) for a in node.all_input_nodes if isinstance(a.meta.get("val"), FakeTensor)]
    name = node.target._schema.name if isinstance(node.target, of_torch.OpOverload) else ""
    if name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm") and isinstance(value, FakeTensor):
        first = node.args[-2]
        assert isinstance(first, Node)
        return 2.0 * hint_of(value.numel()) * hint_of(first.meta["val"].shape[-1])
    if name == "aten::convolution" and isinstance(value, FakeTensor):
        return 2.0 * hint_of(value.numel()) * math.prod(shapes[1][1:])
    if name == "aten::convolution_backward":
        return 4.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    return 0.0
