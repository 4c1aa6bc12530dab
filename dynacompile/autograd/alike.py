"""Finds the like parts that a torch-level graph falls apart into, so that each is differentiated, lowered and scheduled once.

Parts are what data flow connects. Operations over lists (foreach, fused optimizer steps), and a stack that is taken apart again, do not connect the
members of their lists: member by member they are the same operation over shorter lists. Inputs of one element that nobody writes, such as a learning rate,
connect nothing either. Two parts are alike when their operations, constants and the metadata of their inputs are equal.

A graph that autograd has a part in stays whole, and so does one whose parts turn out to depend on each other: what is written of the inputs, the contracts
of the differentiated parts tell.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.differentiate import differentiate
from dynacompile.autograd.phases import phases
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.alike import DifferentiatedParts, Occurrence, Part, Parts
from dynacompile.ir.graphs import Constant, Fresh, InputItself, Marks, Output, RuntimeContract, ViewOfInput, ViewOfOutput, output_args
from dynacompile.ops.backward_steps import Step, TensorHook
from dynacompile.ops.collectives import is_collective
from dynacompile.ops.regions import FORMS
from dynacompile.private import of_torch

Node = torch.fx.Node
WORTH = 48  # nodes that need not be looked at, from which on parts are made
LIST_OPS = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith(("_foreach_", "_fused_")))
IN_PLACE = frozenset(
    getattr(operator, n) for n in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem", "ilshift")
)
PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))
SETS_GRAD = of_torch.set_grad_enabled


class WholeError(Exception):
    """The graph has to be compiled as a whole."""


Atom = tuple[Node, int]
"""An operation; of one over a list, that over the member with this number, else 0."""


@dataclass(frozen=True)
class Lists:
    """The operations that go member by member, with the number of members, and the nodes that give one of their results."""

    members: dict[Node, int]
    results: dict[Node, Atom]


def find_parts(graph: torch.fx.GraphModule, fakes: Sequence[object], worth: int | None = None) -> Parts | None:
    """The like parts of a graph; None where it has none, or too few of them. worth: how many nodes must be copies, `WORTH` where it is None."""
    worth = WORTH if worth is None else worth
    nodes = list(graph.graph.nodes)
    if len(nodes) < worth:
        return None
    try:
        check_graph(nodes, fakes)
        outputs = output_args(graph)
        return parts_of([Finding(nodes, fakes)], outputs, outputs, worth) or phased(nodes, fakes, outputs, worth)
    except WholeError:
        return None


def phased(nodes: Sequence[Node], fakes: Sequence[object], outputs: Sequence[object], worth: int) -> Parts | None:
    """The parts of a graph that joins many results and goes on with what it made of them: those of each of its phases."""
    whole = Finding(nodes, fakes)
    found = phases(nodes, whole.shared, whole.lists.members, SETS_GRAD)
    if found is None:
        return None
    between = list(dict.fromkeys(node for phase in found for node in phase.made))
    inputs = [n for n in nodes if n.op == "placeholder"]
    read = {n for phase in found for node in phase.nodes for n in node.all_input_nodes}
    given = [*fakes, *(n.meta["val"] for n in between)]
    findings = [Finding((*(n for n in inputs if n in read), *phase.nodes), given, [*inputs, *between], phase.given) for phase in found]
    return parts_of(findings, [*outputs, *(n for n in between if n not in outputs)], outputs, worth, between)


def parts_of(findings: Sequence[Finding], made: Sequence[object], outputs: Sequence[object], worth: int, between: Sequence[Node] = ()) -> Parts | None:
    """The parts of one finding after the other. made: the graph's outputs, and what else passes between them. None where too little is alike."""
    keys: dict[tuple, list[tuple[Component, Occurrence]]] = {}
    given, constants = findings[0].given_outputs(outputs)
    groups = [finding.groups() for finding in findings]
    sizes = [len(operations) for group in groups for operations in group.values()]
    if 2 * max(sizes, default=0) > sum(sizes):  # no other one is like it
        return None
    for phase, (finding, group) in enumerate(zip(findings, groups)):
        for key, found in finding.components(group, made).items():
            keys[phase, *key] = found
    saved = sum((len(found) - 1) * found[0][0].size for found in keys.values())
    if saved < worth or 2 * saved < sum(len(found) * found[0][0].size for found in keys.values()):
        return None
    findings[0].check_devices([found[0][0] for found in keys.values()])
    parts = tuple(Part(*found[0][0].graph(), tuple(o for _, o in found), key[0]) for key, found in keys.items())
    return Parts(len(findings[0].fakes) - len(between), len(outputs), parts, given, constants, tuple(made.index(n) for n in between))


