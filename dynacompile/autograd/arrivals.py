"""Gradients that nobody brings are zeros to a compiled backward. Where eager has none, what would be computed of these zeros must not count: a product of zero
and infinity is NaN."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.facts import is_view
from dynacompile.autograd.functionalize import inner
from dynacompile.autograd.record import Recorder
from dynacompile.errors import Unsupported
from dynacompile.ops.regions import REGION

aten = torch.ops.aten
KEEP_ZEROS = frozenset({aten.neg.default, aten.clone.default, aten._to_copy.default, aten.sum.default, aten.sum.dim_IntList})
SCALES = frozenset({aten.mul.Tensor, aten.div.Tensor})


@dataclass
class Together:
    """Gradients that custom functions get several of at a time: where one has come, the function is given zeros for the others, as tensors or as None."""

    groups: list[tuple[list[torch.fx.Node], bool]] = field(default_factory=list)

    def note(self, results: Sequence[torch.Tensor], target: Any, recorder: Recorder) -> None:
        """Tells of the results of an operation."""
        differentiable = [t for t in results if t.requires_grad]
        node = differentiable[0].grad_fn if len(differentiable) > 1 else None
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return
        takes_none = bool(getattr(target, "takes_none", False))

        def hook(grads: tuple) -> tuple:
            own = tuple(None if g is None else g.clone() for g in grads)  # nobody else computes with these
            self.groups.append(([recorder.node_of(inner(g)) for g in own if g is not None], takes_none))
            return own

        node.register_prehook(hook)

    def reach(self, reached: Mapping[torch.fx.Node, int]) -> dict[torch.fx.Node, int]:
        """The tangents that make a function run, by the gradients that it gets. reached: those that each node is computed from."""
        found: dict[torch.fx.Node, int] = {}
        for nodes, takes_none in self.groups:
            all_of_them = 0
            for node in nodes:
                all_of_them |= reached[node]
            if takes_none and any(reached[node] != all_of_them for node in nodes):
                reason = "a custom autograd function that gets None for gradients has results that the caller may leave unused one by one"
                raise Unsupported("autograd-function", reason, "call it outside of the compiled function")
            found.update(dict.fromkeys(nodes, all_of_them))
        return found


def cut_absent(
    graph: torch.fx.Graph,
    reached: Mapping[torch.fx.Node, int],
    tangents: Sequence[torch.fx.Node],
    levels: Sequence[int],
    fake: Callable[..., Any],
) -> tuple[tuple[int, ...], ...]:
    """Where a node takes gradients that come from some of its tangents alone, puts zeros in the place of those that nothing has come for. Gives the sets of
    tangents that the new placeholders, behind the tangents, tell of. reached: the tangents of each node, as the bits of a number. levels: of each tangent,
    where the backward is cut at outputs. A gradient that a function gets with one of a lower level is chosen by a flag of that level, so that what is
    computed of it belongs there: the stage of the higher level does not run where nothing has come for it."""
    zeros, reached = set(tangents), dict(reached)
    flags = Flags(graph, tangents, fake)
    for node in list(graph.nodes):
        if node.op != "call_function" or not reached[node]:
            continue
        if keeps_zeros(node, zeros):
            zeros.add(node)
        if node.target is REGION:  # which asks what has come itself
            continue
        taken = functools.reduce(operator.or_, (reached[operand] for operand in node.all_input_nodes), 0)
        for operand in node.all_input_nodes:
            if reached[operand] not in (0, reached[node]) and operand not in zeros and isinstance(operand.meta.get("val"), torch.Tensor):
                with graph.inserting_before(node):
                    node.replace_input_with(operand, flags.chosen(operand, reached[operand]))
        if taken and lowest(levels, taken) > lowest(levels, reached[node]) and isinstance(node.meta.get("val"), torch.Tensor):
            with graph.inserting_before(node.next):
                lower = flags.chosen(node, reached[node])
            node.replace_all_uses_with(lower, lambda user, lower=lower: user is not lower)
            reached[lower] = reached[node]
    return tuple(tuple(i for i in range(mask.bit_length()) if mask >> i & 1) for mask in flags.found)


def lowest(levels: Sequence[int], tangents: int) -> int:
    """The lowest level of tangents that are the bits of a number."""
    return min((level for i, level in enumerate(levels) if tangents >> i & 1), default=0)


@dataclass
class Flags:
    """The placeholders that tell whether one of some tangents has come, behind the tangents. found: by the tangents, as the bits of a number."""

    graph: torch.fx.Graph
    tangents: Sequence[torch.fx.Node]
    fake: Callable[..., Any]
    found: dict[int, torch.fx.Node] = field(default_factory=dict)

    def chosen(self, node: torch.fx.Node, tangents: int) -> torch.fx.Node:
        """The node where one of the tangents has come, else zeros. It is put where the graph inserts."""
        value = node.meta["val"]
        flag = self.of(tangents)
        if flag.meta["val"].device != value.device:
            flag = self.made(node, aten._to_copy.default, flag, device=value.device)
        zero = self.made(node, aten.full.default, [], 0, dtype=value.dtype, device=value.device)
        return self.made(node, aten.where.self, flag, node, zero)

    def of(self, tangents: int) -> torch.fx.Node:
        """The placeholder, on the device of the first of the tangents, where the runtime makes it."""
        flag = self.found.get(tangents)
        if flag is None:
            first = self.tangents[(tangents & -tangents).bit_length() - 1]
            behind = list(self.found.values())[-1] if self.found else self.tangents[-1]
            with self.graph.inserting_after(behind):
                flag = self.found[tangents] = self.graph.placeholder(f"came_{len(self.found)}")
            flag.meta["val"] = self.fake(aten.full.default, [], True, dtype=torch.bool, device=first.meta["val"].device)
        return flag

    def made(self, node: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A call beside a node, whose place in the user's code it has."""
        call = self.graph.call_function(target, args, kwargs)
        call.meta = {**node.meta, "val": self.fake(target, *(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args), **kwargs)}
        return call


def keeps_zeros(node: torch.fx.Node, zeros: set[torch.fx.Node]) -> bool:
    """Whether zeros as tangents surely make zeros of a node."""
    if not all(operand in zeros for operand in node.all_input_nodes):
        return False
    if node.target in SCALES:
        number = node.args[1]
        return isinstance(number, (int, float)) and math.isfinite(number) and bool(number != 0 or node.target is aten.mul.Tensor)
    if node.target is aten.constant_pad_nd.default:
        return len(node.args) < 3 or bool(node.args[2] == 0)
    return is_view(node) or node.target in KEEP_ZEROS or node.target is aten.add.Tensor
