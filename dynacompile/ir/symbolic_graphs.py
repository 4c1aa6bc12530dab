"""Symbolic ints in fx graphs: where a graph's inputs show them, and nodes that compute them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.expressions import MEANINGS, OPERATIONS
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.shapes import as_static, expression_of, unbacked
from dynacompile.private.of_torch import FakeTensor, LazyGraphModule


def required(condition: bool, message: str | None) -> None:
    """What a graph calls for torch._check."""
    torch._check(condition, None if message is None else lambda: message)


def picked(tensor: torch.Tensor, place: Any, windows: bool = False) -> torch.Tensor:
    """tensor[place], a view, where ints in the place depend on values, or it is an int tensor without dimensions. Where in the memory the view begins, only a
    run shows; for fakes it is place 0. windows: slices whose start a run shows take as much in each, and lie in the tensor (`is_window`)."""
    return tensor[at_zero(place, windows)]


def placed(tensor: torch.Tensor, place: Any, value: Any) -> None:
    """tensor[place] = value, where numbers in the place, which may be a slice, or in the value depend on values. Of fakes, the whole tensor is written."""
    if shown_by_run(place) or shown_by_run(value):
        tensor.copy_(value.sum() if isinstance(value, torch.Tensor) else tensor.new_zeros(()))
    else:
        tensor[place] = value


ALONE = (required, picked, placed)  # what runs by itself, where its numbers are known


def at_zero(place: Any, windows: bool = False) -> Any:
    """The place with zeros for the ints that only a run shows. Tensors of several ints stay: what they give is no view, and has their sizes."""
    if isinstance(place, (tuple, list)):
        return tuple(at_zero(part, windows) for part in place)
    if isinstance(place, slice):
        return slice(0, length_of_window(place)) if windows and shown_by_run(place) else place
    return 0 if shown_by_run(place) and not (isinstance(place, torch.Tensor) and place.dim()) else place


def length_of_window(place: slice) -> int | None:
    """How much a slice takes that begins where only a run shows, and is as long in each: `x[i : i + 4]`. None for another slice."""
    start, stop = place.start, place.stop
    if not isinstance(start, torch.SymInt) or not isinstance(stop, (int, torch.SymInt)) or place.step not in (None, 1):
        return None
    length = as_static(stop - start)
    return length if isinstance(length, int) and length >= 0 else None


def is_window(place: Any, size: Any) -> bool:
    """Whether a part of a place that depends on values is a slice of one length, which surely lies in a dimension of that size."""
    if not isinstance(place, slice) or length_of_window(place) is None:
        return False
    bounds = place.start.node.shape_env.bound_sympy
    start, rest = bounds(place.start.node.expr), bounds(expression_of(size - place.stop))
    return bool(start.lower >= 0 and rest.lower >= 0)


def shown_by_run(place: Any) -> bool:
    """Whether a place of a tensor depends on values that are not known yet."""
    if isinstance(place, (tuple, list)):
        return any(map(shown_by_run, place))
    if isinstance(place, slice):
        return any(map(shown_by_run, (place.start, place.stop, place.step)))
    return isinstance(place, FakeTensor) if isinstance(place, torch.Tensor) else isinstance(place, torch.SymInt) and bool(unbacked(place))


def symbolic_numbers(value: Any) -> Iterator[torch.SymInt | torch.SymFloat | torch.SymBool]:
    """The symbolic numbers in nested arguments."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from symbolic_numbers(item)
    elif isinstance(value, dict):
        yield from symbolic_numbers(list(value.values()))
    elif isinstance(value, slice):
        yield from symbolic_numbers((value.start, value.stop, value.step))


def add_node(graph: torch.fx.Graph, kind: str, target: Any, args: tuple, kwargs: dict[str, Any]) -> torch.fx.Node:
    """A node whose arguments may hold symbolic numbers, which fx warns about where they are given to `create_node`."""
    return with_arguments(graph.create_node(kind, target, (), {}), args, kwargs)


def with_arguments(node: torch.fx.Node, args: Any, kwargs: Any) -> torch.fx.Node:
    """A new node with its arguments. fx's own way to set an attribute takes the node out of a table of names and puts it back each time."""
    object.__setattr__(node, "args", args)
    if kwargs:
        object.__setattr__(node, "kwargs", kwargs)
    return node


