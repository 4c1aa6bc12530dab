"""Cuts a graph where it joins many small results, such as the norms of all gradients, into one number that all go on with.

What comes before the join, the join itself, and what comes after are phases: each falls apart into like parts of its own, and the phases run one after the
other. Between them pass tensors of one element. Phases keep the graph's order, so that what one writes and another reads stays as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from dynacompile.autograd.steps import Node, Step, may_write, node_of, step_value
from dynacompile.ir.looks import value_of

LEAST = 4  # tensors that are joined
MOST = 9  # phases
JOINING = frozenset({torch.stack, torch.cat, torch.concat, torch.hstack})


@dataclass(frozen=True)
class Phase:
    """Operations in the graph's order. given: those of earlier phases that they read; made: those of theirs that later phases read."""

    steps: tuple[Step, ...]
    given: tuple[Node, ...]
    made: tuple[Node, ...]


def is_one(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() <= 1


def is_join(node: Step, lists: Collection[Step]) -> bool:
    """Whether it makes one tensor of many of one element each. lists: operations that go member by member."""
    if node.target not in JOINING or node in lists or not node.args or not isinstance(node.args[0], (list, tuple)):
        return False
    members = node.args[0]
    return len(members) >= LEAST and all(isinstance(m, Node) and is_one(value_of(m)) for m in members)


def phases(steps: Sequence[Step], shared: Collection[Node], lists: Collection[Step], state: object) -> list[Phase] | None:
    """The phases of a graph; None where nothing is joined, or more passes between phases than tensors of one element. shared: inputs that any number of
    operations may read; state: the target of nodes that set modes, which every phase has."""
    of: dict[Step, int] = {}  # also by the node that stands for a round's result
    joined: set[Step] = set()
    current, in_join = 0, False
    for step in steps:
        if step.op not in ("call_function", "call_method") or step.target is state:
            continue
        operands = [n for n in step.all_input_nodes if n not in shared]
        if is_join(step, lists):
            current, in_join = current + (not in_join), True
            phase = current
            joined.add(step)
        elif operands and all(n in joined for n in operands) and is_one(step_value(step)) and not any(True for _ in may_write(step)):
            phase = max(of[n] for n in operands)
            joined |= {step, node_of(step)}
        else:
            current, in_join = current + in_join, False
            phase = current
        of[step] = of[node_of(step)] = phase
    if not joined or current >= MOST:
        return None
    return split(steps, of, state, 1 + max(of.values()))


def split(steps: Sequence[Step], of: dict[Step, int], state: object, count: int) -> list[Phase] | None:
    given: list[dict[Node, None]] = [{} for _ in range(count)]
    made: list[dict[Node, None]] = [{} for _ in range(count)]
    own: list[list[Step]] = [[] for _ in range(count)]
    for step in steps:
        if step.target is state and step.op == "call_function":
            for part in own:
                part.append(step)
        phase = of.get(step)
        if phase is None:
            continue
        own[phase].append(step)
        for operand in step.all_input_nodes:
            source = of.get(operand, phase)
            if source == phase:
                continue
            if source > phase or not is_one(value := value_of(operand)) or not value.is_contiguous():
                return None
            given[phase].setdefault(operand)
            made[source].setdefault(operand)
    return [Phase(tuple(o), tuple(g), tuple(m)) for o, g, m in zip(own, given, made)]
