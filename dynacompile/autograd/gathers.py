"""Parameters that a graph gathers from the processes that have a part of each, as fully sharded training does.

The gathers of a backward that makes them again depend on no gradient, so that they can begin beside the work before them. Ranks have to make the same calls in
the same order, and a rank in eager would not make these: every process runs the compiled program. Which there are, and their place in it, follow from the sizes
of parameters and from what the backward reads in which order, which ranks have in common: not from times, nor from the sizes of a rank's batch. So what is
computed from gathered values and others is kept, and not made again where that would be less.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Mapping

import torch.fx

from dynacompile.autograd.facts import FUSIBLE, byte_size, is_random, is_view, kind
from dynacompile.ops.collectives import is_collective, is_gather, is_wait

Node = torch.fx.Node
CHEAP = FUSIBLE | {"item", "get_attr"}


def gathered_from_inputs(nodes: Iterable[Node]) -> set[Node]:
    """Gathers of what is computed from inputs alone, elements by elements; what is computed likewise from these; and what these gathers send."""
    near: set[Node] = set()
    gathered: set[Node] = set()
    for node in nodes:
        from_near = all(arg in near for arg in node.all_input_nodes)
        if node.op == "placeholder" or (from_near and kind(node) in CHEAP and not is_random(node) and not is_collective(node.target)):
            near.add(node)
            if any(arg in gathered for arg in node.all_input_nodes):
                gathered.add(node)
        elif from_near and (is_gather(node.target) or is_wait(node.target)):
            near.add(node)
            if is_gather(node.target) or node.args[0] in gathered:
                gathered.add(node)
    sent = {node for gather in gathered if is_gather(gather.target) for node in behind(gather)}
    return gathered | sent


def sent_inputs(nodes: Iterable[Node]) -> set[Node]:
    """The inputs that the gathers among some nodes send."""
    gathers = [node for node in nodes if is_gather(node.target)]
    return {arg for gather in gathers for node in (gather, *behind(gather)) for arg in node.all_input_nodes if arg.op == "placeholder"}


def behind(gather: Node) -> list[Node]:
    """What a gather sends, and what that is computed from, but for inputs; in no order."""
    found: dict[Node, None] = {}
    pending = list(gather.all_input_nodes)
    while pending:
        node = pending.pop()
        if node.op != "placeholder" and node not in found:
            found[node] = None
            pending += node.all_input_nodes
    return list(found)


def gather_ahead(graph: torch.fx.Graph, most: int) -> torch.fx.Graph:
    """Moves gathers of inputs up: one begins where an earlier one is first read, and before that if all under way then give no more than `most` bytes."""
    near = gathered_from_inputs(graph.nodes)
    nodes = list(graph.nodes)
    places = {node: i for i, node in enumerate(nodes)}
    later = deque(node for node in nodes if is_gather(node.target) and node in near)
    readers: dict[Node, list[Node]] = {}
    for gather in later:
        readers.setdefault(first_reader(gather, places), []).append(gather)
    under_way: dict[Node, int] = {}  # the bytes that gathers give which have begun and are not read
    passed: set[Node] = set()
    for node in nodes:
        read = readers.get(node, [])
        for gather in read:
            under_way.pop(gather, None)
        end = node if later and node is later[0] else node.prev
        passed.add(end)
        while (read or end is node) and later and (not under_way or sum(under_way.values()) + given(later[0]) <= most):
            gather = later.popleft()
            under_way[gather] = given(gather)
            for moved in (*sorted(behind(gather), key=places.__getitem__), gather):
                if moved not in passed:
                    end.append(moved)
                    end = moved
                    passed.add(moved)
        passed.add(node)
    return graph


def first_reader(gather: Node, places: Mapping[Node, int]) -> Node:
    """The first node that needs the result: what waits for it, and what is a view of it, does not."""
    found: set[Node] = set()
    pending = list(gather.users)
    while pending:
        user = pending.pop()
        if is_wait(user.target) or is_view(user) or user.target is operator.getitem:
            pending += user.users
        else:
            found.add(user)
    return min(found, key=places.__getitem__, default=gather)


def given(gather: Node) -> int:
    """The bytes of a gather's results."""
    made = gather.meta.get("val")
    return sum(map(byte_size, gather.users)) if isinstance(made, (tuple, list)) else byte_size(gather)