def emit_expression(expr: Any, symbol: Callable[[Any], Any], apply: Callable[..., Any]) -> Any:
    """Computes a SymPy expression by `apply(operation, *operands)` over numbers and what `symbol` gives for symbols."""
    if expr.is_Symbol:
        return symbol(expr)
    if expr.is_Integer:
        return int(expr)
    if expr.is_number:
        return float(expr)
    name = type(expr).__name__
    operands = [emit_expression(a, symbol, apply) for a in expr.args]
    if name == "ToFloat":
        return apply(float, *operands)
    if name == "FloatTrueDiv":
        return apply(operator.truediv, *operands)
    if name in ("Pow", "PowByNatural", "FloatPow"):
        return apply(operator.pow, *operands)
    if name not in OPERATIONS:
        raise Unsupported("symbolic-expression", f"a size is {expr}, which can't be computed at run time", "compile with dynamic=False")
    if len(operands) == 1:
        return apply(MEANINGS[OPERATIONS[name][0]], *operands)
    return reduce(lambda left, right: apply(MEANINGS[OPERATIONS[name][0]], left, right), operands)


def symbol_sources(inputs: Sequence[object]) -> dict[Any, tuple[int, int | None]]:
    """Where a call brings each symbol: (input, dimension), or (input, None) for an int or float."""
    found: dict[Any, tuple[int, int | None]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and value.node.expr.is_Symbol:
            found[value.node.expr] = (index, None)
    for index, value in enumerate(inputs):
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (index, dim))
    return found


def free_symbols(value: Any) -> Iterator[Any]:
    """The symbols in nested arguments and the sizes and strides of fakes."""
    if isinstance(value, torch.Tensor):
        yield from free_symbols((*value.shape, *value.stride(), value.storage_offset()))
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield from sorted(value.node.expr.free_symbols, key=str)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from free_symbols(item)
    elif isinstance(value, dict):
        yield from free_symbols(list(value.values()))


NO_NAMES = frozenset({"nanj", "infj"})  # as fx writes complex numbers


def write_code(module: torch.fx.GraphModule) -> None:
    """Writes a graph's Python now. Where fx has no text for a function or an argument, as for `torch.ops.aten.random_.from`, it is interpreted."""
    try:
        LazyGraphModule.force_recompile(module)
    except (RuntimeError, SyntaxError) as reason:
        check_recurs(reason, lambda: LazyGraphModule.force_recompile(module))
        module._code = "\n".join(f"{node.name} = {node.target}{node.args}" for node in module.graph.nodes)
        type(module).forward = interpreted  # type: ignore[method-assign]  # each graph module has a class of its own
        return
    if not NO_NAMES.isdisjoint(type(module).forward.__code__.co_names):
        type(module).forward = interpreted  # type: ignore[method-assign]


def interpreted(module: torch.fx.GraphModule, *inputs: Any) -> Any:
    return torch.fx.Interpreter(module).run(*inputs)


def executable(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph in a form that Python can run: the symbolic ints among its arguments are computed from its inputs. Itself where there are none."""
    if not any(True for n in module.graph.nodes for _ in symbolic_numbers((n.args, n.kwargs))):
        return module
    places = symbol_sources([n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"])
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs: list[torch.fx.Node] = []
    known: dict[Any, Any] = {}

    def symbol(name: Any) -> torch.fx.Node:
        index, dim = places[name]
        return inputs[index] if dim is None else graph.call_function(torch.ops.aten.sym_size.int, (inputs[index], dim))

    def argument(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return copies[value]
        value = as_static(value)
        if not isinstance(value, (torch.SymInt, torch.SymFloat)):
            return value
        expr = value.node.expr
        if expr not in known:
            known[expr] = emit_expression(expr, symbol, lambda operation, *operands: graph.call_function(operation, operands))
        return known[expr]

    for node in module.graph.nodes:
        args, kwargs = torch.fx.node.map_aggregate(node.args, argument), torch.fx.node.map_aggregate(node.kwargs, argument)
        copies[node] = graph.create_node(node.op, node.target, tuple(args), dict(kwargs), node.name)  # type: ignore[arg-type]
        copies[node].meta = dict(node.meta)
        if node.op == "placeholder":
            inputs.append(copies[node])
    return LazyGraphModule(module, graph)
