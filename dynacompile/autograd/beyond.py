"""Outputs that require gradients which come to no input: what they come to was made inside of the graph, or the graph has let go of what is needed for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import Fresh, Output, PastInputs, output_args


class BeyondInputs(Unsupported):
    """outputs: of the graph, by index. Empty: it can't be told what autograd does with them."""

    def __init__(self, outputs: Mapping[int, PastInputs]):
        reason = "an output requires gradients that come to no input: what they come to was made inside the graph"
        super().__init__("leaf-inside", reason, "make it outside of the compiled function")
        self.outputs = dict(outputs)


def of_outputs(positions: Mapping[int, tuple[str | None, Iterable[tuple[bool, int]]]], rows: Sequence[Output]) -> BeyondInputs:
    """The refusal of those outputs that are the tensors at these positions: with what autograd raises, and which inputs (True) and positions it keeps."""
    place = {row.position: i for i, row in enumerate(rows) if isinstance(row, Fresh)}
    told = {p for p in positions if p in place}
    if len(told) < len(positions) or any(getattr(row, "position", None) in told for row in rows if not isinstance(row, Fresh)):
        return BeyondInputs({})
    found = {}
    for position, (error, kept) in positions.items():
        inputs, outputs = ([n for is_input, n in kept if is_input == wanted] for wanted in (True, False))
        if error is None and not all(n in place for n in outputs):
            return BeyondInputs({})
        found[place[position]] = PastInputs(error, tuple(sorted(inputs)), tuple(sorted(place[n] for n in outputs if n in place)))
    return BeyondInputs(found)


def detached(graph: torch.fx.GraphModule, outputs: Iterable[int]) -> torch.fx.GraphModule:
    """The graph, which gives these outputs without their history."""
    made = torch.fx.GraphModule(graph, torch.fx.Graph())
    node_of: dict[torch.fx.Node, torch.fx.Node] = {}
    made.graph.graph_copy(graph.graph, node_of)
    end = next(n for n in reversed(graph.graph.nodes) if n.op == "output")
    results = list(output_args(graph))
    args = [node_of.get(of, of) for of in results]
    for i in outputs:
        args[i] = made.graph.call_method("detach", (node_of[results[i]],))
        fake = results[i].meta["val"].detach()
        args[i].meta = {**results[i].meta, "val": fake, "example_value": fake}
    made.graph.output(tuple(args)).meta = dict(end.meta)
    return made
