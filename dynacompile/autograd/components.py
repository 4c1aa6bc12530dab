"""One part of a graph where it occurs: what tells it from other parts, and the part as a graph of its own."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.autograd.steps import Node, Round, Step, WholeError, weight
from dynacompile.ir.looks import Later, LaterList, appearance_of, given_by, made, memory_of, sample_of
from dynacompile.ir.rounds import LIST_OPS
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.autograd.alike import Finding

PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))


class Component:
    """operations: its steps in order, with the members that it has of a list. outputs: those of the whole that it makes, by index.

    inputs: what it reads of before, in the order of its steps. numbers: of the inputs, and of what the steps give."""

    def __init__(self, finding: Finding, operations: dict[Step, list[int]], outputs: Sequence[tuple[int, Node]]) -> None:
        self.finding, self.operations, self.outputs = finding, operations, outputs
        self.numbers: dict[Any, Any] = {}
        self.inputs: list[Node] = []
        lists, placeholders, numbers = finding.lists, finding.placeholders, self.numbers
        for step in operations:
            for operand in self.operands(step):
                if operand in numbers:
                    continue
                if operand in placeholders:
                    numbers[operand] = -len(self.inputs) - 1
                    self.inputs.append(operand)
                elif operand in lists.results:
                    source, k = lists.results[operand]
                    numbers[operand] = numbers[source], operations[source].index(k)
            numbers[step] = len(numbers)
            if type(step) is Round and step.node is not None:
                numbers[step.node] = numbers[step]
        for _, node in outputs:
            if node in lists.results and node not in numbers:
                source, k = lists.results[node]
                numbers[node] = numbers[source], operations[source].index(k)

    def own(self, step: Step, arg: Any) -> Any:
        """An argument of an operation, with those members of a list that this part has."""
        if step in self.finding.lists.members and isinstance(arg, (list, tuple)) and arg:
            return type(arg)(arg[k] for k in self.operations[step])
        return arg

    def operands(self, step: Step) -> Iterator[Node]:
        if step not in self.finding.lists.members:
            yield from step.all_input_nodes
            return
        for arg in (*step.args, *step.kwargs.values()):
            own = self.own(step, arg)
            yield from (a for a in (own if isinstance(own, (list, tuple)) else (own,)) if isinstance(a, Node))

    def key(self) -> tuple:
        """Equal for parts that are alike; different for some that are, too, where one has a round that the other has as nodes."""
        finding = self.finding
        rows: list[Any] = list(looks([finding.given[finding.placeholders[n]] for n in self.inputs], self.inputs, False))
        for step in self.operations:
            if type(step) is Round:
                rows.append((step.pattern, *[self.numbers[n] for n in step.all_input_nodes]))
                continue
            args = tuple([token(self.own(step, a), self.numbers) for a in step.args])
            kwargs = tuple([(k, token(self.own(step, v), self.numbers)) for k, v in step.kwargs.items()]) if step.kwargs else ()
            rows.append((step.op, step.target, args, kwargs))
        rows.append(tuple([self.numbers[node] for _, node in self.outputs]))
        return tuple(rows)

    def kind(self) -> Kind:
        """The part, of which this is the first occurrence."""
        graph, nodes = self.graph()
        places = {node: i for i, node in enumerate(self.inputs)}
        order = tuple(places[n] for n in nodes)
        given = [self.finding.given[self.finding.placeholders[n]] for n in nodes]
        rows: list[Any] = list(looks(given, nodes, True))
        numbers: dict[Any, int] = {}
        for node in graph.nodes:
            numbers[node] = len(numbers)
            if node.op != "placeholder":
                rows.append((node.op, node.target, token(node.args, numbers), token(dict(node.kwargs), numbers)))
        with of_torch.use_lazy_graph_module(True):  # it is interpreted node by node
            module = of_torch.make_graph_module(torch.nn.Module(), graph)
        return Kind(tuple(rows), module, tuple(map(made, given)), order, sum(map(weight, self.operations)) + len(self.inputs), self.device_types())

    def device_types(self) -> frozenset[str]:
        return frozenset(t.device.type for t in self.tensors())

    def tensors(self) -> Iterator[torch.Tensor]:
        for value in (*map(self.finding.value, self.inputs), *(self.results(step) for step in self.operations)):
            yield from (t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, torch.Tensor))

    def results(self, step: Step) -> Any:
        if type(step) is Round:
            return tuple(self.finding.value(node) for node in step.target.nodes)
        return sample_of(self.own_result(step))

    def own_result(self, step: Node) -> Any:
        """What a node gives of which this part has some members; None where it gives one tensor of all of them."""
        given = given_by(step)
        if step not in self.finding.lists.members:
            return given
        if type(given) is LaterList:
            return given.only(self.operations[step])
        return self.own(step, given) if isinstance(given, (list, tuple)) else None

    def graph(self) -> tuple[torch.fx.Graph, list[Node]]:
        """The part as a graph of its own, and what its inputs are in the whole, in the order in which its operations read them."""
        graph, copies, inputs, lists = torch.fx.Graph(), {}, [], self.finding.lists
        members: dict[tuple[Step, int], Node] = {}  # nodes that take members of lists

        def known(node: Node) -> Node:
            if node in copies:
                return copies[node]
            if node in self.finding.placeholders:
                last = copies[inputs[-1]] if inputs else None
                with graph.inserting_before(None) if last is None else graph.inserting_after(last):  # None: at the beginning
                    made_here = graph.create_node("placeholder", node.name, name=node.name)
                inputs.append(node)
                made_here.meta = with_value(node.meta, self.finding.given[self.finding.placeholders[node]])
            else:
                source, k = lists.results[node]
                made_here = member(source, self.operations[source].index(k))
            copies[node] = made_here
            return made_here

        def listed(step: Step, arg: Any) -> Any:
            """The part's members of a list, one by one, also where it is the whole result of another operation."""
            if step.target in LIST_OPS and step in lists.members and isinstance(arg, Node) and arg in lists.members:
                return [member(arg, i) for i in range(len(self.operations[arg]))]
            return torch.fx.node.map_arg(self.own(step, arg), known)

        def member(source: Node, i: int) -> Node:
            if (source, i) not in members:
                members[source, i] = graph.call_function(operator.getitem, (copies[source], i))
                given = copies[source].meta.get("val")
                members[source, i].meta = with_value(copies[source].meta, None if given is None else given[i])
            return members[source, i]

        for step in self.operations:
            if type(step) is Round:
                self.add_round(graph, step, known, copies)
                continue
            args = tuple(listed(step, a) for a in step.args)
            kwargs = {k: listed(step, v) for k, v in step.kwargs.items()}
            result = copies[step] = graph.create_node(step.op, step.target, args, kwargs, name=step.name)  # type: ignore[union-attr]
            result.meta = with_value(step.meta, self.own_result(step))
        graph.output(tuple(known(node) for _, node in self.outputs))
        return graph, inputs

    def add_round(self, graph: torch.fx.Graph, step: Round, known: Any, copies: dict[Node, Node]) -> None:
        again = step.target
        own: dict[Node, Node] = {}
        given = dict(zip(again.inputs, step.args))
        for node in again.nodes:

            def operand(n: Node) -> Node:
                return own[n] if n in own else known(given.get(n, n))

            args, kwargs = torch.fx.node.map_arg(node.args, operand), torch.fx.node.map_arg(dict(node.kwargs), operand)
            own[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)  # type: ignore[arg-type]
            own[node].meta = with_value(node.meta, given_by(node))
        if step.node is not None:
            copies[step.node] = own[again.output]


