"""Cuts a captured graph where the values of tensors decide a size or a number: what lies between is compiled, those operations run by themselves."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import output_args
from dynacompile.ir.shapes import NUMBERS, value_symbols
from dynacompile.ir.symbolic_graphs import ALONE, add_node, free_symbols, picked, placed, required, symbol_sources
from dynacompile.private import of_torch

Node = torch.fx.Node


@dataclass
class Segment:
    """A part of a graph that is compiled. inputs: nodes before it, of the whole graph. symbols: numbers that it takes behind these, as
    (node, dimension or None). outputs: nodes of the whole graph."""

    module: torch.fx.GraphModule
    fakes: tuple[object, ...]
    inputs: tuple[Node, ...]
    symbols: tuple[tuple[Node, int | None], ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True)
class Alone:
    """An operation that runs by itself. grad: the gradient mode that it runs in."""

    node: Node
    grad: bool


@dataclass
class Growing:
    """A segment while nodes are added. nodes: by those of the whole graph."""

    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    nodes: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)


def depends_on_values(graph: torch.fx.GraphModule) -> bool:
    """Whether it holds sizes, numbers or places that the values of tensors decide."""
    return any(node.target in (picked, placed) or any(map(value_symbols, numbers_of(node.meta.get("val")))) for node in graph.graph.nodes)


def numbers_of(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield from (n for n in value.shape if isinstance(n, torch.SymInt))
    elif isinstance(value, NUMBERS):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from numbers_of(item)


def segments(graph: torch.fx.GraphModule) -> list[Segment | Alone]:
    """The parts in order. Nodes that are numbers are in no part. Each part begins and ends in the gradient mode that the graph begins in. Raises Unsupported
    where a part would begin under an autocast of the graph."""
    parts: list[Segment | Alone] = []
    before = [n for n in graph.graph.nodes if n.op == "placeholder"]
    growing, shown, modes = Growing(), {s for n in before for s in shown_values(n)}, Modes()
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output") or is_number(node) and not fresh(node, shown):
            continue
        if is_item(node, parts):  # of several results: who runs the operation has them
            before.append(node)
            shown.update(shown_values(node))
            continue
        modes.see(node)
        if node.target in ALONE or fresh(node, shown):
            if modes.casts:
                raise Unsupported("values-in-mode", f"{node.target} depends on values inside of a block that sets autocast", "move it out of the block")
            modes.switch(growing, modes.start)
            parts += finished(graph, growing, place, node, before)
            parts.append(Alone(node, modes.grad))
            before += [node] if "val" in node.meta else []
            growing = Growing()
            modes.switch(growing, modes.grad)
            shown.update(shown_values(node))
        else:
            add(growing, node)
    return parts + finished(graph, growing, place, None, before)


def is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def is_item(node: Node, alone: Sequence[object]) -> bool:
    """Whether the node is one of the results, or of the parts of one, of an operation that runs by itself."""
    of = node
    while of.target is operator.getitem and isinstance(of.args[0], Node) and isinstance(of.args[0].meta.get("val"), (tuple, list)):
        of = of.args[0]
    return of is not node and any(isinstance(part, Alone) and part.node is of for part in alone)


def fresh(node: Node, shown: set[Any]) -> bool:
    """Whether the node makes a symbol for a value."""
    return any(s not in shown for s in shown_values(node))


def shown_values(node: Node) -> Iterator[Any]:
    """The symbols for values of tensors that a node's result shows."""
    return (s for n in numbers_of(node.meta.get("val")) for s in value_symbols(n))


class Modes:
    """The state that the graph's own nodes have set so far."""

    def __init__(self) -> None:
        self.grad, self.casts = torch.is_grad_enabled(), 0
        self.start = self.grad

    def see(self, node: Node) -> None:
        if node.target is of_torch.set_grad_enabled:
            self.grad = bool(node.args[0])
        elif node.op == "call_function" and "val" not in node.meta and node.target is not required:
            self.casts += 1 if node.users else -1

    def switch(self, growing: Growing, grad: bool) -> None:
        """Sets the gradient mode in a part, where it is another one than the graph begins in."""
        if self.grad != self.start:
            growing.graph.call_function(of_torch.set_grad_enabled, (grad,))


