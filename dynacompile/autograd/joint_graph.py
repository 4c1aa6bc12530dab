"""What tracing the joint graph gives: forward and backward as one functional graph, and what eager's autograd has of the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from dynacompile.ir.graphs import Mutation, Output, Part, Settled, Target, Watch


@dataclass(frozen=True)
class History:
    """What eager's autograd has of a call. watches: the inputs and forward outputs that it keeps, or views of them. parts: as in Marks, with the inputs
    that they lead to in the place of gradients, and -1 - k for the k-th point that the backward is cut at. reached: the tangents that the gradient of an
    input comes from, by the index of the input, as the bits of a number. computed: the inputs that have a history of their own. makers: as in Marks, with ends
    as those of parts; empty for a single tangent."""

    watches: tuple[Watch, ...] = ()
    parts: tuple[Part, ...] = ()
    reached: Mapping[int, int] = field(default_factory=dict)
    computed: frozenset[int] = frozenset()
    makers: tuple[Part, ...] = ()
    views: tuple[Part, ...] = ()


@dataclass(frozen=True)
class JointGraph:
    """One functional ATen graph of forward and backward.

    graph: placeholders are the inputs, then the tangents; the output node holds ((forward values by position), (values that inputs take in
    the graph), (gradients), (gradients of outputs that others are computed from)). outputs, mutations: as in the RuntimeContract. written: the
    inputs of the second group. tangents: positions that have one. grads: the inputs that the third group belongs to. sources: as in the
    RuntimeContract. inference, flags, input_writes, output_writes: as in Marks. constants: the graph's attributes. leaves: inputs that are leaves of
    autograd. targets: where the fourth group goes; target_sources: the tangents that it comes from. levels: of each tangent, the stage of the backward
    that takes it. writes: the graph has in-place operations; settled: the targets that they write, None where not all are known.
    """

    graph: torch.fx.Graph
    constants: Mapping[str, torch.Tensor]
    inputs: int
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    written: tuple[int, ...]
    tangents: tuple[int, ...]
    grads: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    inference: tuple[int, ...]
    history: History
    flags: tuple[tuple[int, ...], ...]
    input_writes: tuple[tuple[int, int], ...]
    output_writes: tuple[tuple[int, int], ...]
    leaves: frozenset[int]
    targets: tuple[Target, ...] = ()
    target_sources: tuple[tuple[int, ...], ...] = ()
    levels: tuple[int, ...] = ()
    writes: bool = False
    settled: Mapping[int, Settled] | None = field(default_factory=dict)
    masks: tuple[tuple[str, str], ...] = ()

    @property
    def captured(self) -> tuple[torch.fx.Node, ...]:
        return tuple(next(iter(reversed(self.graph.nodes))).args[0][3])

    @property
    def groups(self) -> tuple[tuple[torch.fx.Node, ...], tuple[torch.fx.Node, ...], tuple[torch.fx.Node, ...]]:
        forward, written, grads, _ = next(iter(reversed(self.graph.nodes))).args[0]
        return tuple(forward), tuple(written), tuple(grads)

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return [n for n in self.graph.nodes if n.op == "placeholder"]
