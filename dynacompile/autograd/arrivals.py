"""Gradients that nobody brings are zeros to a compiled backward. Where eager has none, what would be computed of these zeros must not count: a product of zero
and infinity is NaN."""

from __future__ import annotations

import math
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
    graph: torch.fx.Graph, reached: Mapping[torch.fx.Node, int], tangents: Sequence[torch.fx.Node], fake: Callable[..., Any]
) -> tuple[tuple[int, ...], ...]:
    """Where a node takes gradients that come from some of its tangents alone, puts zeros in the place of those that nothing has come for. Gives the sets of
    tangents that the new placeholders, behind the tangents, tell of. reached: the tangents of each node, as the bits of a number."""
    zeros = set(tangents)
    flags: dict[int, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not reached[node]:
            continue
        if keeps_zeros(node, zeros):
            zeros.add(node)
        if node.target is REGION:  # which asks what has come itself
            continue
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            if reached[operand] not in (0, reached[node]) and operand not in zeros and isinstance(value, torch.Tensor):
                flag = flags.get(reached[operand])
                if flag is None:
                    first = tangents[(reached[operand] & -reached[operand]).bit_length() - 1]  # whose device the runtime makes the flag on
                    behind = list(flags.values())[-1] if flags else tangents[-1]
                    flag = flags[reached[operand]] = add_flag(graph, behind, first.meta["val"].device, fake, len(flags))
                with graph.inserting_before(node):
                    if flag.meta["val"].device != value.device:
                        flag = moved(graph, flag, value.device, fake)
                    zero = graph.call_function(aten.full.default, ([], 0), {"dtype": value.dtype, "device": value.device})
                    zero.meta = {**operand.meta, "val": fake(aten.full.default, [], 0, dtype=value.dtype, device=value.device)}
                    chosen = graph.call_function(aten.where.self, (flag, operand, zero))
                    chosen.meta = {**operand.meta, "val": fake(aten.where.self, flag.meta["val"], value, zero.meta["val"])}
                node.replace_input_with(operand, chosen)
    return tuple(tuple(i for i in range(mask.bit_length()) if mask >> i & 1) for mask in flags)


def add_flag(graph: torch.fx.Graph, behind: torch.fx.Node, device: torch.device, fake: Callable[..., Any], index: int) -> torch.fx.Node:
    with graph.inserting_after(behind):
        flag = graph.placeholder(f"came_{index}")
    flag.meta["val"] = fake(aten.full.default, [], True, dtype=torch.bool, device=device)
    return flag


def moved(graph: torch.fx.Graph, flag: torch.fx.Node, device: torch.device, fake: Callable[..., Any]) -> torch.fx.Node:
    """The flag on another device, where gradients of several devices meet."""
    copy = graph.call_function(aten._to_copy.default, (flag,), {"device": device})
    copy.meta = {**flag.meta, "val": fake(aten._to_copy.default, flag.meta["val"], device=device)}
    return copy


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
