"""Chooses what forward saves for backward, by a minimum cut, and splits the joint graph there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
import torch.fx

from dynacompile.autograd.facts import FUSIBLE, byte_size, has_effect, is_random, is_view, kind, looks_at_values, real_users, view_base
from dynacompile.autograd.gathers import gathered_from_inputs, sent_inputs
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.autograd.made_again import CALLS, by_price, cheap_again
from dynacompile.autograd.mincut import FlowNetwork
from dynacompile.ir.graphs import Fresh, ViewOfOutput
from dynacompile.ir.shapes import hint_of
from dynacompile.ops.chunked_losses import KEEP
from dynacompile.ops.collectives import is_collective
from dynacompile.ops.picked import computed_once
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node
NEVER = 1 << 40
"""Recompute cost of what must not be computed twice."""
REACHES = (0, 1, 3, 7, 15, 31, 1 << 30)
"""How long chains of recomputed nodes may be, tried one after the other; see `made_again.by_price`."""
MOST_COPIED = 1 << 16
"""Bytes of a leaf that may be copied for backward: those of biases and of the parameters of norms."""


@dataclass(frozen=True)
class Sides:
    """The joint graph's nodes by what they serve. primal: independent of the tangents. forward: needed by forward's results, or called for their effect.
    backward: those that depend on tangents. frontier: primal nodes that backward nodes or gradients use. copied: inputs that may be written before
    backward has read them, by the graph or, where eager's autograd keeps nothing of them, by the caller: to save one is to save a copy. Leaves, and parts of
    parameters that are gathered again, which an optimizer may write, are among them up to MOST_COPIED bytes; larger ones are read where they lie, and a
    write to one is an error in backward.
    exposed: results that eager does not keep; they are saved as they are, and a backward after a write runs the graph again. lost: inputs that gradients
    depend on and the graph writes: unless copies of them all are saved, it can't run again, and to save an exposed result is to save a copy of it.
    watched: inputs that eager does not keep and whose copies nobody saves: a write to one that the backward reads is an error that eager has not.
    gathered: what is computed in backward again, whatever it costs."""

    primal: list[Node]
    forward: set[Node]
    backward: list[Node]
    frontier: set[Node]
    copied: set[Node]
    exposed: set[Node]
    lost: set[Node]
    watched: set[Node]
    gathered: set[Node]

    def copied_results(self, saved: Collection[Node]) -> set[Node]:
        return self.exposed if self.lost.difference(saved) else set()


@dataclass(frozen=True)
class Cut:
    """saved: the nodes kept for backward, in graph order. bytes: of those that are not inputs. everything: bytes that saving all that
    backward reads would take."""

    saved: tuple[Node, ...]
    bytes: int
    everything: int


def sides(joint: JointGraph, regather: bool = False) -> Sides:
    """regather: what is gathered from inputs is gathered again."""
    placeholders = joint.placeholders
    tangents = set(placeholders[joint.inputs :])
    forward_group, written_group, grads = joint.groups
    primal: list[Node] = []
    backward: list[Node] = []
    dependent = set(tangents)
    for node in joint.graph.nodes:
        if node in tangents or node.op == "output":
            continue
        if any(arg in dependent for arg in node.all_input_nodes):
            dependent.add(node)
            backward.append(node)
        else:
            primal.append(node)
    checks = (n for n in primal if has_effect(n) or (not n.users and looks_at_values(n)))
    roots = [*forward_group, *written_group, *checks, *(n for n in primal if n.target is KEEP)]
    frontier = {arg for node in backward for arg in node.all_input_nodes if arg not in dependent}
    frontier.update(g for g in (*grads, *joint.captured) if g not in dependent)
    mutated = {placeholders[i] for i in (*joint.written, *(m.input for m in joint.mutations))}
    kept = {w.index for w in joint.history.watches if w.is_input} - kept_by_others(joint, dependent)
    unkept = [(i, n) for i, n in enumerate(placeholders[: joint.inputs]) if i not in kept and isinstance(n.meta["val"], FakeTensor)]
    gathered = gathered_from_inputs(primal) if regather else set()
    parameters = {placeholders[i] for i in joint.leaves} | sent_inputs(gathered)
    writable = {n for _, n in unkept if n not in parameters or byte_size(n) <= MOST_COPIED}
    read = ancestors([*grads, *joint.captured, *(n for n in primal if has_effect(n))]) if mutated else set()
    watched = {n for _, n in unkept} - mutated - writable
    return Sides(primal, ancestors(roots), backward, frontier, mutated | writable, exposed(joint), mutated & read, watched, gathered)


def kept_by_others(joint: JointGraph, dependent: Collection[Node]) -> set[int]:
    """Inputs that eager keeps for the gradients of some outputs, and that those of another output would read here: before the backward pass of that one they
    may be written. dependent: the nodes that depend on gradients."""
    placeholders = joint.placeholders
    every = (1 << len(joint.tangents)) - 1  # bits of outputs
    reached = {w.index: sum(1 << t for t in {t for part in w.parts for t in part[0]}) for w in joint.history.watches if w.is_input}
    partly = {i: found for i, found in reached.items() if found != every}
    if not partly:
        return set()
    order = list(joint.graph.nodes)
    come = {placeholders[joint.inputs + t]: 1 << t for t in range(len(joint.tangents))}  # to nodes, from gradients of these outputs
    read: defaultdict[Node, int] = defaultdict(int)  # nodes, by those of these outputs
    for node in order:
        if node not in dependent or node in come:
            continue
        come[node] = reduce(or_, (come.get(arg, 0) for arg in node.all_input_nodes), 0)
        for arg in node.all_input_nodes:
            if arg not in dependent:
                read[arg] |= come[node]
    for node in reversed(order):
        if read[node] and node not in dependent:
            for arg in node.all_input_nodes:
                read[arg] |= read[node]
    return {i for i, found in partly.items() if read[placeholders[i]] & ~found}


def exposed(joint: JointGraph) -> set[Node]:
    """Results that the caller gets, where eager's autograd does not keep them: in eager, they may be written before backward."""
    kept = {w.index for w in joint.history.watches if not w.is_input}
    results = {o.position for o in joint.outputs if isinstance(o, (Fresh, ViewOfOutput))}
    return {view_base(joint.groups[0][p]) for p in results if p not in kept}


