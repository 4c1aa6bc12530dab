"""The operations of a captured graph as the search for like parts sees them: nodes, of which some go member by member over lists, and rounds of loops as one
operation each, also the first of its kind, whose nodes are in the graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.fx

from dynacompile.ir.looks import LaterList, value_of
from dynacompile.ir.rounds import LIST_OPS, Again, is_again

Node = torch.fx.Node
IN_PLACE = frozenset(
    getattr(operator, n) for n in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem", "ilshift")
)
ACTIVATIONS: dict[object, int] = {
    f: f.__code__.co_varnames.index("inplace")
    for f in vars(torch.nn.functional).values()
    if isinstance(f, FunctionType) and "inplace" in f.__code__.co_varnames[: f.__code__.co_argcount]
}
"""Functions that write their operand when asked to, with the place of that argument."""


class WholeError(Exception):
    """The graph has to be compiled as a whole."""


@dataclass(eq=False)
class Pattern:
    """What a round does. outer: what all rounds read beside their own inputs; written: which of a round's operands it may write, by position."""

    again: Again
    outer: tuple[Node, ...] = ()
    written: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        own = {*self.again.nodes, *self.again.inputs}
        self.outer = tuple(dict.fromkeys(n for node in self.again.nodes for n in node.all_input_nodes if n not in own))
        written = {n for node in self.again.nodes for n in may_write(node)}
        self.written = tuple(i for i, n in enumerate((*self.again.inputs, *self.outer)) if n in written)


@dataclass(eq=False)
class Round:
    """One round of a loop, in the place of a node."""

    pattern: Pattern
    args: tuple[Node, ...]
    node: Node | None  # what stands for its result
    all_input_nodes: tuple[Node, ...] = ()
    op: str = "call_function"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.all_input_nodes = (*self.args, *self.pattern.outer)

    @property
    def target(self) -> Again:
        return self.pattern.again


Step = Node | Round


def steps_of(nodes: Sequence[Node]) -> list[Step]:
    """The nodes, and in the place of each round one step."""
    repeated: list[Any] = [n.target for n in nodes if is_again(n)]
    patterns: dict[Again, Pattern] = {again: Pattern(again) for again in dict.fromkeys(repeated)}
    if not patterns:
        return list(nodes)
    ends: dict[Node, Pattern] = {}
    inside: set[Node] = set()
    places = {node: i for i, node in enumerate(nodes)}
    for again, pattern in patterns.items():
        own = set(again.nodes)
        start = places.get(again.nodes[0], len(nodes))
        if tuple(nodes[start : start + len(own)]) != again.nodes or any(user not in own for n in again.nodes if n is not again.output for user in n.users):
            raise WholeError
        inside |= own
        ends[again.nodes[-1]] = pattern
    found: list[Step] = []
    for node in nodes:
        if node in ends:
            found.append(Round(ends[node], ends[node].again.inputs, ends[node].again.output))
        elif is_again(node):
            pattern = patterns[node.target]  # type: ignore[index]
            found.append(Round(pattern, node.args, node if pattern.again.output is not None else None))  # type: ignore[arg-type]
        elif node not in inside:
            found.append(node)
    return found


def node_of(step: Step) -> Any:
    """What others name its result by; itself where it has none."""
    return step.node or step if type(step) is Round else step


def step_value(step: Step) -> Any:
    """The fake of its result, or one that looks the same."""
    return None if type(step) is Round and step.node is None else value_of(node_of(step))


def weight(step: Step) -> int:
    """How many nodes it stands for."""
    return len(step.target.nodes) if type(step) is Round else 1


Atom = tuple[Step, int]
"""An operation; of one over a list, that over the member with this number, else 0."""


@dataclass(frozen=True)
class Lists:
    """The operations that go member by member, with the number of members, and the nodes that give one of their results."""

    members: dict[Step, int]
    results: dict[Node, Atom]


def lists_of(steps: Sequence[Step]) -> Lists:
    members: dict[Step, int] = {}
    results: dict[Node, Atom] = {}
    for node in steps:
        if type(node) is not Node:
            continue
        if node.target in LIST_OPS and node.args:
            counts = {n for a in (*node.args, *node.kwargs.values()) if (n := length(a, members))}
            if len(counts) == 1 and length(node.args[0], members) > 1 and all(takes_members(u, node) for u in node.users):
                members[node] = counts.pop()
            elif any(is_list(a) for a in (*node.args, *node.kwargs.values())):
                raise WholeError
        elif node.target is torch.unbind and is_taken_apart(node):
            stack: Any = node.args[0]
            members[stack] = members[node] = len(stack.args[0])
        elif node.target is operator.getitem and node.args[0] in members:
            results[node] = (node.args[0], node.args[1])  # type: ignore[assignment]
    return Lists(members, results)


def length(arg: Any, members: Mapping[Step, int]) -> int:
    """The number of members of an argument that is a list; else 0."""
    return len(arg) if isinstance(arg, (list, tuple)) else members.get(arg, 0) if isinstance(arg, Node) else 0


def takes_members(user: Node, node: Node) -> bool:
    """Whether a node takes a list member by member."""
    return user.target is operator.getitem or user.target in LIST_OPS and any(a is node for a in (*user.args, *user.kwargs.values()))


def is_list(arg: Any) -> bool:
    return isinstance(arg, Node) and type(arg.meta.get("later")) is LaterList


def is_taken_apart(unbind: Node) -> bool:
    """Whether it gives the tensors of a stack that nothing else sees."""
    stack: Any = unbind.args[0]
    if not isinstance(stack, Node) or stack.target is not torch.stack or len(stack.users) != 1 or not is_first(unbind) or not is_first(stack):
        return False
    members: Any = stack.args[0]
    if not isinstance(members, (list, tuple)) or not all(isinstance(m, Node) and isinstance(value_of(m), torch.Tensor) for m in members):
        return False
    if len({value_of(m).dtype for m in members}) != 1 or len(members) < 2:
        return False
    return all(u.target is operator.getitem and all(by.op != "output" for by in u.users) for u in unbind.users)


def is_first(node: Node) -> bool:
    """Whether it works along the first dimension."""
    return not node.kwargs and (len(node.args) == 1 or node.args[1:] == (0,))


def may_write(step: Step) -> Iterator[Node]:
    """The operands that a step may write, by the names that torch gives to what does, or since one is the result and was written."""
    if type(step) is Round:
        yield from (step.all_input_nodes[i] for i in step.pattern.written)
        return
    if step.op not in ("call_function", "call_method"):
        return
    name = step.target if isinstance(step.target, str) else getattr(step.target, "__name__", "_")
    if step.target in IN_PLACE or name.endswith("_") and not name.endswith("__") or name.startswith("__i") or name == "__setitem__":
        yield from tensors_in_lists(step)
        if step.target not in LIST_OPS and step.args and isinstance(step.args[0], Node):
            yield step.args[0]
    elif isinstance(out := step.kwargs.get("out"), Node):
        yield out
    elif step.target in ACTIVATIONS:
        place, operand = ACTIVATIONS[step.target], step.args[0] if step.args else step.kwargs.get("input")
        if isinstance(operand, Node) and (step.kwargs.get("inplace") or any(step.args[place : place + 1])):
            yield operand
    elif isinstance(result := step.meta.get("val"), torch.Tensor) and (result.is_inference() or result._version):
        yield from (n for n in step.all_input_nodes if n.meta.get("val") is result)


def tensors_in_lists(node: Step) -> Iterator[Node]:
    return (a for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, (list, tuple)) for a in arg if isinstance(a, Node))
