"""Small collectives of one kind become one call, where nothing between them needs a result.

Only neighbours in the program's order are joined, so that all other collectives keep their place in it. Each process has to do the same: one that runs the
program as Python makes the calls one by one, and the others would wait for it for ever. So this is done where the user asks for it (`collective_bytes`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
import torch.fx

from dynacompile.autograd.facts import byte_size, has_effect
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.private import of_torch

Node = torch.fx.Node
JOINED = {  # a collective's name -> of_torch's name for the one of several tensors, with the same further arguments
    "_c10d_functional::all_reduce": "functional_all_reduce_of_several",
    "_c10d_functional::all_gather_into_tensor": "functional_all_gather_of_several",
    "_c10d_functional::reduce_scatter_tensor": "functional_reduce_scatter_of_several",
}


@dataclass
class Bucket:
    """Calls that become one. read: what was met on the way and needs the result of one of them, in order."""

    calls: list[Node] = field(default_factory=list)
    read: dict[Node, None] = field(default_factory=dict)

    def takes(self, node: Node, most: int) -> bool:
        first = self.calls[0]
        alike = node.target is first.target and node.args[1:] == first.args[1:] and node.kwargs == first.kwargs and dtype(node) == dtype(first)
        return alike and not self.needs(node) and sum(map(sent, [*self.calls, node])) <= most

    def needs(self, node: Node) -> bool:
        return any(arg in self.read or arg in self.calls for arg in node.all_input_nodes)


def bucket_collectives(graph: torch.fx.Graph, most: int) -> torch.fx.Graph:
    """most: the bytes that the operands of a joined call may have together."""
    bucket: Bucket | None = None
    for node in list(graph.nodes):
        if bucket is not None:
            if is_small(node, most) and bucket.takes(node, most):
                bucket.calls.append(node)
                continue
            if not is_left(node, bucket):
                if bucket.needs(node):
                    bucket.read[node] = None
                continue
            join(graph, bucket)
        bucket = Bucket([node]) if is_small(node, most) else None
    return graph


def is_left(node: Node, bucket: Bucket) -> bool:
    """Whether a node ends the bucket: another collective begins, something is written, which may be what a call sends, or something that has to stay in its
    place needs a result."""
    if is_wait(node.target):
        return False
    return node.op == "output" or is_collective(node.target) or writes(node) or (has_effect(node) and bucket.needs(node))


def writes(node: Node) -> bool:
    return isinstance(node.target, of_torch.OpOverload) and node.target._schema.is_mutable


def is_small(node: Node, most: int) -> bool:
    """A collective that can be joined: of one tensor of known size, which is no complex one, since these are sent as pairs of numbers."""
    if not isinstance(node.target, of_torch.OpOverload) or node.target._schema.name not in JOINED:
        return False
    operand = node.args[0]
    if not isinstance(operand, Node) or not all(isinstance(size, int) for size in operand.meta["val"].shape):
        return False
    return sent(node) <= most and not dtype(node).is_complex


def dtype(node: Node) -> torch.dtype:
    return node.args[0].meta["val"].dtype  # type: ignore[union-attr]


def sent(node: Node) -> int:
    return byte_size(node.args[0])  # type: ignore[arg-type]


def join(graph: torch.fx.Graph, bucket: Bucket) -> None:
    """One call where the last one stood. What needs a result and stood before comes after it."""
    if len(bucket.calls) < 2:
        return
    first, last = bucket.calls[0], bucket.calls[-1]
    joined = getattr(of_torch, JOINED[first.target._schema.name])  # type: ignore[union-attr]
    with graph.inserting_after(last):
        call = graph.call_function(joined, ([c.args[0] for c in bucket.calls], *first.args[1:]), first.kwargs)
    call.meta = {**first.meta, "val": [c.meta["val"] for c in bucket.calls]}
    end = call
    for i, one in enumerate(bucket.calls):
        with graph.inserting_after(end):
            end = graph.call_function(operator.getitem, (call, i))
        end.meta = dict(one.meta)
        one.replace_all_uses_with(end)
        graph.erase_node(one)
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in bucket.read:
        if order[node] < order[call]:
            end.append(node)
            end = node
