"""torch.func.vmap, grad and grad_and_value: the function becomes a graph of its own, and the transform of it one operation of the frame's graph.

What the function reads of the frame around it is passed in, unmapped and without derivatives. Functions with effects are left to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._functorch import apis

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace

ZERO, NONE, FALSE = ConstantValue(0), ConstantValue(None), ConstantValue(False)


def mapped(value: Value, change: Callable[[TensorValue], Value]) -> Value:
    """The same structure with other tensors."""
    if isinstance(value, TensorValue):
        return change(value)
    if isinstance(value, (TupleValue, ListValue)) and value.cls in (tuple, list):
        return type(value)([mapped(item, change) for item in value.items])
    if isinstance(value, DictValue) and value.cls is dict and not any(isinstance(k, Value) for k in value.content):
        return DictValue.of([(key, mapped(value.settled(hashed), change)) for hashed, (key, _) in value.content.items()])
    if isinstance(value, ConstantValue):
        return value
    raise unsupported("autograd-call", f"a function over {value.describe()}")


def leaves(value: Value) -> list[TensorValue]:
    found: list[TensorValue] = []

    def note(tensor: TensorValue) -> Value:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return found


class Body:
    """The function of a transform as a graph: its own inputs first, then what it reads of the graph around it."""

    def __init__(self, cx: Trace, name: str):
        self.cx, self.name = cx, name
        self.outer = cx.recorder.graph
        self.graph = torch.fx.Graph()
        self.lifted: dict[torch.fx.Node, torch.fx.Node] = {}

    def input(self, fake: torch.Tensor) -> TensorValue:
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}")
        node.meta["val"] = node.meta["example_value"] = fake
        value = self.cx.recorder.values[id(fake)] = TensorValue(node, fake)
        return value

    @contextmanager
    def traced(self) -> Iterator[None]:
        """What is recorded meanwhile belongs to this graph, and may change nothing outside of it."""
        recorder, effects = self.cx.recorder, self.cx.effects
        versions = [(value.fake, value.fake._version) for value in recorder.values.values()]
        before, ops = (effects.count, len(effects.calls), dict(effects.globals), torch.is_grad_enabled()), recorder.ops
        recorder.graph = self.graph
        try:
            yield
        finally:
            recorder.graph, recorder.ops = self.outer, ops
        if before != (effects.count, len(effects.calls), effects.globals, torch.is_grad_enabled()):
            raise unsupported("autograd-call", f"{self.name} of a function with effects")
        if any(fake._version != version for fake, version in versions):
            raise unsupported("autograd-call", f"{self.name} of a function that writes tensors in place")

    def finish(self, outputs: list[TensorValue]) -> tuple[torch.fx.GraphModule, list[Value]]:
        """The graph, and the tensors around it that it takes after its own inputs."""
        self.graph.output(tuple(value.node for value in outputs))
        first = next(iter(n for n in self.graph.nodes if n.op != "placeholder"))
        for node in list(self.graph.nodes):
            for read in [n for n in node.all_input_nodes if n.graph is not self.graph]:
                if read not in self.lifted:
                    with self.graph.inserting_before(first):
                        self.lifted[read] = self.graph.placeholder(f"outer{len(self.lifted)}")
                    self.lifted[read].meta.update(read.meta)
                node.replace_input_with(read, self.lifted[read])
        around: list[Value] = [TensorValue(node, node.meta["val"]) for node in self.lifted]
        return torch.fx.GraphModule(torch.nn.Module(), self.graph), around


class TransformValue(CallableValue):
    """`vmap(function)` and the like, made by the frame."""

    def __init__(self, name: str, function: Value, run: Callable[[Trace, Value, list[Value], dict[str, Value]], Value]):
        self.name, self.function, self.run = name, function, run

    def describe(self) -> str:
        return f"torch.func.{self.name}({self.function.describe()})"

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.run(cx, self.function, args, kwargs)


@handles(torch.func.vmap, torch.vmap, apis.vmap)
def vmap(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["func", "in_dims", "out_dims", "randomness", "chunk_size"]
    defaults: dict[str, Value | None] = {"in_dims": ZERO, "out_dims": ZERO, "randomness": ConstantValue("error"), "chunk_size": NONE}
    function, *options = bind_arguments("vmap", names, args, kwargs, defaults)
    in_dims, out_dims, randomness, chunk = (option.constant() for option in options)
    if type(out_dims) is not int or chunk is not None or not isinstance(in_dims, (int, tuple)) or randomness == "same":
        raise unsupported("autograd-call", "vmap with out_dims, nested in_dims or chunk_size")

    def run(cx: Trace, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        dims = (in_dims,) * len(args) if isinstance(in_dims, int) else in_dims
        if kwargs or len(dims) != len(args) or not all(dim is None or type(dim) is int for dim in dims):
            raise unsupported("autograd-call", "vmap with keyword arguments or nested in_dims")
        return run_vmap(cx, function, args, dims, out_dims, randomness)

    return TransformValue("vmap", function, run)


def run_vmap(cx: Trace, function: Value, args: list[Value], dims: tuple, out_dim: int, randomness: str) -> Value:
    body = Body(cx, "vmap")
    flat = [(tensor, dim) for arg, dim in zip(args, dims) for tensor in leaves(arg)]
    mode = cx.recorder.mode

    def example(dim: int | None) -> Callable[[TensorValue], Value]:
        def one(tensor: TensorValue) -> Value:
            if dim is not None and not -tensor.fake.dim() <= dim < tensor.fake.dim():
                raise unsupported("would-raise", f"vmap over dimension {dim} of {tensor.describe()}")
            with mode:
                return body.input(tensor.fake.view_as(tensor.fake) if dim is None else tensor.fake.select(dim, 0))

        return one

    with body.traced():
        result = function.call(cx, [mapped(arg, example(dim)) for arg, dim in zip(args, dims)], {})
        outputs = leaves(result)
    inner, around = body.finish(outputs)
    in_dims = (*(dim for _, dim in flat), *(None for _ in around))

    def batched(*tensors: torch.Tensor) -> Any:
        return torch.func.vmap(inner.forward, in_dims, out_dim, randomness)(*tensors)

    made = cx.op("call_function", batched, [*(tensor for tensor, _ in flat), *around], {})
    results = iter(made.elements(cx))
    return mapped(result, lambda _: next(results))


def grad_row(real: Any, with_value: bool) -> None:
    @handles(real)
    def row(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function, argnums, has_aux = bind_arguments("grad", ["func", "argnums", "has_aux"], args, kwargs, {"argnums": ZERO, "has_aux": FALSE})
        chosen, aux = argnums.constant(), has_aux.truth(cx)
        if not isinstance(chosen, (int, tuple)):
            raise unsupported("autograd-call", "grad with argnums that are no ints")

        def run(cx: Trace, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
            numbers = chosen if isinstance(chosen, tuple) else (chosen,)
            if not all(-len(args) <= n < len(args) for n in numbers):
                raise unsupported("would-raise", "grad of an argument that is not given")
            grads, value, extra = run_grad(cx, function, args, kwargs, [n % len(args) for n in numbers], aux)
            result = TupleValue(grads) if isinstance(chosen, tuple) else grads[0]
            if with_value:
                return TupleValue([result, TupleValue([value, extra]) if aux else value])
            return TupleValue([result, extra]) if aux else result

        return TransformValue("grad", function, run)


def run_grad(cx: Trace, function: Value, args: list[Value], kwargs: dict[str, Value], numbers: list[int], aux: bool) -> tuple[list[Value], Value, Value]:
    body = Body(cx, "grad")
    differentiated = [tensor for n in numbers for tensor in leaves(args[n])]
    count = len(differentiated)
    if not all(t.fake.is_floating_point() for t in differentiated) or len(set(numbers)) != len(numbers):
        raise unsupported("autograd-call", "grad of tensors that are not of floating point")
    inner_args = list(args)

    def example(tensor: TensorValue) -> Value:
        with cx.recorder.mode:
            return body.input(tensor.fake.detach().requires_grad_())

    for n in numbers:
        inner_args[n] = mapped(args[n], example)
    with body.traced():
        if not torch.is_grad_enabled():
            raise unsupported("autograd-call", "grad inside of no_grad")
        result = function.call(cx, inner_args, kwargs)
        value, extra = result.elements(cx) if aux else (result, NONE)
        if not isinstance(value, TensorValue) or value.fake.dim():
            raise unsupported("would-raise", "grad of a function whose result is no scalar")
        outputs = [value, *leaves(extra)]
    inner, around = body.finish(outputs)

    def differentiate(*tensors: torch.Tensor) -> tuple:
        def loss(chosen: tuple) -> tuple:
            first, *others = inner.forward(*chosen, *tensors[count:])
            return first, (first, tuple(others))

        grads, (first, others) = torch.func.grad(loss, has_aux=True)(tensors[:count])
        return (*grads, first, *others)

    made = cx.op("call_function", differentiate, [*differentiated, *around], {})
    results = iter(made.elements(cx))
    grads = [mapped(args[n], lambda _: next(results)) for n in numbers]
    return grads, next(results), mapped(extra, lambda _: next(results))


grad_row(torch.func.grad, False)
grad_row(torch.func.grad_and_value, True)
