"""Functions of points (`ops/point_functions.py`) as bodies of a template: each operation by its row, over numbers without dimensions, joined into one nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from dynacompile.ir.body import Body
from dynacompile.ir.index import Extent, Index, Var, atom, strided
from dynacompile.ir.integers import settle_integers
from dynacompile.ir.loops import GRADIENT, RESULT, SCORE, Access, Axis, Buffer, Nest
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.lower.context import Lowering
from dynacompile.lower.indexing import indirect, lower_index
from dynacompile.lower.pointwise import lower_create, lower_pointwise
from dynacompile.lower.values import Expander, Value
from dynacompile.lower.views import lower_view
from dynacompile.ops.point_functions import PLACE, Name, PointFunction, parsed
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import compute_dtype
from dynacompile.ops.table import TABLE
from dynacompile.private.of_torch import FakeTensorMode

KINDS: dict[str, Callable] = {"pointwise": lower_pointwise, "create": lower_create, "index": lower_index, "view": lower_view}
VARIABLES = ("b", "h", "m", "n")  # of batches, heads, queries and keys, as kernels call them
OF_POINTS = {"score": SCORE, "grad": GRADIENT}
OWNER = "of "  # in front of the name of a buffer of the program, which may be one that a function has for something else


@dataclass(frozen=True)
class Points:
    """Where functions are computed. axes: of batches, heads, queries and keys. reads: tensors by their names in functions, as nodes of the lowered graph.
    numbers: by name."""

    axes: tuple[Axis, ...]
    reads: Mapping[str, torch.fx.Node]
    numbers: Mapping[str, Any]
    mode: FakeTensorMode
    device: torch.device


def points_over(sizes: Sequence[Extent], reads: Sequence[torch.fx.Node], numbers: Sequence[Any], query: torch.fx.Node) -> Points:
    axes = tuple(Axis(Var(name, size), "x") for name, size in zip(VARIABLES, sizes, strict=True))
    named, fake = {f"r{i}": node for i, node in enumerate(reads)}, query.meta["val"]
    return Points(axes, named, {f"n{i}": n for i, n in enumerate(numbers)}, fake.fake_mode, fake.device)


def body_of(low: Lowering, points: Points, role: str, text: str, sums: Mapping[str, Buffer]) -> Nest:
    """The nest of a function. sums: buffers for the gradients of what it reads, by its name, where they are wanted. Raises NotCovered."""
    function = parsed(text)
    graph = lowered(low, points, function)
    body = Body()
    found = Joined(graph, points, body)
    for step in graph.low.steps:
        if not isinstance(step, Nest) or step.axes:
            raise NotCovered
        body.splice(step.body, {}, None, found.on_load, found.on_store)
    o = Expander(body, torch.float32, torch.float32)
    result = found.value(function.result)
    wanted = torch.bool if role == "mask" else torch.float32
    body.store(o.cast(Value(o, result, body.ops[result].dtype), wanted).id, RESULT, Index())
    for addition in function.additions:
        if addition.of in sums:
            add(o, found, addition.indices, addition.value, sums[addition.of])
    return Nest(role, points.axes, settle_integers(body.ops))


def add(o: Expander, found: Joined, indices: Sequence[Name], value: Name, into: Buffer) -> None:
    """Adds the value to an element of a buffer."""
    places = []
    for name, size in zip(indices, into.size, strict=True):
        at = o.cast(Value(o, found.value(name), o.body.ops[found.value(name)].dtype), torch.int64)
        places.append(indirect(o.select(at < 0, at + size, at), size))
    number = found.value(value)
    number = o.cast(Value(o, number, o.body.ops[number].dtype), torch.float32).id
    o.body.store(number, into.base or into.name, strided(places, into.stride, into.offset), added=True)


@dataclass(frozen=True)
class Scalars:
    """A function's lines as nodes that are lowered by themselves. low: what they became."""

    low: Lowering
    nodes: Mapping[str, Any]