def check_graph(nodes: Sequence[Node], fakes: Sequence[object]) -> None:
    for fake in fakes:
        if isinstance(fake, torch.Tensor) and not all(type(n) is int for n in (*fake.shape, *fake.stride())):
            raise WholeError
    for node in nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output") or node.target in FORMS or isinstance(node.target, (Step, TensorHook)):
            raise WholeError
        if node.op == "output" and any(isinstance(n.meta.get("val"), torch.Tensor) and n.meta["val"].requires_grad for n in made_here(node)):
            raise WholeError


def made_here(output: Node) -> Iterator[Node]:
    return (n for n in output.all_input_nodes if n.op != "placeholder")


class Finding:
    """The parts of one graph, as they are found. of: each operation's set of operations, as links to an earlier one."""

    def __init__(self, nodes: Sequence[Node], fakes: Sequence[object], inputs: Sequence[Node] | None = None, earlier: Sequence[Node] = ()) -> None:
        """inputs: the nodes that bring the fakes, the placeholders where it is None. earlier: those of them that an earlier phase makes."""
        self.nodes, self.fakes = nodes, fakes
        self.lists = lists_of(nodes)
        placed = [n for n in nodes if n.op == "placeholder"] if inputs is None else inputs
        own = {*earlier, *nodes} if inputs is not None else set(placed)
        self.placeholders = {n: i for i, n in enumerate(placed) if n in own and (n.op == "placeholder" or n in earlier)}
        self.shared = self.shared_inputs()
        self.of: dict[Atom, Atom] = {}

    def shared_inputs(self) -> set[Node]:
        """Numbers, and tensors of one element that nobody writes: any number of parts may read them."""
        given = [self.fakes[i] for i in self.placeholders.values()]
        memories = Counter(f.untyped_storage()._cdata for f in given if isinstance(f, torch.Tensor))
        users = dict.fromkeys(user for node in self.placeholders for user in node.users)
        written = {operand for user in users for operand in may_write(user)}
        found = set()
        for node, i in self.placeholders.items():
            fake = self.fakes[i]
            if not isinstance(fake, torch.Tensor) or fake.numel() <= 1 and memories[fake.untyped_storage()._cdata] == 1 and node not in written:
                found.add(node)
        return found

    def root(self, atom: Atom) -> Atom:
        of = self.of
        above = of.setdefault(atom, atom)
        while (next_above := of[above]) is not above:
            of[atom] = next_above
            atom, above = above, next_above
        return above

    def join(self, a: Atom, b: Atom) -> None:
        self.of[self.root(b)] = self.root(a)

    def atom(self, node: Node) -> Atom:
        return self.lists.results.get(node) or (node, 0)

    def connect(self) -> None:
        memory: dict[int, Atom] = {}
        for node, i in self.placeholders.items():
            fake = self.fakes[i]
            if isinstance(fake, torch.Tensor) and node not in self.shared:
                self.join(memory.setdefault(fake.untyped_storage()._cdata, (node, 0)), (node, 0))
        for node in self.nodes:
            if node.op not in ("call_function", "call_method") or node in self.lists.results:
                continue
            if node.target is SETS_GRAD:
                continue
            count = self.lists.members.get(node)
            if count is None:
                if not node.all_input_nodes and not isinstance(node.meta.get("val"), torch.Tensor):
                    raise WholeError
                self.root((node, 0))
                for operand in node.all_input_nodes:
                    if operand not in self.shared:
                        self.join((node, 0), self.atom(operand))
                continue
            self.connect_list(node, count)

    def connect_list(self, node: Node, count: int) -> None:
        for arg in (*node.args, *node.kwargs.values()):
            if isinstance(arg, (list, tuple)):
                for k, operand in enumerate(arg):
                    if isinstance(operand, Node) and operand not in self.shared:
                        self.join((node, k), self.atom(operand))
            elif isinstance(arg, Node) and arg not in self.shared:
                for k in range(count):
                    self.join((node, k), (arg, k) if arg in self.lists.members else self.atom(arg))
        for k in range(count):
            self.root((node, k))

    def groups(self) -> dict[Atom, dict[Node, list[int]]]:
        """The operations of each part in order, with the members that it has of a list."""
        self.connect()
        members: dict[Atom, dict[Node, list[int]]] = {}
        state: list[Node] = []
        for node in self.nodes:
            if node.target is SETS_GRAD:
                state.append(node)
                for known in members.values():
                    known[node] = []
            elif node.op in ("call_function", "call_method") and node not in self.lists.results:
                for k in range(self.lists.members.get(node, 1)):
                    root = self.root((node, k))
                    if root not in members:
                        members[root] = {n: [] for n in state}
                    members[root].setdefault(node, []).append(k)
        return members

    def components(self, groups: dict[Atom, dict[Node, list[int]]], outputs: Sequence[object]) -> dict[tuple, list[tuple[Component, Occurrence]]]:
        """The parts, like ones together."""
        told = self.outputs(outputs)
        keys: dict[tuple, list[tuple[Component, Occurrence]]] = {}
        for root, operations in groups.items():
            component = Component(self, operations, told.get(root, []))
            keys.setdefault(component.key(), []).append((component, component.occurrence()))
        return keys

    def check_devices(self, components: Sequence[Component]) -> None:
        """All parts compute on the device that the whole would compute on."""
        every = [{t.device.type for t in component.tensors()} for component in components]
        if len({frozenset(types) - {"cpu"} for types in every}) > 1:
            raise WholeError

    def given_outputs(self, outputs: Sequence[object]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, object], ...]]:
        """Which outputs are inputs, and which are constants."""
        given, constants = [], []
        for i, value in enumerate(outputs):
            if not isinstance(value, Node):
                constants.append((i, value))
            elif value.op == "placeholder":
                place = next(k for k, n in enumerate(n for n in value.graph.nodes if n.op == "placeholder") if n is value)
                if not isinstance(self.fakes[place], torch.Tensor):
                    raise WholeError
                given.append((i, place))
        return tuple(given), tuple(constants)

    def outputs(self, outputs: Sequence[object]) -> dict[Atom, list[tuple[int, Node]]]:
        """Which outputs each part makes."""
        told: dict[Atom, list[tuple[int, Node]]] = {}
        own = set(self.nodes)
        for i, value in enumerate(outputs):
            if not isinstance(value, Node) or value.op == "placeholder" or value not in own:
                continue
            if value in self.lists.members or not isinstance(value.meta.get("val"), torch.Tensor):
                raise WholeError
            told.setdefault(self.root(self.atom(value)), []).append((i, value))
        return told


