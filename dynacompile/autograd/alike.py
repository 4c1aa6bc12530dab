"""Finds the like parts that a torch-level graph falls apart into, so that each is differentiated, lowered and scheduled once.

Parts are what data flow connects. Operations over lists (foreach, fused optimizer steps), and a stack that is taken apart again, do not connect the
members of their lists: member by member they are the same operation over shorter lists. A round of a loop is one operation. Inputs of one element that nobody
writes, such as a learning rate, connect nothing either. Two parts are alike when their operations, constants and the metadata of their inputs are equal.

A graph that autograd has a part in stays whole, and so does one whose parts turn out to depend on each other: what is written of the inputs, the contracts
of the differentiated parts tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.autograd.components import Component, Kind, Rows
from dynacompile.autograd.phases import phases
from dynacompile.autograd.steps import Lists, Node, Round, Step, WholeError, lists_of, may_write, node_of, step_value, steps_of, weight
from dynacompile.ir.alike import Occurrence, Part, Parts
from dynacompile.ir.graphs import output_args
from dynacompile.ir.looks import Later, memory_of, sample_of, value_of
from dynacompile.ops.backward_steps import Step as BackwardStep
from dynacompile.ops.backward_steps import TensorHook
from dynacompile.ops.regions import FORMS
from dynacompile.ops.unsafe_splits import UNSAFE_FUNCTIONS, UNSAFE_METHODS
from dynacompile.private import of_torch

WORTH = 48  # nodes that need not be looked at, from which on parts are made
UNTRACKED = frozenset({getattr, "detach", torch.detach, "view", "view_as", "set_", *UNSAFE_METHODS, *UNSAFE_FUNCTIONS})
"""Operations whose results share memory with an operand and are no views to torch."""
SETS_GRAD = of_torch.set_grad_enabled


def find_parts(graph: torch.fx.GraphModule, given: Sequence[object], worth: int | None = None) -> Parts | None:
    """The like parts of a graph; None where it has none, or too few of them. given: the fakes of its inputs, which may be made later. worth: how many nodes
    must be copies, `WORTH` where it is None."""
    worth = WORTH if worth is None else worth
    try:
        nodes = list(graph.graph.nodes)
        if sum(map(weight, steps := steps_of(nodes))) < worth:
            return None
        check_graph(steps, given)
        outputs = output_args(graph)
        whole = Finding(steps, given)
        return parts_of([whole], outputs, outputs, worth) or phased(whole, outputs, worth)
    except WholeError:
        return None


def phased(whole: Finding, outputs: Sequence[object], worth: int) -> Parts | None:
    """The parts of a graph that joins many results and goes on with what it made of them: those of each of its phases."""
    steps, given = whole.steps, whole.given
    found = phases(steps, whole.shared, whole.lists.members, SETS_GRAD)
    if found is None:
        return None
    between = list(dict.fromkeys(node for phase in found for node in phase.made))
    inputs = [n for n in steps if n.op == "placeholder"]
    read = {n for phase in found for step in phase.steps for n in step.all_input_nodes}
    passed = [*given, *(n.meta.get("later", n.meta.get("val")) for n in between)]
    findings = [Finding((*(n for n in inputs if n in read), *phase.steps), passed, [*inputs, *between], phase.given) for phase in found]  # type: ignore[list-item]
    seen = {n for n in outputs if isinstance(n, Node)}
    return parts_of(findings, [*outputs, *(n for n in between if n not in seen)], outputs, worth, between)


def parts_of(findings: Sequence[Finding], made: Sequence[object], outputs: Sequence[object], worth: int, between: Sequence[Node] = ()) -> Parts | None:
    """The parts of one finding after the other. made: the graph's outputs, and what else passes between them. None where too little is alike."""
    kinds: dict[tuple, tuple[Kind, list[Occurrence]]] = {}
    given, constants = findings[0].given_outputs(outputs)
    sizes = [size for finding in findings for size in finding.sizes()]
    if 2 * max(sizes, default=0) > sum(sizes):  # no other one is like it
        return None
    groups = [finding.groups() for finding in findings]
    for phase, (finding, group) in enumerate(zip(findings, groups)):
        for kind, occurrences in finding.kinds(group, made):
            kinds.setdefault((phase, *kind.key), (kind, []))[1].extend(occurrences)
    saved = sum((len(found) - 1) * kind.size for kind, found in kinds.values())
    if saved < worth or 2 * saved < sum(len(found) * kind.size for kind, found in kinds.values()):
        return None
    if len({kind.devices - {"cpu"} for kind, _ in kinds.values()}) > 1:  # not all compute on the device that the whole would compute on
        raise WholeError
    places = {n: i for i, n in reversed(list(enumerate(made))) if isinstance(n, Node)}
    parts = tuple(Part(kind.graph, kind.fakes, tuple(found), key[0]) for key, (kind, found) in kinds.items())
    return Parts(len(findings[0].given) - len(between), len(outputs), parts, given, constants, tuple(places[n] for n in between))


