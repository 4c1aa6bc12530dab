"""Writes the forward and the backward graph of a joint graph that has been cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from dynacompile.autograd.again import again
from dynacompile.autograd.facts import byte_size
from dynacompile.autograd.joint import JointGraph
from dynacompile.autograd.kept import marks
from dynacompile.autograd.padding import pad_saved
from dynacompile.autograd.partition import Cut, Sides, ancestors, choose_cut, sides
from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import REAL, ForwardBackward, RuntimeContract, View, ViewOfInput, ViewOfOutput
from dynacompile.ir.sizes import Sizes, sizes_of, symbols_in
from dynacompile.ir.symbolic_graphs import add_node, free_symbols, symbol_sources
from dynacompile.ir.symbols import extent, sources

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
        with _use_lazy_graph_module(True):  # Python code is made for who prints or runs the graph
            return _make_graph_module(root, self.graph)


def split(joint: JointGraph, budget: float) -> ForwardBackward:
    """budget: share of the default cut's saved bytes that may be kept for backward."""
    if not joint.tangents:
        side = sides(joint)
        forward, _, _ = write_forward(joint, side, ())
        return ForwardBackward(forward, None, contract(joint, forward), {"ops": calls(forward)})
    side = sides(joint)
    cut = choose_cut(joint, side, budget)
    inputs = joint.placeholders[: joint.inputs]
    saved_inputs = [n for n in inputs if n in cut.saved and n not in side.copied]
    saved_values = [n for n in cut.saved if n not in saved_inputs]
    pad_saved(saved_values, [*joint.groups[0], *joint.groups[1], *joint.groups[2]])
    forward, positions, kept = write_forward(joint, side, saved_values)
    backward, symbols = write_backward(joint, side, saved_inputs, kept)
    facts = {
        "ops": calls(forward) + calls(backward),
        "saved_bytes": sum(byte_size(n) for n in kept),
        "saved_values": len(kept),
        "saved_inputs": len(saved_inputs),
        "uncut_bytes": cut.everything,
        "recomputed_ops": recomputed(joint, side, cut),
    }
    kept_inputs = tuple(inputs.index(n) for n in saved_inputs)
    agreed = replace(contract(joint, forward, kept_inputs, tuple(positions), symbols), again=again(joint, side, kept))
    return ForwardBackward(forward, backward, agreed, facts)


def contract(
    joint: JointGraph, forward: torch.fx.GraphModule, saved_inputs: tuple[int, ...] = (), saved_positions: tuple[int, ...] = (), symbols: Symbols = ()
) -> RuntimeContract:
    outputs, sizes = joint.outputs, Sizes()
    if is_symbolic(joint):
        outputs = tuple(replace(o, view=measured(o.view)) if isinstance(o, (ViewOfInput, ViewOfOutput)) else o for o in outputs)
        views = [(o.view.size, o.view.stride, o.view.offset) for o in outputs if isinstance(o, (ViewOfInput, ViewOfOutput))]
        sizes = sizes_of(symbols_in(views), sources(forward)[0])
    return RuntimeContract(
        inputs=joint.inputs,
        outputs=outputs,
        mutations=joint.mutations,
        mutated_in_graph=joint.written,
        saved_inputs=saved_inputs,
        saved_positions=saved_positions,
        tangents=joint.tangents,
        grads=joint.grads,
        sources=joint.sources,
        symbols=symbols,
        sizes=sizes,
        marks=marks(joint, saved_inputs, saved_positions),
    )


def measured(view: View) -> View:
    """The view with symbolic ints as extents."""
    return View(tuple(map(extent, view.size)), tuple(map(extent, view.stride)), extent(view.offset))  # type: ignore[arg-type]


def calls(module: torch.fx.GraphModule) -> int:
    return sum(n.op == "call_function" for n in module.graph.nodes)


def recomputed(joint: JointGraph, side: Sides, cut: Cut) -> int:
    """Forward's ops that backward computes again, views not counted."""
    saved = set(cut.saved)
    found: set[Node] = set()
    pending = [n for n in side.frontier if n not in saved]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(a for a in node.all_input_nodes if a not in saved)
    return sum(n.op == "call_function" and n in side.forward for n in found)


def write_forward(joint: JointGraph, side: Sides, saved: tuple[Node, ...] | list[Node]) -> tuple[torch.fx.GraphModule, list[int], list[Node]]:
    """(forward, positions of the saved values, the saved values in order of position)."""
    values, written, _ = joint.groups
    needed = side.forward | ancestors(list(saved))
    copy = Copy(joint)
    inputs = joint.placeholders[: joint.inputs]
    for node in inputs:
        copy.placeholder(node)
    for node in side.primal:
        if node in needed and node.op != "placeholder":
            copy.add(node)
    outputs = [copy.nodes[n] for n in values]
    place: dict[Node, int] = {}
    for node in saved:
        if node.op == "placeholder":
            place[node] = len(outputs)
            outputs.append(call(copy.graph, torch.ops.aten.clone.default, (copy.nodes[node],), node))
        elif node in side.copied:
            place[node] = len(outputs)
            outputs.append(call(copy.graph, torch.ops.aten.clone.default, (copy.nodes[node],), node))
        elif node in values:
            place[node] = values.index(node)
        else:
            place[node] = len(outputs)
            outputs.append(copy.nodes[node])
    for index, node in zip(joint.written, written, strict=True):
        call(copy.graph, torch.ops.aten.copy_.default, (copy.nodes[inputs[index]], copy.nodes[node]), node)
    kept = sorted(saved, key=place.__getitem__)
    return copy.finish(outputs), [place[n] for n in kept], kept


def call(graph: torch.fx.Graph, op: torch._ops.OpOverload, args: tuple, like: Node) -> Node:
    node = graph.call_function(op, args)
    node.meta = dict(like.meta)
    return node


def write_backward(joint: JointGraph, side: Sides, saved_inputs: list[Node], saved_values: list[Node]) -> tuple[torch.fx.GraphModule, Symbols]:
    """Recomputed ops stand right before their first use. Also gives where forward finds the numbers that backward takes first."""
    copy = Copy(joint)
    for node in saved_inputs:
        copy.placeholder(node)
    for node in saved_values:
        copy.placeholder(node, f"saved_{node.name}")
    for node in joint.placeholders[joint.inputs :]:
        copy.placeholder(node)
    for node in side.backward:
        copy.demand(node)
    grads = joint.groups[2]
    for node in grads:
        copy.demand(node)
    symbols = symbolic_inputs(copy.graph, [n.meta["val"] for n in joint.placeholders[: joint.inputs]]) if copy.symbolic else ()
    return copy.finish([copy.nodes[n] for n in grads]), symbols


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