class Component:
    """One part where it occurs. operations: its nodes in order, with the members that it has of a list."""

    def __init__(self, finding: Finding, operations: dict[Node, list[int]], outputs: Sequence[tuple[int, Node]]) -> None:
        self.finding, self.operations, self.outputs = finding, operations, outputs
        self.numbers: dict[Node, Any] = {}
        self.inputs: list[Node] = []
        lists = finding.lists
        for node in operations:
            for operand in self.operands(node):
                if operand in finding.placeholders and operand not in self.numbers:
                    self.numbers[operand] = -len(self.inputs) - 1
                    self.inputs.append(operand)
                elif operand in lists.results and operand not in self.numbers:
                    source, k = lists.results[operand]
                    self.numbers[operand] = self.place(source, operations[source].index(k))
            self.numbers[node] = len(self.numbers)
        for _, node in outputs:
            if node in lists.results and node not in self.numbers:
                source, k = lists.results[node]
                self.numbers[node] = self.place(source, operations[source].index(k))

    @property
    def size(self) -> int:
        return len(self.numbers)

    def place(self, source: Node, k: int) -> tuple:
        """What stands for the k-th result here of an operation over a list."""
        return self.numbers[source], k

    def own(self, node: Node, arg: Any) -> Any:
        """An argument of an operation, with those members of a list that this part has."""
        if node in self.finding.lists.members and isinstance(arg, (list, tuple)) and arg:
            return type(arg)(arg[k] for k in self.operations[node])
        return arg

    def operands(self, node: Node) -> Iterator[Node]:
        if node not in self.finding.lists.members:
            yield from node.all_input_nodes
            return
        for arg in (*node.args, *node.kwargs.values()):
            own = self.own(node, arg)
            yield from (a for a in (own if isinstance(own, (list, tuple)) else (own,)) if isinstance(a, Node))

    def key(self) -> tuple:
        """Equal for parts that are alike."""
        rows: list[Any] = []
        memories: dict[int, int] = {}
        for node in self.inputs:
            fake = self.finding.fakes[self.finding.placeholders[node]]
            if isinstance(fake, torch.Tensor):
                rows.append((*appearance(fake), memories.setdefault(fake.untyped_storage()._cdata, len(memories))))
            else:
                rows.append(node)
        for node in self.operations:
            args = tuple([self.token(self.own(node, a)) for a in node.args])
            kwargs = tuple([(k, self.token(self.own(node, v))) for k, v in node.kwargs.items()]) if node.kwargs else ()
            rows.append((node.op, node.target, args, kwargs))
        rows.append(tuple(self.numbers[node] for _, node in self.outputs))
        return tuple(rows)

    def token(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            return Node, self.numbers[arg]
        if isinstance(arg, PLAIN):
            return type(arg), repr(arg)
        if isinstance(arg, (list, tuple)):
            return (type(arg), *map(self.token, arg))
        if isinstance(arg, slice):
            return slice, self.token(arg.start), self.token(arg.stop), self.token(arg.step)
        raise WholeError

    def tensors(self) -> Iterator[torch.Tensor]:
        for node in (*self.inputs, *self.operations):
            val = node.meta.get("val")
            if isinstance(val, (tuple, list)):
                val = self.own(node, val)
            yield from (t for t in (val if isinstance(val, (tuple, list)) else (val,)) if isinstance(t, torch.Tensor))

    def occurrence(self) -> Occurrence:
        return Occurrence(tuple(self.finding.placeholders[n] for n in self.inputs), tuple(i for i, _ in self.outputs))

    def graph(self) -> tuple[torch.fx.GraphModule, tuple[object, ...]]:
        """The part as a graph of its own, and its inputs' fakes."""
        graph, copies, lists = torch.fx.Graph(), {}, self.finding.lists
        for node in self.inputs:
            copies[node] = graph.create_node("placeholder", node.name, name=node.name)
            copies[node].meta = dict(node.meta)

        def known(node: Node) -> Node:
            if node not in copies:
                source, k = lists.results[node]
                copies[node] = graph.call_function(operator.getitem, (copies[source], self.operations[source].index(k)))
                copies[node].meta = dict(node.meta)
            return copies[node]

        for node in self.operations:
            args = torch.fx.node.map_arg(tuple(self.own(node, a) for a in node.args), known)
            kwargs = torch.fx.node.map_arg({k: self.own(node, v) for k, v in node.kwargs.items()}, known)
            made = copies[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
            made.meta = dict(node.meta)
            val = made.meta.get("val")
            if node in lists.members and isinstance(val, (list, tuple)):
                made.meta["val"] = type(val)(val[k] for k in self.operations[node])
            elif node in lists.members:
                made.meta.pop("val", None)
        graph.output(tuple(known(node) for _, node in self.outputs))
        fakes = tuple(self.finding.fakes[self.finding.placeholders[n]] for n in self.inputs)
        with of_torch.use_lazy_graph_module(True):  # it is interpreted node by node
            return of_torch.make_graph_module(torch.nn.Module(), graph), fakes


def lists_of(nodes: Sequence[Node]) -> Lists:
    members: dict[Node, int] = {}
    results: dict[Node, Atom] = {}
    for node in nodes:
        if node.target in LIST_OPS and node.args and isinstance(node.args[0], (list, tuple)):
            count = len(node.args[0])
            lists = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, (list, tuple)) and a]
            if count < 2 or any(len(a) != count for a in lists) or any(u.target is not operator.getitem for u in node.users):
                continue
            members[node] = count
        elif node.target is torch.unbind and is_taken_apart(node):
            stack = node.args[0]
            members[stack] = members[node] = len(stack.args[0])  # type: ignore[union-attr, index, arg-type]
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in members:
            results[node] = (node.args[0], node.args[1])  # type: ignore[assignment]
    return Lists(members, results)