def check_graph(steps: Sequence[Step], given: Sequence[object]) -> None:
    for fake in given:
        if isinstance(fake, torch.Tensor) and not all(type(n) is int for n in (*fake.shape, *fake.stride())):
            raise WholeError
    for step in steps:
        if step.op not in ("placeholder", "call_function", "call_method", "output"):
            raise WholeError
        for node in step.target.nodes if type(step) is Round else (step,):
            if node.target in FORMS or isinstance(node.target, (BackwardStep, TensorHook)):
                raise WholeError
        if step.op == "output" and any(isinstance(value := value_of(n), torch.Tensor) and value.requires_grad for n in made_here(step)):
            raise WholeError


def written_origins(steps: Sequence[Step], inputs: Collection[Node]) -> Iterator[Node]:
    """Of the inputs those that a step may write, also through a view."""
    origins = {node: node for node in inputs}
    for step in steps:
        if step.op == "placeholder":
            continue
        yield from (origins[n] for n in may_write(step) if n in origins)
        known = [origins[n] for n in step.all_input_nodes if n in origins]
        if known and type(step) is Node and is_view(step):
            origins[step] = known[0]


def is_view(node: Node) -> bool:
    """Whether what a node gives may share memory with an operand."""
    value = value_of(node)
    made = [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]
    return node.target in UNTRACKED or any(t.is_inference() or t._is_view() for t in made)


def made_here(output: Step) -> Iterator[Node]:
    return (n for n in output.all_input_nodes if n.op != "placeholder")


