"""torch.func.vmap, grad and grad_and_value: the function becomes a graph of its own, and the transform of it one operation of the frame's graph. Functions that
transforms have made outside of the frame, those of derivatives.py among them, are transformed anew.

What the function reads of the frame around it is passed in, unmapped and without derivatives.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.bodies import Function, leaves, refilled
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import SPECIAL, CallableValue, FunctionValue, function_value
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.sequence import SequenceValue, TupleValue
from dynacompile.ir.guard_facts import function_facts
from dynacompile.ir.source import Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

Transform = Callable[["Context", Value, list[Value], dict[str, Value]], Value]
ZERO, NONE, FALSE = ConstantValue(0), ConstantValue(None), ConstantValue(False)


class TransformValue(CallableValue):
    """`vmap(function)` and the like, made by the frame."""

    def __init__(self, real: Any, made_with: tuple[list[Value], dict[str, Value]], function: Value, run: Transform):
        """made_with: the arguments of the transform, to make it anew."""
        self.real, self.made_with, self.function, self.run = real, made_with, function, run

    def describe(self) -> str:
        return f"torch.func.{self.real.__name__}({self.function.describe()})"

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.run(cx, self.function, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (*self.made_with[0], *self.made_with[1].values())

    def rebuild(self, out: Writer) -> None:
        args, kwargs = self.made_with
        out.callee(self.real)
        for value in self.children():
            out.value(value)
        out.call(len(args) + len(kwargs), tuple(kwargs))


@handles(torch.func.vmap, torch.vmap, of_torch.functorch_apis.vmap)
def vmap(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["func", "in_dims", "out_dims", "randomness", "chunk_size"]
    defaults: dict[str, Value | None] = {"in_dims": ZERO, "out_dims": ZERO, "randomness": ConstantValue("error"), "chunk_size": NONE}
    function, in_dims, out_dims, randomness, chunk = bind_arguments("vmap", names, args, kwargs, defaults)

    def run(cx: Context, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return run_vmap(cx, function, args, kwargs, in_dims, out_dims, randomness.constant(), chunk.constant())

    return TransformValue(torch.func.vmap, (args, kwargs), function, run)


def run_vmap(
    cx: Context, function: Value, args: list[Value], kwargs: dict[str, Value], in_dims: Value, out_dims: Value, randomness: str, chunk: int | None
) -> Value:
    dims = dims_of(in_dims, TupleValue(args), True)
    mode, remaining = cx.recorder.mode, iter(dims)

    def example(fake: torch.Tensor) -> torch.Tensor:
        dim = next(remaining)
        if dim is not None and not -fake.dim() <= dim < fake.dim():
            raise unsupported("would-raise", f"vmap over dimension {dim} of a tensor with {fake.dim()}")
        with mode:
            if dim is not None and not fake.shape[dim]:
                return fake.new_empty([size for i, size in enumerate(fake.shape) if i != dim % fake.dim()])
            return fake.view_as(fake) if dim is None else fake.select(dim, 0)

    def alone(fake: torch.Tensor) -> torch.Tensor:
        """The same in memory of its own."""
        part = example(fake)
        with mode:
            return part.clone() if part.requires_grad else torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=part.device)

    body = Function(cx, "vmap", function, args, kwargs, range(len(args)), alone if cx.manner.bodies_write else example, writes=True)
    if isinstance(body.result, TensorValue) and isinstance(out_dims, TupleValue) and len(out_dims.items) == 1:  # as vmap takes it
        out_dims = out_dims.settled(0)
    made_dims = dims_of(out_dims, body.result, False)
    every = (*dims, *(None for _ in body.rest))

    def batched(tensors: tuple, rest: tuple, _: tuple) -> Any:
        out: Any = tuple(made_dims)
        return torch.func.vmap(body.module.forward, every, out, randomness, chunk_size=chunk)(*tensors, *rest)

    return refilled(body.result, iter(body.apply(batched)))


def dims_of(dims: Value, structure: Value, may_be_constant: bool) -> list[int | None]:
    """The dimension for each tensor of a structure, where `dims` has one for all, or a structure of its own that begins as the other does."""
    if isinstance(dims, ConstantValue):
        if dims.value is not None and type(dims.value) is not int or not (has_only_tensors(structure) or may_be_constant and dims.value is None):
            raise unsupported("would-raise", "vmap over what is no tensor, or by a dimension that is no int")
        return [dims.value] * len(leaves(structure))
    if isinstance(dims, SequenceValue) and isinstance(structure, SequenceValue) and len(dims.items) == len(structure.items):
        pairs = [(dims.settled(i), structure.settled(i)) for i in range(len(dims.items))]
    elif isinstance(dims, DictValue) and isinstance(structure, DictValue) and list(dims.content) == list(structure.content):
        pairs = [(dims.settled(key), structure.settled(key)) for key in structure.content]
    else:
        raise unsupported("would-raise", "vmap with dimensions that do not fit the arguments or results")
    return [dim for of, part in pairs for dim in dims_of(of, part, may_be_constant)]


def has_only_tensors(value: Value) -> bool:
    if isinstance(value, SequenceValue):
        return all(has_only_tensors(value.settled(i)) for i in range(len(value.items)))
    if isinstance(value, DictValue):
        return all(has_only_tensors(value.settled(key)) for key in value.content)
    return isinstance(value, TensorValue)


def chosen_arguments(argnums: Value, args: list[Value]) -> tuple[list[int], bool]:
    """The arguments by position, and whether there is one alone."""
    numbers = argnums.constant()
    several = numbers if isinstance(numbers, tuple) else (numbers,)
    if not several or not all(type(n) is int and -len(args) <= n < len(args) for n in several):
        raise unsupported("would-raise", "a derivative by an argument that is not given")
    found = [n % len(args) for n in several]
    if len(set(found)) != len(found):
        raise unsupported("would-raise", "a derivative by one argument twice")
    return found, not isinstance(numbers, tuple)


def differentiable_example(cx: Context) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a function gets whose derivative is taken: leaves that require gradients."""

    def example(fake: torch.Tensor) -> torch.Tensor:
        if not fake.is_floating_point():
            raise unsupported("would-raise", "a derivative by a tensor that is not of floating point")
        with cx.recorder.mode:
            return fake.detach().requires_grad_()

    return example