def is_taken_apart(unbind: Node) -> bool:
    """Whether it gives the tensors of a stack that nothing else sees."""
    stack: Any = unbind.args[0]
    if not isinstance(stack, Node) or stack.target is not torch.stack or len(stack.users) != 1 or not is_first(unbind) or not is_first(stack):
        return False
    members: Any = stack.args[0]
    if not isinstance(members, (list, tuple)) or not all(isinstance(m, Node) and isinstance(m.meta.get("val"), torch.Tensor) for m in members):
        return False
    if len({m.meta["val"].dtype for m in members}) != 1 or len(members) < 2:
        return False
    return all(u.target is operator.getitem and all(by.op != "output" for by in u.users) for u in unbind.users)


def is_first(node: Node) -> bool:
    """Whether it works along the first dimension."""
    return not node.kwargs and (len(node.args) == 1 or node.args[1:] == (0,))


def may_write(node: Node) -> Iterator[Node]:
    """The operands that a node may write, by the names that torch gives to what does."""
    if node.op not in ("call_function", "call_method"):
        return
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if node.target in IN_PLACE or name.endswith("_") and not name.endswith("__") or name.startswith("__i") or name == "__setitem__":
        yield from tensors_in_lists(node)
        if node.target not in LIST_OPS and node.args and isinstance(node.args[0], Node):
            yield node.args[0]
    elif isinstance(out := node.kwargs.get("out"), Node):
        yield out


