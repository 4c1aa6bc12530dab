"""Symbolic numbers that the nodes of a graph take, computed in the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from dynacompile.capture.inputs import Inputs
from dynacompile.capture.symbols import Symbols
from dynacompile.ir.shapes import NUMBERS, as_static
from dynacompile.ir.symbolic_graphs import emit_expression, required, symbolic_numbers


def bind_numbers(recorder: Inputs, symbols: Symbols) -> None:
    """Has the graph compute the symbolic numbers that its nodes take: from the sizes of its inputs, and from ints and floats that become inputs."""
    graph = recorder.graph
    first = next(n for n in graph.nodes if n.op != "placeholder")
    known: dict[Any, torch.fx.Node] = {}

    def number(value: Any) -> Any:
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        static = as_static(value)
        if not isinstance(static, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return static
        expr = value.node.expr
        with graph.inserting_before(node if any(s in symbols.unbacked for s in expr.free_symbols) else first):
            known.setdefault(expr, emit_expression(expr, lambda s: known.get(s) or known.setdefault(s, symbol_node(s)), apply))
        known[expr].meta["val"] = known[expr].meta["example_value"] = value
        return known[expr]

    def symbol_node(symbol: Any) -> torch.fx.Node:
        if symbol in symbols.unbacked:
            shown = symbols.unbacked[symbol]
            if shown.dim is None:
                return shown.node
            node = graph.call_function(torch.ops.aten.sym_size.int, (shown.node, shown.dim))
            node.meta["val"] = node.meta["example_value"] = shown.owner.fake.size(shown.dim)
            return node
        quantity = symbols.quantities[symbol]
        if quantity.kind in ("value", "real"):
            return recorder.number_input(quantity.source, symbols.numbers[quantity])
        operation = torch.ops.aten.sym_size.int if quantity.kind == "size" else torch.ops.aten.sym_stride.int
        tensor = recorder.placeholder_of(quantity.source)
        with graph.inserting_before(first):
            node = graph.call_function(operation, (tensor, quantity.dim))
        fake = tensor.meta["val"]
        node.meta["val"] = node.meta["example_value"] = fake.size(quantity.dim) if quantity.kind == "size" else fake.stride(quantity.dim)
        return node

    def apply(operation: Any, *operands: Any) -> torch.fx.Node:
        node = graph.call_function(operation, operands)
        node.meta["val"] = node.meta["example_value"] = compute(operation, *(v.meta["val"] if isinstance(v, torch.fx.Node) else v for v in operands))
        return node

    for node in list(graph.nodes):
        if any(True for _ in symbolic_numbers((node.args, node.kwargs))):
            node.args = torch.fx.node.map_aggregate(node.args, number)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, number)
    check_found(graph, symbols, symbol_node, apply)


def check_found(graph: torch.fx.Graph, symbols: Symbols, symbol_node: Callable[[Any], torch.fx.Node], apply: Callable[..., torch.fx.Node]) -> None:
    """Has the graph check, of numbers that depend on values, what torch has found that the program needs them to be: as of a size that has to fill a tensor."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for symbol, shown in symbols.unbacked.items():
        found = symbols.env.replace(symbol)
        if found == symbol:
            continue
        values = [shown.node, *(symbols.unbacked[s].node for s in found.free_symbols if s in symbols.unbacked)]
        with graph.inserting_before(after_numbers(max(values, key=order.__getitem__))):
            wanted = int(found) if found.is_Integer else emit_expression(found, symbol_node, apply)
            given = symbols.env.create_symintnode(symbol, hint=None)
            same = graph.call_function(operator.eq, (symbol_node(symbol), wanted))
            same.meta["val"] = same.meta["example_value"] = given == (wanted.meta["val"] if isinstance(wanted, torch.fx.Node) else wanted)
            graph.call_function(required, (same, f"the program needs {symbol} = {found} of sizes that depend on values"))


def after_numbers(node: torch.fx.Node) -> torch.fx.Node:
    """The first node behind it that is no number, and none of the program's own conditions on numbers."""
    after = node.next
    while isinstance(after.meta.get("val"), NUMBERS) or after.target is required:
        after = after.next
    return after


def compute(operation: Any, *operands: Any) -> Any:
    """max and min without a guard."""
    return torch.sym_max(*operands) if operation is max else torch.sym_min(*operands) if operation is min else operation(*operands)
