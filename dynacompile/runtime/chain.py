"""Runs a graph in parts: compiled segments, and between them the operations whose results say how large the rest is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.expressions import Expression, as_expression, evaluated, shown
from dynacompile.ir.graphs import output_args
from dynacompile.ir.segments import Segment, inputs_of, is_number, numbers_of, segments
from dynacompile.ir.shapes import unbacked
from dynacompile.ir.symbolic_graphs import symbol_sources

Node = torch.fx.Node
Condition = tuple[Expression, tuple[tuple[Node, int | None], ...], tuple[str, ...]]  # over what nodes show; their names


def chain(graph: torch.fx.GraphModule, compile_segment: Callable[[torch.fx.GraphModule, Sequence[object]], Callable[..., tuple]]) -> Callable[..., tuple]:
    """A callable over the graph's inputs. Raises Unsupported where the graph can't be cut."""
    parts = [(part, compile_segment(part.module, part.fakes) if isinstance(part, Segment) else None) for part in segments(graph)]
    conditions = conditions_of(graph)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    outputs = output_args(graph)

    def call(*given: Any) -> tuple:
        values: dict[Node, Any] = dict(zip(placeholders, given, strict=True))
        assumed: list[Condition] = []
        for part, compiled in parts:
            if isinstance(part, Segment):
                require(assumed, values)  # here, so that the program's own checks come first
                assumed.clear()
                values.update(zip(part.outputs, compiled(*inputs_of(part, values)), strict=True))  # type: ignore[misc]
                continue
            with torch.set_grad_enabled(part.grad):
                values[part.node] = run(part.node, values)
            assumed += [condition for node in (part.node, *take_items(part.node, values)) for condition in conditions.get(node, ())]
        return tuple(value_of(o, values) for o in outputs)

    return call


def take_items(node: Node, values: dict[Node, Any]) -> Iterator[Node]:
    """Notes each result of an operation that has several, and the parts of those that are tuples."""
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node and isinstance(values[node], (tuple, list)):
            values[user] = values[node][user.args[1]]
            yield user
            yield from take_items(user, values)


def run(node: Node, values: dict[Node, Any]) -> Any:
    """The node's operation on real values, as in eager."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: value_of(n, values))
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def value_of(node: Any, values: dict[Node, Any]) -> Any:
    """A node's value; numbers are computed when they are asked for."""
    if isinstance(node, Node) and node not in values and is_number(node):
        values[node] = run(node, values)
    return values[node] if isinstance(node, Node) else node


def conditions_of(graph: torch.fx.GraphModule) -> Mapping[Node, Sequence[Condition]]:
    """What torch assumed of numbers that depend on values while segments were traced, by the operation after which it can be told."""
    found: dict[Node, list[Condition]] = {}
    seen: list[Node] = []
    env = None
    for node in graph.graph.nodes:
        numbers = [n for n in numbers_of(node.meta.get("val")) if unbacked(n)]
        if "val" in node.meta and (node.op == "placeholder" or numbers):
            seen.append(node)
        env = numbers[0].node.shape_env if numbers else env
    if env is None:
        return found
    places = {symbol: (seen[index], dim) for symbol, (index, dim) in symbol_sources([n.meta["val"] for n in seen]).items()}
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    for assumption in [a for listed in env.deferred_runtime_asserts.values() for a in listed]:
        expr = env.replace(assumption.expr)
        symbols = sorted(expr.free_symbols, key=str)
        if expr in (True, False) and expr:
            continue
        expression = as_expression(expr, {s: i for i, s in enumerate(symbols)})
        if expression is None or any(s not in places for s in symbols):
            raise Unsupported("symbolic-shape", f"the condition {expr} can't be checked at run time", "leave capture_values off")
        shown_by = tuple(places[s] for s in symbols)
        last = max((node for node, _ in shown_by), key=order.__getitem__)
        found.setdefault(last, []).append((expression, shown_by, tuple(map(str, symbols))))
    return found


def require(conditions: Sequence[Condition], values: dict[Node, Any]) -> None:
    """Raises RuntimeError where a condition does not hold."""
    for expression, places, names in conditions:
        numbers = [value_of(n, values) if dim is None else values[n].shape[dim] for n, dim in places]
        if not evaluated(expression, numbers):
            given = ", ".join(f"{name} = {number}" for name, number in zip(names, numbers))
            raise RuntimeError(f"the program needs {shown(expression, names)} of sizes that depend on values, and {given}")