def tensors_in_lists(node: Node) -> Iterator[Node]:
    return (a for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, (list, tuple)) for a in arg if isinstance(a, Node))


def appearance(fake: torch.Tensor) -> tuple:
    """The metadata of an input that what is compiled may depend on."""
    place = (tuple(fake.shape), tuple(fake.stride()), fake.storage_offset(), fake.dtype, fake.device)
    return (type(fake), *place, fake.requires_grad, fake.is_leaf, fake._is_view(), fake.is_inference(), fake.is_conj(), fake.is_neg())


def differentiate_parts(parts: Parts, env: Env) -> DifferentiatedParts | None:
    """Each part as a functional graph, and the contract of all occurrences together. None where autograd has a part in them, or where one writes what
    another one uses."""
    pairs = []
    for part in parts.parts:
        try:
            pairs.append(differentiate(part.graph, part.fakes, env))
        except Unsupported:  # told of the whole, with the whole's names
            return None
    if not all(is_simple(pair.contract) for pair in pairs) or any(is_ordered(node) for pair in pairs for node in pair.forward.graph.nodes):
        return None
    uses = Counter((part.phase, i) for part in parts.parts for o in part.occurrences for i in o.inputs)
    rows: dict[int, Output] = {i: InputItself(j) for i, j in parts.given}
    rows.update({i: Constant(value) for i, value in parts.constants})
    written: list[tuple[int, int]] = []
    input_writes: Counter[int] = Counter()
    output_writes: list[tuple[int, int]] = []
    mutated: set[int] = set()
    positions, count = [], 0
    for part, pair in zip(parts.parts, pairs, strict=True):
        told, width, bases = pair.contract, len(output_args(pair.forward)), []
        for occurrence in part.occurrences:
            written += [(part.phase, occurrence.inputs[i]) for i in (*told.mutated_in_graph, *(i for i, _ in told.marks.input_writes))]
            mutated |= {occurrence.inputs[i] for i in told.mutated_in_graph}
            input_writes.update({occurrence.inputs[i]: n for i, n in told.marks.input_writes})
            output_writes += [(count + p, n) for p, n in told.marks.output_writes]
            for i, row in zip(occurrence.outputs, told.outputs, strict=True):
                rows[i] = moved(row, occurrence.inputs, count)
            bases.append(count)
            count += width
        positions.append(tuple(bases))
    between = [rows[i] for i in parts.between]
    if any(uses[place] > 1 or place[1] >= parts.inputs for place in written) or not all(isinstance(row, Fresh) for row in between):
        return None
    marks = Marks(input_writes=tuple(sorted(input_writes.items())), output_writes=tuple(output_writes), parts=())
    outputs = tuple(rows[i] for i in range(parts.outputs))
    contract = RuntimeContract(parts.inputs, outputs, mutated_in_graph=tuple(sorted(mutated)), marks=marks)
    facts = {"ops": sum(pair.facts.get("ops", 0) for pair in pairs), "parts": len(pairs), "copies": sum(len(p.occurrences) for p in parts.parts)}
    passed = tuple(row.position for row in between if isinstance(row, Fresh))
    return DifferentiatedParts(parts, tuple(pairs), contract, tuple(positions), count, facts, passed)


def is_ordered(node: Node) -> bool:
    """Whether an operation has its place among those of other parts: it draws random numbers, talks to other processes, or is there for what it does."""
    op = node.target
    if not isinstance(op, of_torch.OpOverload) or op is torch.ops.aten.copy_.default:
        return False
    return torch.Tag.nondeterministic_seeded in op.tags or is_collective(op) or op._schema.is_mutable or not op._schema.returns


def is_simple(told: RuntimeContract) -> bool:
    """Whether autograd has no part in it."""
    marks = told.marks
    if marks.inference or marks.watches or marks.flags or marks.parts or marks.needs or marks.keeps or told.again is not None:
        return False
    if told.mutations or told.saved_inputs or told.saved_positions or told.tangents or told.grads or told.symbols or told.sizes or told.stages:
        return False
    return not any(row.differentiable for row in told.outputs if isinstance(row, Fresh))


def moved(row: Output, inputs: Sequence[int], position: int) -> Output:
    """A part's output as one of the whole."""
    match row:
        case Fresh():
            return Fresh(position + row.position, row.differentiable)
        case ViewOfOutput():
            return ViewOfOutput(position + row.position, row.view, row.lineage, row.alone)
        case InputItself():
            return InputItself(inputs[row.input])
        case ViewOfInput():
            return ViewOfInput(inputs[row.input], row.view, row.lineage)
        case Constant():
            return row