@dataclass(frozen=True)
class Kind:
    """A part that occurs in a graph. key: equal for parts that are alike. order: of the inputs of its graph, the places among those of the component.

    size: how many nodes it stands for. devices: the types of those that its tensors are on."""

    key: tuple
    graph: torch.fx.GraphModule
    fakes: tuple[object, ...]
    order: tuple[int, ...]
    size: int
    devices: frozenset[str]


def with_value(meta: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """What is kept of a node, with a value that may be made later."""
    kept = {name: value for name, value in meta.items() if name not in ("later", "val")}
    if given is not None:
        kept["val"] = made(given)
    return kept


def token(arg: Any, numbers: Mapping[Any, Any]) -> Any:
    if isinstance(arg, Node):
        return Node, numbers[arg]
    if isinstance(arg, PLAIN):
        return type(arg), repr(arg)
    if isinstance(arg, (list, tuple)):
        return (type(arg), *[token(a, numbers) for a in arg])
    if isinstance(arg, dict):
        return tuple([(k, token(v, numbers)) for k, v in arg.items()])
    if isinstance(arg, slice):
        return slice, token(arg.start, numbers), token(arg.stop, numbers), token(arg.step, numbers)
    raise WholeError


def looks(given: Sequence[Any], nodes: Sequence[Node], in_full: bool) -> Iterator[Any]:
    """What tells inputs apart: how tensors look, and which of them share memory; a number is itself. in_full: the same for fakes that are not made yet and
    for those that are."""
    first: dict[int, int] = {}
    for value, node in zip(given, nodes, strict=True):
        if type(value) is Later or isinstance(value, torch.Tensor):
            look = appearance_of(value) if in_full or type(value) is not Later or value.made is not None else value.look
            yield look, first.setdefault(memory_of(value), len(first))
        else:
            yield node
