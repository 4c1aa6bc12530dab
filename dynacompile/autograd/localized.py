"""A graph that autograd has no part in, with the operations on the tensors inside of wrappers in the place of those on wrappers.

Such a graph, as a step of an optimizer over DTensors is, needs no tensor that wraps others while it is differentiated: what the class's dispatch does to the
tensors inside is all that there is. So everything that is done to graphs of plain tensors is done to it, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from dynacompile.errors import Unsupported
from dynacompile.ir.graphs import output_args
from dynacompile.ir.nodes import copy_node
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.ops.backward_steps import Step
from dynacompile.ops.fused_steps import FUSED_STEPS
from dynacompile.ops.wrappers import (
    Enter,
    InPlaceOfTracing,
    Leave,
    ask_unseen,
    has_wrappers,
    inner_of,
    is_dtensor_class,
    is_wrapper,
    is_wrapper_class,
    let_go_of_masks,
    tensors_in,
)
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

Node = torch.fx.Node
ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift.default, torch.ops.aten.lift_fresh.default})
LISTS = ("_foreach_", "_fused_", "stack", "cat")  # what is recognised by torch's function


def localized(graph: torch.fx.GraphModule, fakes: Sequence[object]) -> tuple[torch.fx.GraphModule, Sequence[object]]:
    """The graph without wrappers and the fakes of its placeholders, where it has some and no output requires gradients; else what is given. fakes: one for
    each placeholder. No node may stand for several operations (`ir.rounds`)."""
    if not has_wrappers(graph) or any(isinstance(n, Node) and getattr(n.meta.get("val"), "requires_grad", False) for n in output_args(graph)):
        return graph, fakes
    mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
    if mode is None:
        return graph, fakes
    local = Local()
    ask_unseen()
    try:
        inside = [without_history(node, fake) for node, fake in zip(placeholders(graph), fakes, strict=True)]
        return written_by(local, graph, inside, mode), inside
    except Unsupported:  # differentiating it, which goes another way, may succeed, or tells why not
        return graph, fakes
    finally:
        let_go_of_masks(local.wrappers)


def placeholders(graph: torch.fx.GraphModule) -> list[Node]:
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def without_history(node: Node, fake: Any) -> Any:
    """What lies inside of a wrapper is given as a tensor without history, since no gradient comes back to it: the wrapper may require some."""
    return fake.detach() if any(isinstance(user.target, Enter) for user in node.users) and fake.requires_grad else fake


def written_by(local: Local, graph: torch.fx.GraphModule, fakes: Sequence[object], mode: FakeTensorMode) -> torch.fx.GraphModule:
    with saved_modes(), mode, local:
        for node, value in zip(placeholders(graph), fakes, strict=True):
            local.placeholder(node, value)
        for node in graph.graph.nodes:
            if node.op != "placeholder":
                local.copy(node)
    return of_torch.LazyGraphModule(graph, local.graph)


@contextmanager
def saved_modes() -> Iterator[None]:
    grad = torch.is_grad_enabled()
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        of_torch.set_grad_enabled(grad)


class Local(InPlaceOfTracing):
    """Writes down what the dispatch of wrappers does."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.values: dict[Node, Any] = {}  # of the nodes of the graph that is read
        self.nodes: dict[int, Node] = {}  # of the new graph, by id of a fake, which `kept` keeps alive
        self.kept: list[Any] = []
        self.copies: dict[Node, Node] = {}
        self.plain: set[Node] = set()  # of the new graph, those that are operations, or inputs, of the graph that is read
        self.cuts: dict[Node, Node] = {}  # of these, the same without history
        self.wrappers: list[torch.Tensor] = []
        self.meta: dict[str, Any] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        if func in ALIASES and isinstance(made, torch.Tensor):
            self.keep(made, self.operand(args[0]))
        elif any(isinstance(t, torch.Tensor) for t in tensors_in(made)) or not func._schema.returns or func._schema.is_mutable:
            self.record(func, args, kwargs or {}, made)
        return made

    def placeholder(self, node: Node, value: Any) -> None:
        made = self.copies[node] = self.graph.placeholder(node.name)
        self.plain.add(made)
        made.meta = {**node.meta, "val": value, "example_value": value}
        self.values[node] = value
        self.keep(value, made)

    def keep(self, value: Any, node: Node) -> None:
        if isinstance(value, torch.Tensor):
            self.nodes.setdefault(id(value), node)
            self.kept.append(value)

    def node_of(self, value: torch.Tensor) -> Node:
        found = self.nodes.get(id(value))
        return self.constant(value) if found is None else found

    def constant(self, value: torch.Tensor) -> Node:
        """A number that the dispatch makes a tensor of."""
        if isinstance(value, FakeTensor) or value.numel() != 1 or value.is_complex():
            raise Unsupported("not-traceable", "the dispatch of a tensor that wraps others reads a tensor of its own", "", str(self.meta.get("site") or ""))
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        with of_torch.DisableTorchDispatch():
            number = value.item()
        made = self.graph.call_function(torch.full, (list(value.shape), number), options)
        with disable_proxy_modes_tracing():
            self.finish(made, torch.full(list(value.shape), number, **options))
        self.keep(value, made)
        return made

    def operand(self, value: torch.Tensor) -> Node:
        """What an operation of the dispatch takes. It runs below autograd, so that it gives no history on; nor does its copy."""
        node = self.node_of(value)
        if not value.requires_grad or node not in self.plain:
            return node
        if node not in self.cuts:
            self.cuts[node] = self.graph.call_method("detach", (node,))
            with disable_proxy_modes_tracing():
                self.finish(self.cuts[node], value.detach())
        return self.cuts[node]

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.operand(value)
        return type(value)(map(self.argument, value)) if type(value) in (tuple, list) else value

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        target, kind = target_of(func)
        node = add_node(self.graph, kind, target, tuple(map(self.argument, args)), {k: self.argument(v) for k, v in kwargs.items()})
        self.finish(node, made)
        if isinstance(made, (tuple, list)):
            for i, part in enumerate(made):
                if isinstance(part, torch.Tensor) and id(part) not in self.nodes:
                    item = self.graph.call_function(operator.getitem, (node, i))
                    self.finish(item, part)
                    self.keep(part, item)
        elif isinstance(made, torch.Tensor):
            self.keep(made, node)

    def record_step(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """A fused step of an optimizer, whose rate may be a symbol: dispatch would make it a constant."""
        self.finish(add_node(self.graph, "call_function", target, self.argument(args), {k: self.argument(v) for k, v in kwargs.items()}), None)

    def finish(self, node: Node, value: Any) -> None:
        node.meta = {**self.meta, "val": value, "example_value": value}

    def copy(self, node: Node) -> None:
        """A node of the graph that is read: as it is, where it has to do with no wrapper."""
        if node.op == "output":
            self.graph.output(torch.fx.node.map_arg(node.args[0], self.node_for)).meta = dict(node.meta)  # type: ignore[union-attr]
            return
        self.meta = {k: v for k, v in node.meta.items() if k in ("site",)}
        args, kwargs = cast(Any, torch.fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__))
        made: Any
        if isinstance(node.target, Enter):
            made = node.target.wrapping.rebuild([part.detach() for part in args])
        elif isinstance(node.target, Leave):
            made = inner_of(args[0])
        elif node.target in FUSED_STEPS and (local := of_parts(args, kwargs)) is not None:
            self.record_step(node.target, *local)
            made = None
        elif any(map(is_wrapper, tensors_in(node.meta.get("val")))) or any(map(is_wrapper, tensors_in([self.values[n] for n in node.all_input_nodes]))):
            made = self.run(node, args, kwargs)
        else:
            self.copy_plain(node, args, kwargs)
            return
        self.values[node] = made
        self.wrappers += [t for t in tensors_in(made) if isinstance(t, torch.Tensor) and is_wrapper(t)]

    def copy_plain(self, node: Node, args: tuple, kwargs: dict[str, Any]) -> None:
        """What it gives is known; one that sets a mode is run."""
        if "val" in node.meta:
            made = self.values[node] = node.meta["val"]
        else:
            with disable_proxy_modes_tracing():
                made = self.values[node] = self.run(node, args, kwargs)
        copied = self.copies[node] = copy_node(self.graph, node, self.node_for)
        self.plain.add(copied)
        if not isinstance(made, torch.Tensor) or id(made) not in self.nodes:
            self.keep(made, copied)

    def node_for(self, node: Node) -> Any:
        """What stands in the new graph for a node of the one that is read."""
        if node in self.copies:
            return self.copies[node]
        return self.argument(self.values[node])

    def run(self, node: Node, args: tuple, kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        call: Callable[[], Any]
        if node.op == "call_method":
            call = lambda: getattr(args[0], target)(*args[1:], **kwargs)  # noqa: E731
        elif node.op == "call_function" and (not isinstance(target, Step) or target.__module__.startswith("dynacompile.ops.placed")):
            call = lambda: target(*args, **kwargs)  # noqa: E731
        else:
            raise Unsupported("graph-node", f"{target} beside tensors that wrap others")
        try:
            return call()
        except RuntimeError as error:  # torch has no narrower class
            check_recurs(error, call)
            reason = f"{target} can't be traced: {(str(error).splitlines() or [''])[0]}"
            raise Unsupported("not-traceable", reason, "leave it outside of the compiled function", str(self.meta.get("site") or "")) from error


def of_parts(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """The arguments of a fused step with local tensors in the place of DTensors, where all that is of one parameter lies alike on the mesh; else None."""
    given = [*args, *kwargs.values()]
    wrappers = [t for t in tensors_in(given) if is_wrapper(t)]
    if not wrappers or not all(is_dtensor_class(type(t)) for t in wrappers) or any(is_wrapper(t) for t in given):
        return None
    for tensors in zip(*[item for item in given if isinstance(item, (list, tuple)) and item], strict=True):
        specs = [t._spec for t in tensors if is_wrapper(t)]
        cut = [spec for spec in specs if spec.ndim or not spec.is_replicated()]
        if any(p.is_partial() for spec in specs for p in spec.placements) or len({(spec.mesh, spec.placements) for spec in cut}) > 1:
            return None

    def local(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(map(local, value)) if isinstance(value, tuple) else list(map(local, value))
        return inner_of(value)[0] if is_wrapper(value) else value

    return local(args), {name: local(value) for name, value in kwargs.items()}


def target_of(func: Any) -> tuple[Any, str]:
    """How a graph of torch's functions calls an operator."""
    name = func._schema.name.partition("::")[2]
    if func.namespace == "aten" and name.startswith(LISTS) and hasattr(torch, name):
        return getattr(torch, name), "call_function"
    if func.namespace == "aten" and name.endswith("_") and hasattr(torch.Tensor, name):
        return name, "call_method"
    return func, "call_function"