def ancestors(roots: Sequence[Node], ends: Collection[Node] = ()) -> set[Node]:
    """The roots and all that they depend on, without what `ends` depend on."""
    found: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in ends:
                pending.extend(node.all_input_nodes)
    return found


def choose_cut(joint: JointGraph, side: Sides, budget: float) -> Cut:
    """The cheapest cut. budget: share of the default cut's bytes that may be kept; below 1, costlier ops are recomputed until it fits, the
    cheapest per saved byte first (random ops never), and no longer chains of them than it takes. What a chain makes is alive at once: where nothing fits,
    or only with chains that take more than they save, it is the cut with the least of both."""
    costs = recompute_costs(side)
    everything = sum(byte_size(n) for n in {view_base(n) for n in side.frontier} if n.op == "call_function")
    operands, sums = stored_twice(side, costs)
    cut = cut_at(joint, side, costs, 0, everything)
    again = cheap_again(side.primal, side.backward, operands, sums, costs, cut.bytes, side.watched)
    if again:
        costs |= dict.fromkeys(again, 0)
        cut = cut_at(joint, side, costs, 0, everything)
    if budget >= 1.0:
        return cut
    allowed, best, least, order = cut.bytes * budget, cut, float("inf"), []  # type: float, Cut, float, list[Node]
    calls = max((d for n, d in extern_depth(side).items() if n in side.forward), default=0)
    links = max(len(sums) + 1, calls / CALLS)
    for reach in REACHES:
        longer = by_price(side.primal, costs, sums, NEVER, reach)
        at_once = everything * min(1.0, (reach + 1) / links)
        if (reach and len(longer) == len(order)) or at_once >= least:
            break
        order = longer
        found = within(joint, side, costs, order, allowed, everything)
        if found.bytes + at_once < least:
            best, least = found, found.bytes + at_once
        if found.bytes <= allowed:
            break
    return best


def within(joint: JointGraph, side: Sides, costs: Mapping[Node, int], order: Sequence[Node], allowed: float, everything: int) -> Cut:
    """The cut that recomputes as few of the nodes, in their order, as keeping no more than allowed takes; all of them, where that is not enough."""
    ranks = {**{n: c if c == 0 else NEVER for n, c in costs.items()}, **{n: i + 1 for i, n in enumerate(order)}}
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if cut_at(joint, side, ranks, middle, everything).bytes <= allowed:
            high = middle
        else:
            low = middle + 1
    return cut_at(joint, side, ranks, low, everything)


def recompute_costs(side: Sides) -> dict[Node, int]:
    """What it costs to compute a forward node again: 0 free, then ranks of rising price per byte, NEVER."""
    depth = extern_depth(side)
    backward = set(side.backward)
    once = computed_once([*side.primal, *side.backward])
    costs: dict[Node, int] = {}
    for node in side.primal:
        what = kind(node)
        if node in side.gathered:
            costs[node] = 0
        elif any(arg in side.gathered for arg in node.all_input_nodes):
            costs[node] = NEVER  # which gathers are made again follows from what reads them, and not from sizes, which differ between ranks
        elif is_random(node) or is_collective(node.target) or what == "placeholder" or node.target is KEEP or node in once:
            costs[node] = NEVER
        elif what in ("item", "view", "create", "get_attr") or node not in side.forward:
            costs[node] = 0
        elif what in FUSIBLE:
            costs[node] = 1 if is_materialised_anyway(node, depth, side.forward, backward) else 0
        elif what == "extern":
            costs[node] = 3 + arithmetic_intensity(node)
        else:
            costs[node] = 2
    return costs