def grad_row(real: Any, with_value: bool) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function, argnums, has_aux = bind_arguments("grad", ["func", "argnums", "has_aux"], args, kwargs, {"argnums": ZERO, "has_aux": FALSE})
        aux = bool(has_aux.truth(cx))

        def run(cx: Context, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
            numbers, alone = chosen_arguments(argnums, args)
            grads, value, extra = run_grad(cx, function, args, kwargs, numbers, aux)
            result = grads[0] if alone else TupleValue(grads)
            if with_value:
                return TupleValue([result, TupleValue([value, extra]) if aux else value])
            return TupleValue([result, extra]) if aux else result

        return TransformValue(real, (args, kwargs), function, run)


def run_grad(cx: Context, function: Value, args: list[Value], kwargs: dict[str, Value], numbers: list[int], aux: bool) -> tuple[list[Value], Value, Value]:
    with torch.enable_grad():
        body = Function(cx, "grad", function, args, kwargs, numbers, differentiable_example(cx), aux)
    if not isinstance(body.result, TensorValue) or body.result.fake.dim():
        raise unsupported("would-raise", "grad of a function whose result is no scalar")

    def differentiate(tensors: tuple, rest: tuple, _: tuple) -> tuple:
        def loss(chosen: tuple) -> tuple:
            (value,), extras = body.run(chosen, rest)
            return value, (value, extras)

        grads, (value, extras) = torch.func.grad(loss, has_aux=True)(tensors)
        return (*grads, value, *extras)

    made = iter(body.apply(differentiate))
    grads = [refilled(value, made) for value in body.chosen]
    return grads, next(made), refilled(body.extra, made)


grad_row(torch.func.grad, False)
grad_row(torch.func.grad_and_value, True)


class TransformedFunction(FunctionValue):
    """`per_sample = vmap(grad(loss))`, made before the frame runs: torch's own function around the user's, with the transform's arguments in its closure."""

    transform: Callable[..., Any]

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made_with = {name: cell.read(cx) for name, cell in zip(self.code.co_freevars, self.closure) if name not in NOT_ARGUMENTS}
        return HANDLERS[self.transform](cx, [made_with.pop("func")], made_with).call(cx, args, kwargs)


MADE_BY = {made(len).__code__: made for made in (torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd)}
"""Transforms by the code of what they return. That of `hessian` is jacfwd's."""
NOT_ARGUMENTS = ("eager_transforms", "_preallocate_and_copy")
"""In the closures of transforms: a module, and a way to compute the same in less memory."""


def transformed_function(cx: Context, real: types.FunctionType, source: Source) -> Value | None:
    transform = MADE_BY.get(real.__code__)
    if transform is None:
        return None
    cx.guard("FUNCTION", source, function_facts(real, cx.root_scope.table))
    plain = function_value(cx, real, source)
    made = TransformedFunction(plain.code, plain.scope, plain.name, plain.defaults, plain.kwdefaults, plain.closure, real, source)
    made.transform = transform
    return made


SPECIAL.insert(0, transformed_function)
