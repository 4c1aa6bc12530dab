"""The functions of flex_attention as kernels take them: what does not depend on a score or its place is computed before, for the tensors that are read; the
rest is a function of points (`ops/point_functions.py`), with its derivative, which the function's joint graph gives. What has no such form is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.decompose import decomposition_table
from dynacompile.autograd.functionalize import run_node
from dynacompile.autograd.joint import trace_joint
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.errors import Unsupported
from dynacompile.ops.flexible_attention import index_by_points
from dynacompile.ops.point_functions import PLACE, Writer
from dynacompile.ops.table import TABLE
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node
aten = torch.ops.aten
DTYPES = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16))
SUMS = frozenset((aten.index_put.default, aten._unsafe_index_put.default))
CASTS = frozenset((aten._to_copy.default, torch.ops.prims.convert_element_type.default))


class Refused(Exception):
    """Why a function is none of points."""


@dataclass(frozen=True)
class Before:
    """What is computed before, of a function that capture followed. nodes: of its graph, in order. inputs: of the graph, those of points left out. reads: the
    nodes whose values the rest reads."""

    nodes: tuple[Node, ...] = ()
    inputs: tuple[Node, ...] = ()
    reads: tuple[Node, ...] = ()

    def run(self, given: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
        """given: for the inputs. device: that the reads are wanted on: numbers may be elsewhere."""
        values: dict[Node, Any] = dict(zip(self.inputs, given, strict=True))
        for node in self.nodes:
            if node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(node.graph.owning_module)
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = run_node(node, args, kwargs)
        return [values[node].to(device) for node in self.reads]


@dataclass(frozen=True)
class Apart:
    """A function in two: what is computed before, and the rest, whose inputs are those of points and then the reads."""

    before: Before
    rest: torch.fx.GraphModule
    own: int

    @property
    def places(self) -> list[Node]:
        return [n for n in self.rest.graph.nodes if n.op == "placeholder"]


def apart(module: torch.fx.GraphModule, own: int) -> Apart:
    """own: how many inputs of the module are those of points."""
    graph = subscripts_by_points(module, own)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    varying = set(inputs[:own])
    before: list[Node] = []
    rest: list[Node] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            rest.append(node)
        else:
            before.append(node)
    used = {n: None for node in rest for n in node.all_input_nodes if n not in varying}
    reads = [n for n in (*inputs, *before) if n in used and isinstance(n.meta.get("val"), torch.Tensor)]
    made = torch.fx.Graph()
    copies: dict[Node, Any] = {n: n.meta.get("val") for n in used if n not in reads}
    for node in (*inputs[:own], *reads):
        copies[node] = made.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in rest:
        copies[node] = made.node_copy(node, copies.__getitem__)
    owner = torch.fx.GraphModule(module, graph)
    return Apart(Before(tuple(before), tuple(inputs[own:]), tuple(reads)), torch.fx.GraphModule(owner, made), own)


def subscripts_by_points(module: torch.fx.GraphModule, own: int) -> torch.fx.Graph:
    """A copy of the graph in which a tensor is read at one place, which has all its indices: `t[h][q, k]` is `t[h, q, k]`."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    next(iter(reversed(graph.nodes))).meta = dict(next(iter(reversed(module.graph.nodes))).meta)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    varying = set(inputs[:own])
    for node in list(graph.nodes):
        if not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        of = node.args[0] if node.args else None
        if not isinstance(of, Node):
            continue
        if node.target is index_by_points and of.target is index_by_points and node in varying:
            node.args = (*of.args, *node.args[1:])
    graph.eliminate_dead_code()
    return graph


@dataclass(frozen=True)
class Functions:
    """score, mask, derivative: texts, "" for none. numbers: that vary from call to call. before: of the function of scores and of the mask. wanted: the reads
    whose gradients the derivative has, by their number."""

    score: str
    mask: str
    derivative: str
    numbers: tuple[Any, ...]
    before: tuple[Before, Before]
    wanted: tuple[int, ...]