class Finding:
    """The parts of one graph, as they are found. first: the number of each step, of one over a list that of its first member, the next ones being those of the
    others. of: by number, the number of a later step that is of the same part, or its own. roots: by number, that of the last one of its part."""

    def __init__(self, steps: Sequence[Step], given: Sequence[object], inputs: Sequence[Node] | None = None, earlier: Sequence[Node] = ()) -> None:
        """inputs: the nodes that bring what is given, the placeholders where it is None. earlier: those of them that an earlier phase makes."""
        self.steps, self.given = steps, given
        self.lists: Lists = lists_of(steps)
        placed: list[Any] = [n for n in steps if n.op == "placeholder"] if inputs is None else list(inputs)
        before = set(earlier)
        own = {*before, *steps} if inputs is not None else set(placed)
        self.placeholders: dict[Node, int] = {n: i for i, n in enumerate(placed) if n in own and (n.op == "placeholder" or n in before)}
        self.rows = Rows(self.lists.members)
        self.shared = self.shared_inputs()
        self.first: dict[Step, int] = {}
        self.of: list[int] = []
        self.roots: list[int] = []

    def value(self, step: Step) -> Any:
        """The fake of a result, or one that looks the same."""
        place = self.placeholders.get(step)  # type: ignore[arg-type]
        return step_value(step) if place is None else sample_of(self.given[place])

    def shared_inputs(self) -> set[Node]:
        """Numbers, and tensors of one element that nobody writes: any number of parts may read them."""
        found: set[Node] = set()
        small: dict[Node, object] = {}
        made: list[object] = []  # inputs whose memory others may have, too
        for node, i in self.placeholders.items():
            value = self.given[i]
            if type(value) is Later and value.made is None:
                if value.look.is_small:
                    small[node] = value
            elif isinstance(fake := sample_of(value), torch.Tensor):
                made.append(value)
                if fake.numel() <= 1:
                    small[node] = value
            else:
                found.add(node)
        if small:
            memory = Counter(map(memory_of, made))
            written = set(written_origins(self.steps, small))
            found |= {node for node, value in small.items() if node not in written and memory[memory_of(value)] <= 1}
        return found

    # what is connected

    def number(self, step: Step, count: int = 1) -> int:
        found = self.first[step] = len(self.of)
        self.of += range(found, found + count)
        if type(step) is Round and step.node is not None:
            self.first[step.node] = found
        return found

    def root(self, number: int) -> int:
        of = self.of
        while (above := of[number]) != number:
            of[number] = number = of[above]
        return number

    def join(self, own: int, other: int) -> None:
        of = self.of
        a = own if of[own] == own else self.root(own)
        b = other if of[other] == other else self.root(other)
        if a < b:
            of[a] = b
        elif b < a:
            of[b] = a

    def atom(self, node: Node) -> int:
        found = self.lists.results.get(node)
        return self.first[node] if found is None else self.first[found[0]] + found[1]

    def connect(self) -> None:
        memory: dict[int, list[int]] = {}
        for node, i in self.placeholders.items():
            if node not in self.shared:
                own, value = self.number(node), self.given[i]
                if type(value) is not Later or value.made is not None:
                    memory.setdefault(memory_of(value), []).append(own)
        for same in memory.values():
            for other in same[:-1]:
                self.join(same[-1], other)
        shared, results, members, join, atom = self.shared, self.lists.results, self.lists.members, self.join, self.atom
        for step in self.operations():
            count = members.get(step)
            if count is not None:
                self.connect_list(step, count)
                continue
            operands = step.all_input_nodes
            if not operands and not isinstance(step_value(step), torch.Tensor):
                raise WholeError
            own = self.number(step)
            for operand in operands:
                if operand not in shared:
                    join(own, atom(operand) if operand in results else self.first[operand])
        self.roots = list(range(len(self.of)))
        for number in reversed(self.roots):  # of[number] is not smaller
            self.roots[number] = self.roots[self.of[number]]

    def connect_list(self, step: Step, count: int) -> None:
        first, results, shared, join, atom = self.number(step, count), self.lists.results, self.shared, self.join, self.atom
        for arg in (*step.args, *step.kwargs.values()):
            if isinstance(arg, (list, tuple)):
                for k, operand in enumerate(arg, first):
                    if isinstance(operand, Node) and operand not in shared:
                        join(k, atom(operand) if operand in results else self.first[operand])
            elif isinstance(arg, Node) and arg not in shared:
                listed = arg in self.lists.members
                other = self.first[arg] if listed else atom(arg)
                for k in range(count):
                    join(first + k, other + k if listed else other)

    def operations(self) -> Iterator[Step]:
        """The steps that compute, without those that take a member of a list."""
        results = self.lists.results
        return (s for s in self.steps if s.op in ("call_function", "call_method") and s not in results and s.target is not SETS_GRAD)

    def sizes(self) -> list[int]:
        """Of each part, how many nodes its operations stand for, each operation over a list once."""
        self.connect()
        found: Counter[int] = Counter()
        members, roots = self.lists.members, self.roots
        for step in self.operations():
            first, count = self.first[step], members.get(step, 1)
            size = weight(step)
            for root in set(roots[first : first + count]) if count > 1 else (roots[first],):
                found[root] += size
        return list(found.values())

    def groups(self) -> dict[int, dict[Step, list[int]]]:
        """The operations of each part in order, with the members that it has of a list."""
        found: dict[int, dict[Step, list[int]]] = {}
        state: list[Step] = []
        members, results, roots = self.lists.members, self.lists.results, self.roots
        for step in self.steps:
            if step.target is SETS_GRAD:
                state.append(step)
                for known in found.values():
                    known[step] = []
            elif step.op in ("call_function", "call_method") and step not in results:
                first = self.first[step]
                for k, root in enumerate(roots[first : first + members.get(step, 1)]):
                    operations = found.get(root)
                    if operations is None:
                        operations = found[root] = {n: [] for n in state}
                    if step in operations:
                        operations[step].append(k)
                    else:
                        operations[step] = [k]
        return found

    def kinds(self, groups: dict[int, dict[Step, list[int]]], outputs: Sequence[object]) -> Iterator[tuple[Kind, list[Occurrence]]]:
        """The parts, like ones together, though not all that are alike."""
        told = self.outputs(outputs)
        found: dict[tuple, tuple[Component, list[Component]]] = {}
        for root, operations in groups.items():
            component = Component(self, operations, told.get(root, []))
            found.setdefault(component.key(), (component, []))[1].append(component)
        for first, components in found.values():
            kind = first.kind()
            yield kind, [self.occurrence(component, kind) for component in components]

    def occurrence(self, component: Component, kind: Kind) -> Occurrence:
        inputs, places = component.inputs, self.placeholders
        return Occurrence(tuple([places[inputs[i]] for i in kind.order]), tuple([i for i, _ in component.outputs]))

    # results of the whole

    def given_outputs(self, outputs: Sequence[object]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, object], ...]]:
        """Which outputs are inputs, and which are constants."""
        given, constants = [], []
        for i, value in enumerate(outputs):
            if not isinstance(value, Node):
                constants.append((i, value))
            elif value.op == "placeholder":
                place = next(k for k, n in enumerate(n for n in value.graph.nodes if n.op == "placeholder") if n is value)
                if not isinstance(sample_of(self.given[place]), torch.Tensor):
                    raise WholeError
                given.append((i, place))
        return tuple(given), tuple(constants)

    def outputs(self, outputs: Sequence[object]) -> dict[int, list[tuple[int, Node]]]:
        """Which outputs each part makes."""
        told: dict[int, list[tuple[int, Node]]] = {}
        own = set(map(node_of, self.steps))
        for i, value in enumerate(outputs):
            if not isinstance(value, Node) or value.op == "placeholder" or value not in own:
                continue
            if value in self.lists.members or not isinstance(value_of(value), torch.Tensor):
                raise WholeError
            told.setdefault(self.roots[self.atom(value)], []).append((i, value))
        return told
