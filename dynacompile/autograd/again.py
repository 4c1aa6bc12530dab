"""What a call of a graph has to keep so that its backward can be differentiated once more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.fx

from dynacompile.autograd.facts import has_effect, is_random
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.autograd.partition import Sides, ancestors
from dynacompile.ir.graphs import Again
from dynacompile.ops.regions import REGION
from dynacompile.private.of_torch import FakeTensor

Node = torch.fx.Node


def again(joint: JointGraph, side: Sides, saved: Sequence[Node], results: Sequence[Node], below: Collection[Node] = ()) -> Again:
    """saved: the nodes at the contract's saved positions, in order. results: the gradients. below: what other stages give.

    A gradient of a gradient depends on no input that the gradient does not depend on. What checks or draws is run again, and needs its operands."""
    inputs = joint.placeholders[: joint.inputs]
    grads = ancestors(results, below)
    needed = grads | ancestors([n for n in side.primal if has_effect(n)])
    written = frozenset((*joint.written, *(m.input for m in joint.mutations)))
    copies = {inputs.index(n): place for place, n in enumerate(saved) if n.op == "placeholder"}
    tensors = tuple(i for i, n in enumerate(inputs) if n in needed and isinstance(n.meta["val"], FakeTensor))
    return Again(
        needed=tensors,
        written=written,
        copies=copies,
        lost=tuple(i for i in tensors if i in written and i not in copies),
        draws=devices([n for n in side.primal if is_random(n) and n in grads]),
        random=devices([n for n in side.primal if is_random(n)]),
        draws_backward=any(is_random(n) and n.target is not REGION for n in side.backward),
        writes=joint.writes,
        written_targets=joint.settled is None,
        settled=joint.settled or {},
    )


def devices(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Where random nodes draw."""
    values = [n.meta["val"] for n in nodes]
    tensors = [next((t for t in v if isinstance(t, torch.Tensor)), None) if isinstance(v, (tuple, list)) else v for v in values]
    return tuple(dict.fromkeys(str(t.device) for t in tensors if isinstance(t, torch.Tensor)))
