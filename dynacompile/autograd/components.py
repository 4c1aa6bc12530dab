"""One part of a graph where it occurs: what tells it from other parts, and the part as a graph of its own."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from dynacompile.autograd.steps import Lists, Node, Round, Step, WholeError, weight
from dynacompile.ir.looks import Later, LaterList, appearance, appearance_of, given_by, made, memory_of, sample_of
from dynacompile.ir.nodes import new_node, new_placeholder
from dynacompile.ir.rounds import LIST_OPS
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))


class Whole(Protocol):
    """The graph that components are found in. given: what its inputs are given; placeholders: the places of these by the nodes that bring them; lists: the
    operations that go member by member."""

    given: Sequence[object]
    placeholders: dict[Node, int]
    lists: Lists

    @property
    def rows(self) -> Rows: ...
    def value(self, step: Step) -> Any: ...


class Component:
    """operations: its steps in order, with the members that it has of a list. outputs: those of the whole that it makes, by index.

    inputs: what it reads of before, in the order of its steps. numbers: of the inputs, and of what the steps give."""

    def __init__(self, finding: Whole, operations: dict[Step, list[int]], outputs: Sequence[tuple[int, Node]]) -> None:
        self.finding, self.operations, self.outputs = finding, operations, outputs
        self.numbers: dict[Any, Any] = {}
        self.inputs: list[Node] = []
        self.rows: list[tuple] = []
        numbers, number, rows, row_of = self.numbers, self.number, finding.rows.found, finding.rows.of
        for step, places in operations.items():
            row = rows.get(step) or row_of(step)
            told: list[Any] = [row.head, len(places)]
            for operand in row.singles:
                known = numbers.get(operand)
                told.append(number(operand) if known is None else known)
            for column in row.columns:
                for k in places:
                    member = column[k]
                    if type(member) is Node:
                        known = numbers.get(member)
                        told.append(number(member) if known is None else known)
                    else:
                        told.append(token(member, numbers))
            self.rows.append(tuple(told))
            numbers[step] = own = len(numbers)
            if type(step) is Round and step.node is not None:
                numbers[step.node] = own
        for _, node in outputs:
            if node not in numbers and node in finding.lists.results:
                number(node)

    def number(self, operand: Node) -> Any:
        """What stands for an operand that has no number yet: an input, or a member of a list."""
        if operand in self.finding.placeholders:
            found: Any = -len(self.inputs) - 1
            self.inputs.append(operand)
        else:
            source, k = self.finding.lists.results[operand]
            found = self.numbers[source], self.operations[source].index(k)
        self.numbers[operand] = found
        return found

    def own(self, step: Step, arg: Any) -> Any:
        """An argument of an operation, with those members of a list that this part has."""
        if step in self.finding.lists.members and isinstance(arg, (list, tuple)) and arg:
            return type(arg)(arg[k] for k in self.operations[step])
        return arg

    def key(self) -> tuple:
        """Equal for parts that are alike; different for some that are, too, where one has a round that the other has as nodes."""
        given, places = self.finding.given, self.finding.placeholders
        inputs = tuple(looks([given[places[n]] for n in self.inputs], self.inputs, False))
        return (inputs, tuple(self.rows), tuple([self.numbers[node] for _, node in self.outputs]))

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
        fakes = tuple([node.meta.get("val") for node in graph.nodes if node.op == "placeholder"])
        return Kind(tuple(rows), module, fakes, order, sum(map(weight, self.operations)) + len(self.inputs), self.device_types())

    def device_types(self) -> frozenset[str]:
        return frozenset(t.device.type for t in self.tensors())

    def tensors(self) -> Iterator[torch.Tensor]:
        for value in (*map(self.finding.value, self.inputs), *(self.results(step) for step in self.operations)):
            yield from (t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, torch.Tensor))

    def results(self, step: Step) -> Any:
        if type(step) is Round:
            return tuple(self.finding.value(node) for node in step.target.nodes)
        return sample_of(self.own_result(step))

    def own_result(self, step: Step) -> Any:
        """What a node gives of which this part has some members; None where it gives one tensor of all of them."""
        given = given_by(step)  # type: ignore[arg-type]  # a round is none of these
        if step not in self.finding.lists.members:
            return given
        if type(given) is LaterList:
            return given.only(self.operations[step])
        return self.own(step, given) if isinstance(given, (list, tuple)) else None

    def graph(self) -> tuple[torch.fx.Graph, list[Node]]:
        """The part as a graph of its own, and what its inputs are in the whole, in the order in which its operations read them."""
        graph, lists = torch.fx.Graph(), self.finding.lists
        values = Values()
        copies: dict[Any, Node] = {}
        inputs: list[Node] = []
        members: dict[tuple[Step, int], Node] = {}  # nodes that take members of lists

        def known(node: Node) -> Node:
            if node in copies:
                return copies[node]
            if node in self.finding.placeholders:
                made_here = new_placeholder(graph, node.name, copies[inputs[-1]] if inputs else None)
                inputs.append(node)
                made_here.meta = values.kept(node.meta, self.finding.given[self.finding.placeholders[node]])
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

        def member(source: Step, i: int) -> Node:
            if (source, i) not in members:
                members[source, i] = new_node(graph, "call_function", operator.getitem, (copies[source], i), {}, "getitem")
                given = copies[source].meta.get("val")
                members[source, i].meta = values.kept(copies[source].meta, None if given is None else given[i])
            return members[source, i]

        for step in self.operations:
            if type(step) is Round:
                self.add_round(graph, step, known, copies, values)
                continue
            args = tuple(listed(step, a) for a in step.args)
            kwargs = {k: listed(step, v) for k, v in step.kwargs.items()}
            result = copies[step] = new_node(graph, step.op, step.target, args, kwargs, step.name)  # type: ignore[union-attr]
            result.meta = values.kept(step.meta, self.own_result(step))
        graph.output(tuple(known(node) for _, node in self.outputs))
        return graph, inputs

    def add_round(self, graph: torch.fx.Graph, step: Round, known: Any, copies: dict[Any, Node], values: Values) -> None:
        again = step.target
        own: dict[Any, Node] = {}
        given = dict(zip(again.inputs, step.args))
        for node in again.nodes:

            def operand(n: Node) -> Node:
                return own[n] if n in own else known(given.get(n, n))

            args, kwargs = torch.fx.node.map_arg(node.args, operand), torch.fx.node.map_arg(dict(node.kwargs), operand)
            own[node] = new_node(graph, node.op, node.target, args, kwargs, node.name)  # type: ignore[arg-type]
            own[node].meta = values.kept(node.meta, given_by(node))
        if step.node is not None:
            copies[step.node] = own[again.output]


@dataclass(frozen=True)
class Row:
    """What a step does, but for its operands. head: equal for steps that do the same. singles: the operands that are no members of lists, in their order;
    columns: the lists of which each part has some members, constants among them."""

    head: Any
    singles: tuple[Node, ...]
    columns: tuple[Sequence[Any], ...] = ()


class Rows:
    """The rows of one graph's steps."""

    def __init__(self, members: Mapping[Step, int]) -> None:
        self.members = members
        self.found: dict[Step, Row] = {}
        self.heads: dict[tuple, int] = {}

    def of(self, step: Step) -> Row:
        found = self.found.get(step)
        if found is None:
            found = self.found[step] = self.made(step)
        return found

    def made(self, step: Step) -> Row:
        if type(step) is Round:
            return Row(step.pattern, step.all_input_nodes)
        singles: list[Node] = []
        columns: list[Sequence[Any]] = []
        lists = step in self.members

        def shape(arg: Any) -> Any:
            if lists and isinstance(arg, (list, tuple)) and arg:
                columns.append(arg)
                return type(arg), "members"
            return token(arg, {}, singles)

        args, kwargs = tuple(map(shape, step.args)), tuple([(k, shape(v)) for k, v in step.kwargs.items()])
        head = self.heads.setdefault((step.op, step.target, args, kwargs), len(self.heads))
        return Row(head, tuple(singles), tuple(columns))


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