def lowered(low: Lowering, points: Points, function: PointFunction) -> Scalars:
    graph = torch.fx.Graph()
    own = Lowering((), points.device, low.precise)
    nodes: dict[str, Any] = {**points.numbers, "here": points.device}

    def placeholder(name: str, val: torch.Tensor) -> None:
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = val
        own.values[nodes[name]] = name

    with points.mode:
        for name in (*OF_POINTS, *PLACE):
            val = torch.empty((), dtype=torch.float32 if name in OF_POINTS else torch.int64, device=points.device)
            placeholder(name, val)
            own.add(name, val, "input")
    for name, node in points.reads.items():
        buffer = low.buffer_of(node)
        owner = low.buffers[buffer.base or buffer.name]
        placeholder(name, node.meta["val"])
        own.buffers[OWNER + owner.name] = replace(owner, name=OWNER + owner.name)
        own.buffers[name] = replace(buffer, name=name, base=OWNER + owner.name)
    for line in function.lines:
        node = add_node(graph, "call_function", line.op, given(line.args, nodes), given(dict(line.kwargs), nodes))
        node.name = own.fresh(str(line.name))
        with points.mode, torch.no_grad():
            node.meta["val"] = line.op(*values(node.args), **values(node.kwargs))
        nodes[line.name] = node
        row = TABLE.get(str(line.op))
        if row is None or row.kind not in KINDS:
            raise NotCovered
        KINDS[row.kind](own, node, row)
    return Scalars(own, nodes)


def given(arg: Any, nodes: Mapping[str, Any]) -> Any:
    """An argument with nodes for names."""
    if isinstance(arg, Name):
        return nodes[arg]
    if isinstance(arg, dict):
        return {key: given(value, nodes) for key, value in arg.items()}
    return type(arg)(given(a, nodes) for a in arg) if isinstance(arg, (list, tuple)) else arg


def values(arg: Any) -> Any:
    """An argument with the fakes of nodes."""
    if isinstance(arg, torch.fx.Node):
        return arg.meta["val"]
    if isinstance(arg, dict):
        return {key: values(value) for key, value in arg.items()}
    return type(arg)(values(a) for a in arg) if isinstance(arg, (list, tuple)) else arg


class Joined:
    """The values of a function in one body."""

    def __init__(self, graph: Scalars, points: Points, body: Body):
        self.graph, self.points, self.body = graph, points, body
        self.stored: dict[str, int] = {}
        self.variables = dict(zip(PLACE, points.axes, strict=True))

    def on_load(self, access: Access, dtype: torch.dtype) -> int | None:
        if access.buffer in self.stored:
            return self.stored[access.buffer]
        found = self.of_point(access.buffer)
        if found is not None:
            return found
        return self.body.emit("load", (), dtype, access.at(access.index, access.mask, access.buffer.removeprefix(OWNER)))

    def of_point(self, name: str) -> int | None:
        if name in OF_POINTS:
            return self.body.emit("load", (), torch.float32, Access(OF_POINTS[name], Index()))
        axis = self.variables.get(name)
        return None if axis is None else self.body.emit("index", (), torch.int64, place(axis))

    def on_store(self, value: int, access: Access) -> None:
        self.stored[access.buffer] = value

    def value(self, name: str) -> int:
        """The value that a name of the function has: an input's, or a line's."""
        node = self.graph.nodes[name]
        buffer = self.graph.low.buffers[str(self.graph.low.values[node])]
        found = self.stored.get(buffer.name)
        found = self.of_point(buffer.name) if found is None else found
        if found is not None:
            return found
        return self.body.emit("load", (), compute_dtype(buffer.dtype), Access(str(buffer.base).removeprefix(OWNER), Index() + buffer.offset))


def place(axis: Axis) -> Index:
    return Index() if axis.size == 1 else atom(axis.var)