def add(growing: Growing, node: Node) -> None:
    """Copies the node; what it takes from before becomes an input, numbers are written into its arguments."""

    def argument(arg: Any) -> Any:
        if not isinstance(arg, Node):
            return arg
        if is_number(arg):
            return arg.meta["val"]
        if arg not in growing.nodes:
            last = growing.nodes[growing.inputs[-1]] if growing.inputs else None
            with growing.graph.inserting_before(None) if last is None else growing.graph.inserting_after(last):  # None: at the beginning
                given = growing.graph.placeholder(arg.name)
            given.meta = {"val": arg.meta["val"], "example_value": arg.meta["val"]}
            growing.nodes[arg] = given
            growing.inputs.append(arg)
        return growing.nodes[arg]

    args, kwargs = torch.fx.node.map_aggregate(node.args, argument), torch.fx.node.map_aggregate(node.kwargs, argument)
    copy = add_node(growing.graph, node.op, node.target, tuple(args), dict(kwargs))  # type: ignore[arg-type]
    copy.meta = dict(node.meta)
    growing.nodes[node] = copy


def finished(graph: torch.fx.GraphModule, growing: Growing, place: Mapping[Node, int], end: Node | None, before: Sequence[Node]) -> list[Segment | Alone]:
    """The segment before `end`, as a list of one; nothing where it holds no nodes. before: nodes that show all symbols that there are."""
    own = [n for n in growing.nodes if n not in growing.inputs]
    if not own:
        return []
    returned = set(output_args(graph))
    limit = len(place) if end is None else place[end]
    outputs = tuple(n for n in own if "val" in n.meta and (n in returned or any(place[u] >= limit or is_number(u) for u in n.users)))
    growing.graph.output(tuple(growing.nodes[n] for n in outputs))
    values = [n.meta["val"] for n in growing.inputs]
    refuse_views(growing.inputs)
    symbols = inputs_for_symbols(growing, before)
    fakes = (*values, *(number_at(node, dim) for node, dim in symbols))
    return [Segment(of_torch.LazyGraphModule(graph, growing.graph), fakes, tuple(growing.inputs), symbols, outputs)]


def refuse_views(inputs: Sequence[Node]) -> None:
    """Of tensors that are written: a segment is compiled as if each of its inputs had memory of its own."""
    for node in inputs:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value._version and (value._is_view() or node.target is getattr):
            raise Unsupported("aliased-mutation", f"inputs that share memory are written in place: {node.name}, in a part of the graph", "clone it first")


def inputs_for_symbols(growing: Growing, before: Sequence[Node]) -> tuple[tuple[Node, int | None], ...]:
    """Adds a placeholder for each symbol that the segment's sizes and arguments are made of; and says which nodes before it show them."""
    places = symbol_sources([n.meta["val"] for n in before])
    wanted = {s: None for n in growing.graph.nodes for s in free_symbols((n.args, n.kwargs, n.meta.get("val")))}
    found = []
    for symbol in wanted:
        if symbol not in places:
            raise Unsupported("symbolic-shape", f"no value shows the size {symbol} by itself", "leave capture_values off")
        index, dim = places[symbol]
        first = next(n for n in growing.graph.nodes if n.op != "placeholder")
        with growing.graph.inserting_before(first):
            node = growing.graph.placeholder(f"size_{symbol}")
        node.meta["val"] = node.meta["example_value"] = number_at(before[index], dim)
        found.append((before[index], dim))
    return tuple(found)


def number_at(node: Node, dim: int | None) -> Any:
    return node.meta["val"] if dim is None else node.meta["val"].shape[dim]


def inputs_of(segment: Segment, values: Mapping[Node, Any]) -> Sequence[Any]:
    """What a segment is called with, from the values of nodes of the whole graph."""
    return [values[n] for n in segment.inputs] + [values[n] if dim is None else values[n].shape[dim] for n, dim in segment.symbols]