def functions_of(score: torch.fx.GraphModule | None, mask: torch.fx.GraphModule | None, dtype: torch.dtype, recorded: bool) -> Functions:
    """dtype: of scores. recorded: whether gradients are wanted, of scores at least. Raises Refused."""
    numbers: list[Any] = []
    texts = {"score": "", "mask": "", "derivative": ""}
    before = {"score": Before(), "mask": Before()}
    wanted: tuple[int, ...] = ()
    if score is not None:
        found = apart(score, 1 + len(PLACE))
        joint = traced(found, recorded)
        names = dict(zip(joint.placeholders, ["score", *PLACE, *read_names(found, 0), "grad"]))
        (result,) = joint.groups[0]
        if result.meta["val"].dtype != dtype or result.meta["val"].dim():
            raise Refused(f"a function of scores gives {described(result)}, not a number of {named(dtype)}")
        texts["score"] = written(joint, names, numbers, result, [], "score")
        before["score"] = found.before
        if recorded:
            texts["derivative"], wanted = derivative_of(joint, found, names, numbers, dtype)
    if mask is not None:
        found = apart(mask, len(PLACE))
        joint = traced(found, False)
        names = dict(zip(joint.placeholders, [*PLACE, *read_names(found, len(before["score"].reads))], strict=True))
        (result,) = joint.groups[0]
        if result.meta["val"].dtype != torch.bool or result.meta["val"].dim():
            raise Refused(f"a mask gives {described(result)}, not a truth value")
        texts["mask"] = written(joint, names, numbers, result, [], "mask")
        before["mask"] = found.before
    return Functions(**texts, numbers=tuple(numbers), before=(before["score"], before["mask"]), wanted=wanted)


def read_names(found: Apart, first: int) -> list[str]:
    return [f"r{first + i}" for i in range(len(found.before.reads))]


def described(node: Node) -> str:
    return f"{node.meta['val'].dim()} dimensions of {named(node.meta['val'].dtype)}"


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def traced(found: Apart, recorded: bool) -> JointGraph:
    """The rest of a function as a joint graph. recorded: the score wants a gradient, and so do the reads that have one."""
    fakes: list[Any] = [n.meta["val"] for n in found.places]
    device = fakes[0].device
    for i, fake in enumerate(fakes):
        needs = recorded and (i == 0 or (i >= found.own and fake.requires_grad))
        if not isinstance(fake, FakeTensor):
            raise Refused("a function reads what is no tensor")
        if fake.device != device and fake.dim():
            raise Refused("a function reads tensors of another device")
        with fake.fake_mode, torch.no_grad():
            fakes[i] = fake.detach().to(device).requires_grad_(needs)
    try:
        with torch.set_grad_enabled(recorded), torch.autocast(fakes[0].device.type, enabled=False):
            return trace_joint(found.rest, fakes, decomposition_table())
    except Unsupported as error:
        raise Refused(f"a function of points can't be traced: {error.reason}") from error


def written(
    joint: JointGraph, names: dict[Node, str], numbers: list[Any], result: Node, additions: Sequence[tuple[Node, Sequence[Node], Node]], what: str
) -> str:
    """The text of what gives the result, and of the additions (the input whose gradient it is, the indices, the value)."""
    writer = Writer(dict(names), numbers)
    needed = ancestors([result, *(n for _, indices, value in additions for n in (*indices, value))])
    for node in joint.graph.nodes:
        if node in needed and node.op != "placeholder":
            check_line(node, what)
            writer.line(node)
    for of, indices, value in additions:
        writer.add(of, indices, value)
    return writer.text(result)


