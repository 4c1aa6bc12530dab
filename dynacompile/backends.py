"""What can be made of a captured graph: the table of backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from dynacompile.env import Env
from dynacompile.errors import BackendError, Unsupported
from dynacompile.interop import inductor_call
from dynacompile.ir.captured import Captured
from dynacompile.ir.symbolic_graphs import picked, placed, write_code
from dynacompile.markers import disable
from dynacompile.ops.module_hooks import HookStep, refusal
from dynacompile.ops.regions import FORMS, with_regions
from dynacompile.pipeline import GraphCall, compile_graph, trace_graph
from dynacompile.private import of_torch


def default(captured: Captured, env: Env) -> GraphCall:
    return compile_graph(captured.compact, [i.given for i in captured.inputs], env)  # type: ignore[arg-type]


def eager(captured: Captured, env: Env) -> GraphCall:
    graph: Any = captured.graph
    if any(node.target in FORMS for node in graph.graph.nodes):
        graph = with_regions(graph)
    if any(node.target is of_torch.enter_inference_mode for node in graph.graph.nodes):
        graph, inference = with_inference(graph)
        return disable(restoring(inference.leaving(graph.forward)))
    changes = any(node.op == "call_function" and node.target in MODE_CHANGES for node in graph.graph.nodes)
    return disable(restoring(graph.forward) if changes else graph.forward)


class InferenceBlocks(threading.local):
    """Inference mode as a graph enters and leaves it. Where an operation raises inside, it is left at once: the mode would else last as long as the
    exception's traceback."""

    def __init__(self) -> None:
        self.entered: list[Any] = []

    def enter(self, mode: bool) -> None:
        self.entered.append(of_torch.enter_inference_mode(mode))

    def leave(self, entered: None) -> None:
        of_torch.exit_inference_mode(self.entered.pop())

    def leaving(self, forward: Callable[..., tuple]) -> Callable[..., tuple]:
        def call(*inputs: Any) -> tuple:
            depth = len(self.entered)
            try:
                return forward(*inputs)
            finally:
                while len(self.entered) > depth:
                    self.leave(None)

        return call


def with_inference(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, InferenceBlocks]:
    """The same graph with blocks of ours in the place of torch's."""
    blocks, graph = InferenceBlocks(), torch.fx.Graph()
    targets: dict[object, Any] = {of_torch.enter_inference_mode: named(blocks.enter), of_torch.exit_inference_mode: named(blocks.leave)}
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = targets.get(node.target, node.target)
    return torch.fx.GraphModule(module, graph), blocks


def named(method: Callable[..., None]) -> Callable[..., None]:
    """As fx writes calls: by a name that is no attribute of a module."""

    def call(value: Any) -> None:
        method(value)

    call.__name__ = call.__qualname__ = f"{method.__name__}_inference_mode"
    return call


MODE_CHANGES = frozenset({of_torch.set_grad_enabled, of_torch.enter_autocast})
AUTOCAST_DEVICES = ("cpu", "cuda")


def restoring(forward: Callable[..., tuple]) -> Callable[..., tuple]:
    """Gradients and autocast are as before the call, also where one of its operations raises."""

    def call(*inputs: Any) -> tuple:
        grad = torch.is_grad_enabled()
        casts = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES]
        depth = nesting()
        try:
            return forward(*inputs)
        except BaseException:
            of_torch.set_grad_enabled(grad)
            for device, enabled, dtype in casts:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            while nesting() > depth:
                torch.autocast_decrement_nesting()
            raise

    return call


def nesting() -> int:
    """How many autocast regions are open."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def aot_eager(captured: Captured, env: Env) -> GraphCall:
    return trace_graph(captured.graph, [i.fake for i in captured.inputs], env)  # type: ignore[arg-type]


def inductor(captured: Captured, env: Env) -> GraphCall:
    if any(isinstance(node.target, HookStep) for node in captured.graph.graph.nodes):  # type: ignore[union-attr]
        raise refusal()
    refuse_places(captured)
    if any(isinstance(i.fake, torch.SymFloat) for i in captured.inputs):
        raise Unsupported("symbolic-shape", "a float is computed from sizes or numbers that vary, in a graph for Inductor, which takes floats for constants")
    return inductor_call(captured.graph, [i.fake for i in captured.inputs])  # type: ignore[arg-type]


def refuse_places(captured: Captured) -> None:
    """Other compilers would trace a view at a place that depends on values with fakes, which show place 0."""
    if any(node.target in (picked, placed) for node in captured.graph.graph.nodes):  # type: ignore[union-attr]
        raise Unsupported("symbolic-shape", "a number that depends on values indexes a tensor, in a graph for another compiler", "leave capture_values off")


BACKENDS: dict[str, Callable[[Captured, Env], GraphCall]] = {"default": default, "eager": eager, "aot_eager": aot_eager, "inductor": inductor}


def of_callable(backend: Callable[..., Any]) -> Callable[[Captured, Env], GraphCall]:
    """A user's backend: takes (GraphModule, example_inputs), gives a callable over the flat inputs that returns a tuple of tensors."""
    name = getattr(backend, "__name__", type(backend).__name__)

    def call(captured: Captured, env: Env) -> GraphCall:
        refuse_places(captured)
        made = call_program(backend, captured)
        if not callable(made):
            raise BackendError(f"backend {name} returned {type(made).__name__}, which is not callable; it must return a callable over the graph's inputs")

        def run(*inputs: Any) -> tuple:
            out = made(*inputs)
            return (out,) if isinstance(out, torch.Tensor) else tuple(out)

        return disable(run)

    return call


def call_program(backend: Callable[..., Any], captured: Captured) -> Any:
    return backend(captured.graph, [i.fake for i in captured.inputs])


CALLS_PROGRAM = frozenset({call_program.__code__})
"""Code whose callees are the program's, also where none of them is Python."""


def with_code(backend: Callable[[Captured, Env], GraphCall]) -> Callable[[Captured, Env], GraphCall]:
    """A backend that runs captured graphs as Python: their code is written before it gets them."""

    def call(captured: Captured, env: Env) -> GraphCall:
        if (graph := captured.graph) is not None:
            write_code(graph)
        return backend(captured, env)

    return call


def resolve(backend: str | Callable[..., Any]) -> Callable[[Captured, Env], GraphCall]:
    if backend == "default":
        return default
    return with_code(BACKENDS[backend] if isinstance(backend, str) else of_callable(backend))
