"""torch.func.jvp, vjp, linearize, jacrev, jacfwd and hessian, each of a function that becomes a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.bodies import Function, leaves, mapped, refilled, shape_of
from dynacompile.capture.tensors.transforms import FALSE, NONE, ZERO, TransformValue, chosen_arguments, differentiable_example
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import HANDLERS, handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ops.jacobians import forward_jacobian, reverse_jacobian

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def same_shapes(name: str, given: Value, wanted: Value) -> list[Value]:
    """The tensors of a structure that has to be like another."""
    if shape_of(given) != shape_of(wanted) or any(g.fake.shape != w.fake.shape for g, w in zip(leaves(given), leaves(wanted))):
        raise unsupported("would-raise", f"{name} of tensors that do not fit")
    return list(leaves(given))


def seen_as_it_is(cx: Context) -> Callable[[torch.Tensor], torch.Tensor]:
    def example(fake: torch.Tensor) -> torch.Tensor:
        with cx.recorder.mode:
            return fake.view_as(fake)

    return example


@handles(torch.func.jvp)
def jvp(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults: dict[str, Value | None] = {"strict": FALSE, "has_aux": FALSE}
    function, primals, tangents, strict, has_aux = bind_arguments("jvp", ["func", "primals", "tangents", "strict", "has_aux"], args, kwargs, defaults)
    aux = bool(has_aux.truth(cx))
    if strict.truth(cx) or not isinstance(primals, TupleValue):
        raise unsupported("autograd-call", "jvp with strict, or with primals that are no tuple,")
    given = same_shapes("jvp", tangents, primals)
    body = Function(cx, "jvp", function, primals.items, {}, range(len(primals.items)), seen_as_it_is(cx), aux)
    made = iter(body.apply(push(body), given))
    result = [refilled(body.result, made), refilled(body.result, made)]
    return TupleValue([*result, refilled(body.extra, made)] if aux else result)


def push(body: Function) -> Callable[..., tuple]:
    """Results, their tangents, and what is not differentiated."""

    def run(tensors: tuple, rest: tuple, tangents: tuple) -> tuple:
        results, made, extras = torch.func.jvp(  # type: ignore[misc]
            lambda *inputs: body.run(inputs, rest), tuple(tensors), tuple(tangents), has_aux=True
        )
        return (*results, *made, *extras)

    return run


class PullbackValue(CallableValue):
    """What vjp or linearize gives beside the result. body: the function, whose inputs are kept as they were; run: what a call of it records."""

    def __init__(self, cx: Context, name: str, body: Function, run: Callable[[list[Value], dict[str, Value]], Value]):
        self.name, self.body, self.run = name, body, run
        self.versions = list(map(cx.recorder.version, self.fakes()))

    def describe(self) -> str:
        return f"the function that {self.name} returns"

    def fakes(self) -> list[torch.Tensor]:
        return [tensor.fake for tensor in self.body.given] + [node.meta["val"] for node in self.body.rest]

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if list(map(cx.recorder.version, self.fakes())) != self.versions:
            raise unsupported("mutation", f"{self.describe()}, called after a tensor that it depends on was written")
        return self.run(args, kwargs)


def without_draws(name: str, cx: Context, make: Callable[[], Function]) -> Function:
    """A function that is run again for its derivative must not draw anew."""
    with cx.recorder.watching() as draws:
        body = make()
    if draws.seen:
        raise unsupported("random-state", f"the function of {name}")
    return body


@handles(torch.func.vjp)
def vjp(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    options = {**kwargs}
    aux = bool(options.pop("has_aux", FALSE).truth(cx))
    if options or len(args) < 2:
        raise unsupported("would-raise", "vjp with other keyword arguments, or without primals")
    numbers = range(len(args) - 1)

    def trace() -> Function:
        with torch.enable_grad():
            return Function(cx, "vjp", args[0], args[1:], {}, numbers, differentiable_example(cx), aux)

    body = without_draws("vjp", cx, trace)
    made = iter(body.apply(forward(body)))
    result, extra = refilled(body.result, made), refilled(body.extra, made)

    def pull(given: list[Value], named: dict[str, Value]) -> Value:
        rest = {name: value for name, value in named.items() if name not in ("retain_graph", "create_graph")}
        if rest or len(given) != 1:
            raise unsupported("would-raise", "the function that vjp returns, with other arguments than one")
        cotangents = same_shapes("vjp", given[0], body.result)
        grads = iter(body.apply(pullback(body), cotangents))
        return TupleValue([refilled(value, grads) for value in body.chosen])

    back = PullbackValue(cx, "vjp", body, pull)
    return TupleValue([result, back, extra] if aux else [result, back])


def forward(body: Function) -> Callable[..., tuple]:
    def run(tensors: tuple, rest: tuple, _: tuple) -> tuple:
        results, extras = body.run(tensors, rest)
        return (*results, *extras)

    return run


def pullback(body: Function) -> Callable[..., tuple]:
    def run(tensors: tuple, rest: tuple, cotangents: tuple) -> tuple:
        pull = torch.func.vjp(lambda *inputs: body.run(inputs, rest)[0], *tensors)[1]
        return pull(tuple(cotangents))

    return run


@handles(torch.func.linearize)
def linearize(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) < 2:
        raise unsupported("would-raise", "linearize with keyword arguments, or without primals")
    if cx.recorder.in_inference:  # eager records no derivative there of some of it
        raise unsupported("autograd-call", "linearize in inference mode")
    primals = TupleValue(args[1:])
    body = without_draws("linearize", cx, lambda: Function(cx, "linearize", args[0], primals.items, {}, range(len(args) - 1), seen_as_it_is(cx)))
    back = PullbackValue(cx, "linearize", body, lambda given, named: along(given, named))
    if torch.is_grad_enabled() and any(fake.requires_grad for fake in back.fakes()):
        raise unsupported("autograd-call", "linearize of what requires gradients")  # eager folds some of it into constants
    result = refilled(body.result, iter(body.apply(forward(body))))

    def along(given: list[Value], named: dict[str, Value]) -> Value:
        if named:
            raise unsupported("would-raise", "the function that linearize returns, with keyword arguments")
        tangents = same_shapes("linearize", TupleValue(given), primals)
        count = len(body.outputs)
        return refilled(body.result, iter(body.apply(lambda at, rest, way: push(body)(at, rest, way)[count : 2 * count], tangents)))

    return TupleValue([result, back])


def jacobian(cx: Context, name: str, args: list[Value], body: Function, alone: bool, aux: bool, run: Callable[..., tuple]) -> Value:
    """The structure of the result, with that of the chosen arguments in the place of each tensor."""
    made = iter(body.apply(run))

    def columns(_: Value) -> Value:
        parts = [refilled(value, made) for value in body.chosen]
        return parts[0] if alone else TupleValue(parts)

    result = mapped(body.result, columns)  # type: ignore[arg-type]
    return TupleValue([result, refilled(body.extra, made)]) if aux else result


def flat_jacobian(transform: Callable[..., tuple], body: Function, option: Any) -> Callable[..., tuple]:
    def run(tensors: tuple, rest: tuple, _: tuple) -> tuple:
        rows, extras = transform(lambda inputs: body.run(inputs, rest), tensors, option)
        return (*(part for row in rows for part in row), *extras)

    return run


def jacobian_row(
    real: Any, compute: Callable[..., tuple], option: str, fallback: Value, example: Callable[[Context], Callable[[torch.Tensor], torch.Tensor]], grad: bool
) -> None:
    """option: the keyword that the transform has besides argnums and has_aux."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        defaults: dict[str, Value | None] = {"argnums": ZERO, "has_aux": FALSE, option: fallback}
        function, argnums, has_aux, chosen = bind_keywords(real.__name__, ["func", "argnums"], ["has_aux", option], args, kwargs, defaults)
        setting, aux = chosen.constant(), bool(has_aux.truth(cx))

        def run(cx: Context, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if kwargs:
                raise unsupported("would-raise", f"{real.__name__} with keyword arguments")
            numbers, alone = chosen_arguments(argnums, args)
            with torch.set_grad_enabled(grad or torch.is_grad_enabled()):
                body = Function(cx, real.__name__, function, args, {}, numbers, example(cx), aux)
            if not body.outputs or not has_differentiable(body):
                raise unsupported("would-raise", f"{real.__name__} of what is not of floating point")
            return jacobian(cx, real.__name__, args, body, alone, aux, flat_jacobian(compute, body, setting))

        return TransformValue(real, (args, kwargs), function, run)


def bind_keywords(
    name: str, positional: Sequence[str], named: Sequence[str], args: list[Value], kwargs: dict[str, Value], defaults: dict[str, Value | None]
) -> list[Any]:
    if len(args) > len(positional):
        raise unsupported("would-raise", f"{name}() takes at most {len(positional)} positional arguments")
    return bind_arguments(name, [*positional, *named], args, kwargs, defaults)


def has_differentiable(body: Function) -> bool:
    return all(value.fake.is_floating_point() for value in (*body.outputs, *body.given))


jacobian_row(torch.func.jacrev, reverse_jacobian, "chunk_size", NONE, differentiable_example, True)
jacobian_row(torch.func.jacfwd, forward_jacobian, "randomness", ConstantValue("error"), seen_as_it_is, False)


@handles(torch.func.hessian)
def hessian(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, argnums = bind_arguments("hessian", ["func", "argnums"], args, kwargs, {"argnums": ZERO})
    backward = HANDLERS[torch.func.jacrev](cx, [function, argnums], {})
    return HANDLERS[torch.func.jacfwd](cx, [backward, argnums], {})
