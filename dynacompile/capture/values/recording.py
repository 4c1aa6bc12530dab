"""The growing graph as values see it. `Recorder` (`capture/recorder.py`) records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    import torch.fx

    from dynacompile.capture.values.base import Value
    from dynacompile.capture.values.graph_tensor import GraphTensor
    from dynacompile.ir.captured import GraphInput, TensorFacts
    from dynacompile.ir.fakes import FakeMode
    from dynacompile.ir.source import Source
    from dynacompile.ops.wrappers import Wrapping


class Drawing(Protocol):
    """seen: whether random numbers were drawn."""

    seen: bool


class Recording(Protocol):
    """Inputs, operations and effects of the graph, and which tensors were written.

    tensors: inputs by the names of their placeholders. values: tensors by the ids of their fakes. nodes: those that have a result, in order.
    held: storages of tensors that calls after the graph are given. shown: of those that guards or residual code read.
    wrappers: values of inputs that wrap others, by the ids of the fakes inside. versions: of inputs at the start, by the ids of their fakes.
    optional: nodes without which the graph does the same, where nothing takes what they give.
    talks_later: what is said of a collective, where a call that is made after the graph talks to other processes and is to do so before; "": there is none.
    """

    graph: torch.fx.Graph
    mode: FakeMode
    ops: int
    in_inference: bool
    begins_in_inference: bool
    begins_with_gradients: bool
    talks_later: str
    rebound: set[int]
    resized: dict[int, int]
    tensors: dict[str, GraphTensor]
    values: dict[int, GraphTensor]
    inputs: list[GraphInput]
    nodes: list[torch.fx.Node]
    memories: dict[frozenset[Source], tuple[GraphTensor, Source]]
    wrappers: dict[int, GraphTensor]
    versions: dict[int, int]
    held: set[int]
    shown: set[int]
    optional: dict[torch.fx.Node, None]

    # inputs

    def input(self, real: torch.Tensor, source: Source) -> GraphTensor: ...
    def shared_input(self, real: torch.Tensor, source: Source, group: frozenset[Source]) -> tuple[GraphTensor, Source]: ...
    def wrapper_input(self, real: Any, wrapping: Wrapping, source: Source) -> GraphTensor: ...
    def pending_input(self, real: Any, source: Source) -> GraphTensor: ...
    def facts(self, value: GraphTensor) -> TensorFacts: ...
    def static_parts(self, real: torch.Tensor, source: Source) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]: ...
    def made(self, value: GraphTensor, fake: torch.Tensor) -> None: ...

    # what is recorded

    def run(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...
    def data_of(self, value: GraphTensor) -> Value: ...
    def effect(self, kind: str, target: Any, args: tuple, value: Any) -> None: ...
    def python_effect(self, target: Any, args: list[Value]) -> None: ...
    def call_graphs(self, target: Any, arguments: Callable[..., tuple], graphs: dict[str, torch.fx.GraphModule], fakes: tuple) -> Value: ...
    def owner(self, graph: torch.fx.Graph) -> torch.nn.Module: ...
    def watching(self) -> AbstractContextManager[Drawing]: ...
    def mark_unrepeatable(self) -> None: ...

    def state_change(self, target: Any, *args: Any) -> torch.fx.Node: ...

    # writes

    def version(self, fake: torch.Tensor) -> int: ...
    def input_versions(self) -> Mapping[int, int]: ...
    def was_written(self, value: GraphTensor) -> bool: ...
    def stand_in(self, value: GraphTensor, input_: GraphTensor) -> None: ...
    def is_inference(self, fake: torch.Tensor) -> bool: ...
