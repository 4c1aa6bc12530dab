"""Graphs under construction out of the nodes of a joint graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import REAL
from dynacompile.ir.symbolic_graphs import add_node, free_symbols, symbol_sources
from dynacompile.private import of_torch

Node = torch.fx.Node
Symbols = tuple[tuple[int, int | None], ...]  # as in the RuntimeContract


class Copy:
    """A graph under construction out of nodes of another one."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        self.symbolic = is_symbolic(joint)
        self.graph = torch.fx.Graph()
        self.nodes: dict[Node, Node] = {}

    def placeholder(self, node: Node, name: str | None = None) -> None:
        new = self.graph.placeholder(name or str(node.target))
        new.meta = dict(node.meta)
        self.nodes[node] = new

    def add(self, node: Node) -> None:
        if node not in self.nodes:
            if self.symbolic:
                args, kwargs = torch.fx.node.map_arg(node.args, self.nodes.__getitem__), torch.fx.node.map_arg(node.kwargs, self.nodes.__getitem__)
                new = add_node(self.graph, node.op, node.target, args, kwargs)
            else:
                new = self.graph.node_copy(node, self.nodes.__getitem__)
            new.meta = dict(node.meta)
            self.nodes[node] = new

    def demand(self, node: Node) -> None:
        """Adds what the node depends on and is not there yet, then the node."""
        pending = [] if node in self.nodes else [node]
        while pending:
            last = pending[-1]
            missing = [a for a in last.all_input_nodes if a not in self.nodes]
            if missing:
                pending.extend(reversed(missing))
            else:
                self.add(last)
                pending.pop()

    def finish(self, outputs: list[Node]) -> torch.fx.GraphModule:
        self.graph.output(tuple(outputs))
        root = torch.nn.Module()
        for name, tensor in self.joint.constants.items():
            if any(n.op == "get_attr" and n.target == name for n in self.graph.nodes):
                root.register_buffer(name, tensor)
        with of_torch.use_lazy_graph_module(True):  # Python code is made for who prints or runs the graph
            return of_torch.make_graph_module(root, self.graph)


def is_symbolic(joint: JointGraph) -> bool:
    """Whether sizes of inputs may vary."""
    values = [n.meta.get("val") for n in joint.graph.nodes]
    return any(getattr(getattr(value, "fake_mode", None), "shape_env", None) is not None for value in values)


def symbolic_inputs(graph: torch.fx.Graph, inputs: Sequence[object]) -> Symbols:
    """Gives the graph a leading placeholder for each symbol that it uses; and where these are found among forward's inputs."""
    known = symbol_sources(inputs)
    found: dict[Any, tuple[int, int | None]] = {}
    for node in graph.nodes:
        for symbol in free_symbols((node.args, node.kwargs, node.meta.get("val"))):
            if symbol not in known:
                raise Unsupported("symbolic-backward", f"backward needs the size {symbol}, which no input has", "compile with dynamic=False")
            found[symbol] = known[symbol]
    first = next(iter(graph.nodes))
    for symbol, (index, dim) in found.items():
        value = inputs[index]
        with graph.inserting_before(first):
            node = graph.placeholder(f"size_{symbol}")
        node.meta["val"] = value if dim is None else value.shape[dim]  # type: ignore[attr-defined]
    return tuple((index, REAL if isinstance(inputs[index], torch.SymFloat) else dim) for index, dim in found.values())