class Values:
    """The fakes of one part's nodes. Those that would be made later are made for the part, which lives no longer than its compile: those of the captured
    graph, and their memory, would live as long as the entry."""

    def __init__(self) -> None:
        self.own: dict[Later, FakeTensor] = {}

    def of(self, given: Any) -> Any:
        if type(given) is LaterList:
            return given.kind(map(self.of, given.items))
        if type(given) is not Later or given.made is not None:
            return made(given)
        if given not in self.own:
            self.own[given] = given.look.make()
        return self.own[given]

    def kept(self, meta: Mapping[str, Any], given: Any) -> dict[str, Any]:
        """What is kept of a node, with its value."""
        kept = {name: value for name, value in meta.items() if name not in ("later", "val")}
        if given is not None:
            kept["val"] = self.of(given)
        return kept


def token(arg: Any, numbers: Mapping[Any, Any], met: list[Node] | None = None) -> Any:
    """Equal for arguments that are alike. numbers: of their nodes; where `met` is given, it gets the nodes in their order instead."""
    if isinstance(arg, Node):
        if met is None:
            return Node, numbers[arg]
        met.append(arg)
        return Node
    if isinstance(arg, PLAIN):
        return type(arg), repr(arg)
    if isinstance(arg, (list, tuple)):
        return (type(arg), *[token(a, numbers, met) for a in arg])
    if isinstance(arg, dict):
        return tuple([(k, token(v, numbers, met)) for k, v in arg.items()])
    if isinstance(arg, slice):
        return slice, token(arg.start, numbers, met), token(arg.stop, numbers, met), token(arg.step, numbers, met)
    raise WholeError


def looks(given: Sequence[Any], nodes: Sequence[Node], in_full: bool) -> Iterator[Any]:
    """What tells inputs apart: how tensors look, and which of them share memory; a number is itself. in_full: the same for fakes that are not made yet and
    for those that are."""
    first: dict[int, int] = {}
    for value, node in zip(given, nodes, strict=True):
        if type(value) is Later or isinstance(value, torch.Tensor):
            yield appearance_of(value) if in_full else short_look(value), first.setdefault(memory_of(value), len(first))
        else:
            yield node


def short_look(value: Any) -> Any:
    """A token of how a tensor looks, which is quick to compare."""
    if type(value) is Later and (value.made is None or appearance(value.made) == value.look.appearance):
        return value.look
    return appearance_of(value)