def arithmetic_intensity(node: Node) -> int:
    """Multiply-adds per byte of result, rounded to a power of two; the length of the contraction is what counts."""
    inner = max(
        (hint_of(a.meta["val"].shape[-1]) for a in node.all_input_nodes if isinstance(a.meta.get("val"), FakeTensor) and a.meta["val"].dim()), default=1
    )
    return max(inner, 1).bit_length()


def extern_depth(side: Sides) -> dict[Node, int]:
    """How many calls of ATen lie on the longest way to a node; nodes of different depth can't share a kernel."""
    depth: dict[Node, int] = {}
    for node in side.primal:
        depth[node] = max((depth[a] for a in node.all_input_nodes), default=0) + (kind(node) == "extern")
    return depth


def is_materialised_anyway(node: Node, depth: Mapping[Node, int], forward: set[Node], backward: set[Node]) -> bool:
    """Forward writes the node to memory whatever we choose, and reading it back beats computing it again: an ATen call of forward and one of
    backward take it, or forward uses it again after a later ATen call: a residual stream, whose recomputation would grow with depth (but
    what comes of inputs alone is cheap)."""
    if is_used_later(node, depth, forward):
        return True
    users = real_users(node)
    ahead = [u for u in users if u in forward and u in depth]
    return any(kind(u) == "extern" for u in ahead) and any(kind(u) == "extern" for u in users if u in backward)


def is_used_later(node: Node, depth: Mapping[Node, int], forward: set[Node]) -> bool:
    """Forward uses the node again after a later call of ATen; what comes of inputs alone does not count."""
    return depth[node] > 0 and any(u in forward and u in depth and kind(u) != "extern" and depth[u] > depth[node] for u in real_users(node))


def stored_twice(side: Sides, costs: Mapping[Node, int]) -> tuple[set[Node], set[Node]]:
    """The fusible nodes that have a cost since forward writes them anyway: operands of products, and sums that forward uses again after a later call."""
    depth = extern_depth(side)
    stored = [n for n in side.primal if costs[n] == 1 and isinstance(n.meta.get("val"), FakeTensor)]
    sums = {n for n in stored if is_used_later(n, depth, side.forward)}
    return {n for n in stored if n not in sums}, sums


def is_stored(node: Node, depth: Mapping[Node, int], forward: set[Node]) -> bool:
    """Forward has the node in memory, so that saving it costs no further write."""
    if node.op == "placeholder" or kind(node) not in FUSIBLE:
        return node in forward
    return node in forward and any(u.op == "output" or (u in forward and u in depth and depth[u] > depth[node]) for u in real_users(node))


def cut_at(joint: JointGraph, side: Sides, costs: Mapping[Node, int], limit: int, everything: int) -> Cut:
    """The minimum cut when nodes of cost up to `limit` may be computed again."""
    needed = ancestors(list(side.frontier))
    depth = extern_depth(side)
    network = FlowNetwork()
    ends: dict[Node, tuple[int, int]] = {}
    for node in side.primal:
        if node not in needed:
            continue
        entry = network.node()
        leave = entry
        if isinstance(node.meta.get("val"), FakeTensor) and not is_view(node) and node.op != "get_attr":
            leave = network.node()
            network.edge(entry, leave, weight(node, side, depth))
        ends[node] = entry, leave
        if costs[node] > limit and (node in side.forward or node.op == "placeholder"):
            network.edge(0, entry)
        for arg in node.all_input_nodes:
            network.edge(ends[arg][1], entry)
        if node in side.frontier:
            network.edge(leave, 1)
    below = network.sink_side()
    saved = tuple(n for n, (entry, leave) in ends.items() if entry not in below and leave in below)
    return Cut(saved, sum(byte_size(n) for n in saved if n.op != "placeholder"), everything)


def weight(node: Node, side: Sides, depth: Mapping[Node, int]) -> int:
    """Price of saving a node. Inputs are alive anyway, unless they must be copied; what forward does not store costs a write. Of two nodes of one size,
    the one that the caller can't write is saved."""
    size = max(byte_size(node), 1) * 4
    if node in side.gathered:
        return NEVER
    if node.op == "placeholder":
        return size * 2 if node in side.copied else 1
    if node in side.exposed and side.lost:
        return size * 2 + 1
    return size + (node in side.exposed) if is_stored(node, depth, side.forward) else size * 2