def ancestors(nodes: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def check_line(node: Node, what: str) -> None:
    """Raises Refused for what is no operation on numbers, or no read at one place."""
    row = TABLE.get(str(node.target)) if node.op == "call_function" else None
    val = node.meta.get("val")
    title = f"the function of {'scores' if what != 'mask' else 'the mask'} does {node.target if node.op == 'call_function' else node.op}"
    if row is None or not isinstance(val, torch.Tensor) or val.dtype not in DTYPES:
        raise Refused(title)
    operands, args = [n.meta["val"] for n in node.all_input_nodes], node.args  # type: list[Any], Any
    match row.kind:
        case "pointwise" | "create" if not val.dim() and not any(t.dim() for t in operands):
            return
        case "view" if all(is_read(n) for n in node.all_input_nodes):
            return
        case "index" if not val.dim() and is_read(args[0]) and all(isinstance(i, Node) and not i.meta["val"].dim() for i in args[1]):
            if any(i.meta["val"].dtype == torch.bool for i in args[1]):
                raise Refused("a function reads a tensor by truth values")
            return
    raise Refused(f"{title} of tensors with dimensions")


def is_read(node: object) -> bool:
    """A tensor that the function reads, or a view of one."""
    while isinstance(node, Node) and node.op == "call_function":
        row = TABLE.get(str(node.target))
        if row is None or row.kind != "view":
            return False
        node = node.all_input_nodes[0]
    return isinstance(node, Node) and node.op == "placeholder"


def derivative_of(joint: JointGraph, found: Apart, names: dict[Node, str], numbers: list[Any], dtype: torch.dtype) -> tuple[str, tuple[int, ...]]:
    """The text of the derivative, and the reads that have gradients."""
    grads = dict(zip(joint.grads, joint.groups[2], strict=True))
    places = joint.placeholders
    additions: list[tuple[Node, Sequence[Node], Node]] = []
    wanted = []
    for i, grad in grads.items():
        if i >= found.own:
            wanted.append(i - found.own)
            additions += [(places[i], indices, value) for indices, value in sums_of(grad, places[i].meta["val"].dim())]
    result = grads.get(0) or zero_of(joint.graph, dtype, found.places[0].meta["val"].device)
    if result.meta["val"].dtype != dtype:
        raise Refused("the derivative of the function of scores has another dtype")
    return written(joint, names, numbers, result, additions, "score"), tuple(wanted)


def zero_of(graph: torch.fx.Graph, dtype: torch.dtype, device: torch.device) -> Node:
    """The derivative where the result does not depend on the score."""
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        made = graph.call_function(aten.full.default, ([], 0.0), {"dtype": dtype, "device": device})
    made.meta["val"] = torch.empty((), dtype=dtype, device="meta")
    return made


def sums_of(grad: Node, dims: int) -> Iterator[tuple[Sequence[Node], Node]]:
    """A gradient of what is read, as a sum of values at indices. Raises Refused."""
    if not dims:
        yield (), grad
    elif grad.target in SUMS and len(grad.args) == 4 and grad.args[3] is True and is_zero(grad.args[0]):
        indices, value = grad.args[1], grad.args[2]
        if not isinstance(indices, (list, tuple)) or len(indices) != dims or not all(isinstance(i, Node) for i in indices) or not isinstance(value, Node):
            raise Refused("a function reads parts of a tensor that has a gradient")
        yield indices, value
    elif grad.target is aten.add.Tensor and not grad.kwargs and len(grad.args) == 2:
        for part in grad.args:
            yield from sums_of(part, dims)  # type: ignore[arg-type]
    elif grad.target in CASTS:
        yield from sums_of(grad.args[0], dims)  # type: ignore[arg-type]
    else:
        raise Refused(f"the gradient of a tensor that the function of scores reads comes from {grad.target}")


def is_zero(node: object) -> bool:
    if not isinstance(node, Node):
        return False
    row = TABLE.get(str(node.target))
    if row is None or row.kind != "create":
        return False
    return row.detail == "0" or (row.detail == "fill" and node.args[-1] == 0)  # type: ignore[return-value]
