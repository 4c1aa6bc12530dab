"""Functions that become graphs of their own: the bodies of torch.func's transforms, and of control flow over tensors.

What a body reads of the graph around it becomes an input of it. Bodies with effects are left to Python; what a body writes into containers, objects and
cells of its own is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.known_numbers import forget
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import KeyOf, Value, next_serial
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def mapped(value: Value, change: Callable[[TensorValue], Value]) -> Value:
    """The same structure with other tensors."""
    if isinstance(value, TensorValue):
        if type(value) is not TensorValue:
            raise unsupported("sub-graph", f"a function over {value.describe()}")
        return change(value)
    if isinstance(value, (TupleValue, ListValue)) and value.cls in (tuple, list):
        items = [mapped(value.settled(place), change) for place in range(len(value.items))]
        return TupleValue(items) if isinstance(value, TupleValue) else ListValue(items)
    if isinstance(value, DictValue) and value.cls is dict and not any(isinstance(k, (Value, KeyOf)) for k in value.content):
        return DictValue.of([(key, mapped(value.settled(hashed), change)) for hashed, (key, _) in value.content.items()])
    if isinstance(value, ConstantValue):
        return value
    raise unsupported("sub-graph", f"a function over {value.describe()}")


def leaves(value: Value) -> list[TensorValue]:
    found: list[TensorValue] = []

    def note(tensor: TensorValue) -> Value:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return found


def shape_of(value: Value) -> Any:
    """A structure with `...` for tensors, to compare structures by."""
    if isinstance(value, TensorValue):
        return ...
    if isinstance(value, (TupleValue, ListValue)):
        return value.cls, [shape_of(item) for item in value.items]
    if isinstance(value, DictValue):
        return {key: shape_of(value.settled(key)) for key in value.content}
    return value.constant()


class BodyWrites(Exception):
    """The function of a transform writes a tensor: the frame is to be captured with memory of its own for each input of such functions."""


class Body:
    """A function as a graph: its own inputs first, then what it reads of the graph around it. name: of the operator that it is for."""

    may_write = False  # its inputs, which the transform writes then
    is_mapped = False  # over the indices of a tensor, so that it may index others by them

    def __init__(self, cx: Context, name: str):
        self.cx, self.name = cx, name
        self.outer = cx.recorder.graph
        self.graph = torch.fx.Graph()

    def input(self, fake: torch.Tensor) -> TensorValue:
        forget(fake)  # what is one number at first may be another in the next step of a loop
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}")
        node.meta["val"] = node.meta["example_value"] = fake
        value = self.cx.recorder.values[id(fake)] = TensorValue(node, fake)
        return value

    @contextmanager
    def traced(self, own: Sequence[torch.Tensor] = ()) -> Iterator[None]:
        """What is recorded meanwhile belongs to this graph, and may change nothing outside of it. own: fakes that it may write."""
        recorder, effects = self.cx.recorder, self.cx.effects
        free = set(map(id, own))
        versions = [(value.fake, recorder.version(value.fake)) for value in recorder.values.values() if id(value.fake) not in free]
        before, ops = (len(effects.calls), dict(effects.globals), dict(effects.class_attributes), torch.is_grad_enabled()), recorder.ops
        count, moves, serial = effects.count, effects.moves, next_serial()
        recorder.graph = self.graph
        self.cx.bodies.append(self)
        try:
            yield
        finally:
            recorder.graph, recorder.ops = self.outer, ops
            self.cx.bodies.pop()
        after = (len(effects.calls), effects.globals, effects.class_attributes, torch.is_grad_enabled())
        if before != after or effects.changes_older(count, serial) or effects.moves_older(moves, serial):
            raise unsupported("sub-graph", f"{self.name} of a function with effects")
        if any(recorder.version(fake) != version for fake, version in versions):
            if self.may_write and not self.cx.manner.bodies_write:
                raise BodyWrites
            raise unsupported("sub-graph", f"{self.name} of a function that writes tensors in place")

    def reads(self, outputs: Sequence[TensorValue]) -> list[torch.fx.Node]:
        """What the body, ending with these outputs, takes of the graph around it."""
        given = {value.node: value.fake for value in outputs}  # an input that is given back as it is has no fake until it is asked for
        nodes = [n for node in self.graph.nodes for n in node.all_input_nodes] + list(given)
        return list(dict.fromkeys(n for n in nodes if n.graph is not self.graph))

    def finish(self, outputs: Sequence[TensorValue], around: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        """The graph, which takes the nodes `around` it after its own inputs."""
        self.graph.output(tuple(value.node for value in outputs))
        first = next(iter(n for n in self.graph.nodes if n.op != "placeholder"))
        lifted: dict[torch.fx.Node, torch.fx.Node] = {}
        with self.graph.inserting_before(first):
            for node in around:
                lifted[node] = self.graph.placeholder(f"outer{len(lifted)}")
                lifted[node].meta.update(node.meta)
        for node in list(self.graph.nodes):
            for read in [n for n in node.all_input_nodes if n.graph is not self.graph]:
                node.replace_input_with(read, lifted[read])
        return torch.fx.GraphModule(self.cx.recorder.owner(self.graph), self.graph)


class Function(Body):
    """The function of a transform of torch.func. Its inputs are the tensors of the chosen arguments; what else it reads comes after these.

    example: what the function gets of an input's fake. writes: it may write its inputs. aux: it returns a pair, of what is transformed and what is not.
    """

    def __init__(
        self,
        cx: Context,
        name: str,
        function: Value,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        chosen: Sequence[int],
        example: Example,
        aux: bool = False,
        writes: bool = False,
    ):
        super().__init__(cx, name)
        self.may_write = writes
        self.chosen = [args[n] for n in chosen]
        self.given = [tensor for value in self.chosen for tensor in leaves(value)]
        inner = list(args)
        own: list[torch.Tensor] = []
        for n in chosen:
            inner[n] = mapped(args[n], lambda tensor: self.input(added(own, example(tensor.fake))))
        with self.traced(own if writes and cx.manner.bodies_write else ()):
            result = function.call(cx, inner, kwargs)
            parts = result.elements(cx) if aux else [result, ConstantValue(None)]
        if len(parts) != 2:
            raise unsupported("would-raise", f"{name} with has_aux of a function that does not return a pair")
        self.result, self.extra = parts
        self.outputs, self.extras = leaves(self.result), leaves(self.extra)
        self.rest = self.reads([*self.outputs, *self.extras])
        self.module = self.finish([*self.outputs, *self.extras], self.rest)

    def run(self, tensors: Sequence[torch.Tensor], rest: Sequence[torch.Tensor]) -> tuple[tuple, tuple]:
        """(what is transformed, what is not) for these inputs, in a graph that runs."""
        made = self.module.forward(*tensors, *rest)
        return made[: len(self.outputs)], made[len(self.outputs) :]

    def apply(self, transform: Callable[..., tuple], more: Sequence[Value] = ()) -> list[Value]:
        """An operation of the frame's graph: transform(inputs, what the body reads around it, further tensors) -> flat tensors."""
        count, end = len(self.given), len(self.given) + len(self.rest)

        def operation(*tensors: torch.Tensor) -> tuple:
            return tuple(transform(tensors[:count], tensors[count:end], tensors[end:]))

        operation.__name__ = operation.__qualname__ = self.name
        return self.cx.op("call_function", operation, [*self.given, *around(self.rest), *more], {}).elements(self.cx)


Example = Callable[[torch.Tensor], torch.Tensor]


def added(fakes: list[torch.Tensor], fake: torch.Tensor) -> torch.Tensor:
    fakes.append(fake)
    return fake


def refilled(structure: Value, tensors: Iterator[Value]) -> Value:
    """The structure with the next of these tensors in the place of each of its own."""
    return mapped(structure, lambda _: next(tensors))


def around(nodes: Sequence[torch.fx.Node]) -> list[Value]:
    """Values of nodes that a body takes of the graph around it."""
    return [TensorValue(node, node.meta["val"]) for node in nodes]
