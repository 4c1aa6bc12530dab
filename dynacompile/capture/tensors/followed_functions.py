"""A torch.autograd.Function of any arguments: its forward and its backward are followed as Python, and each becomes a graph of its own.

The function that the frame's graph calls has these two graphs in the place of the user's code. What forward reads of objects, modules and containers
are inputs of it, without a gradient; what backward reads of forward is saved.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.tensors.bodies import Body, around
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import defines
from dynacompile.ir.source import Attr, ClosureCell, Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NONE = ConstantValue(None)
ONCE = torch.autograd.function.once_differentiable(len).__code__
METHODS = frozenset({"save_for_backward", "mark_non_differentiable"})
REFUSED = frozenset({"mark_dirty", "set_materialize_grads", "save_for_forward", "set_output_info"})


class FunctionContext(Value):
    """The `ctx` of one call."""

    def __init__(self, cls: type, needs: Sequence[bool]):
        self.cls, self.needs = cls, needs
        self.stored: dict[str, Value] = {}
        self.saved: list[Value] = []
        self.fixed: list[Value] = []  # results without a gradient

    def describe(self) -> str:
        return f"the ctx of {self.cls.__qualname__}"

    def pytype(self) -> type:
        return torch.autograd.function.FunctionCtx

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.stored:
            return self.stored[name]
        if name == "saved_tensors":
            return TupleValue(self.saved)
        if name == "needs_input_grad":
            return TupleValue([ConstantValue(needed) for needed in self.needs])
        if name in METHODS or name in REFUSED:
            return Method(self, name)
        if defines(torch.autograd.function.FunctionCtx, name):
            raise unsupported("autograd-function", f"{self.describe()}.{name}")
        raise raises(AttributeError, f"'{self.cls.__name__}Backward' object has no attribute {name!r}")

    def has_attr(self, cx: Context, name: str) -> bool:
        return name in self.stored or name in ("saved_tensors", "needs_input_grad") or defines(torch.autograd.function.FunctionCtx, name)

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if name in ("saved_tensors", "needs_input_grad") or defines(torch.autograd.function.FunctionCtx, name):
            raise unsupported("autograd-function", f"{self.describe()}.{name} = ...")
        self.stored[name] = value

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in METHODS or kwargs:
            raise unsupported("autograd-function", f"{self.describe()}.{name}()")
        if name == "save_for_backward":
            self.saved = args
        else:
            self.fixed += args
        return NONE


def followed(cx: Context, cls: type, args: list[Value]) -> Value:
    """cls.apply(*args)"""
    tensors = [a for a in args if isinstance(a, TensorValue)]
    needed = [t for t in tensors if t.fake.requires_grad]  # each is given one gradient
    if any(type(t) is not TensorValue for t in tensors) or len(set(map(id, needed))) != len(needed) or cx.bodies or cx.state(TorchModes).inference:
        raise unsupported("autograd-function", f"{cls.__qualname__}.apply")
    ctx = FunctionContext(cls, [torch.is_grad_enabled() and isinstance(a, TensorValue) and a.fake.requires_grad for a in args])
    if not any(ctx.needs):
        return without_gradients(cx, ctx, args)
    forward, backward = Body(cx, cls.__name__), Body(cx, cls.__name__)
    with torch.no_grad(), forward.traced():
        result = run_forward(cx, ctx, args)
    outputs = outputs_of(cx, result)
    made = [o for o in outputs if isinstance(o, TensorValue)]
    if not made or len(set(map(id, made))) != len(made) or any(o.node.graph is not forward.graph for o in made):
        raise unsupported("autograd-function", f"{cls.__qualname__}.apply, which gives an argument back, or a result twice,")
    gradients = run_backward(cx, ctx, backward, outputs, len(args))
    grads = [g for g, needed in zip(gradients, ctx.needs) if needed and isinstance(g, TensorValue)]
    read = backward.reads(grads)
    hidden = [n for n in read if n.graph is forward.graph and all(n is not o.node for o in made)]
    given = list(dict.fromkeys((*(t.node for t in tensors), *forward.reads(made), *(n for n in read if n.graph is not forward.graph))))
    held = [*given, *(o.node for o in made), *hidden]
    slots = {a.node: grads.index(g) for a, g, needed in zip(args, gradients, ctx.needs) if needed and g in grads and isinstance(a, TensorValue)}
    plan = Plan(
        forward.finish([*made, *around(hidden)], given),  # type: ignore[list-item]
        backward.finish(grads, read),
        len(made),
        [held.index(n) for n in read],
        [i for i, o in enumerate(made) if o in ctx.fixed],
        [slots.get(n) for n in given],
        getattr(cls.backward, "__code__", None) is ONCE,  # type: ignore[attr-defined]
    )
    found = iter(cx.op("call_function", plan.operation(cls.__name__), around(given), {}).elements(cx))
    back = [next(found) if isinstance(o, TensorValue) else o for o in outputs]
    return TupleValue(back) if isinstance(result, TupleValue) else back[0]


def behind_once(cx: Context, function: Any, source: Source) -> tuple[Any, Source] | None:
    """The user's backward behind torch's `once_differentiable`, and where it is; None of all others."""
    if getattr(function, "__code__", None) is not ONCE:
        return None
    cx.guard("ID", source, identity(function))
    return function.__closure__[0].cell_contents, ClosureCell(source, ONCE.co_freevars[0], 0)


def outputs_of(cx: Context, result: Value) -> list[Value]:
    return result.elements(cx) if isinstance(result, TupleValue) and result.cls is tuple else [result]


def static_method(cx: Context, cls: type, name: str, args: list[Value]) -> Value:
    """cls.name(*args)"""
    raw: Any = cx.lookup(cls, name)
    if isinstance(raw, classmethod) and isinstance(raw.__func__, types.FunctionType):
        method = class_source(cls, name)
        return cx.call_real(raw.__func__, Attr(method, "__func__"), [cx.class_value(cls, None), *args])
    if not isinstance(raw, staticmethod):
        raise unsupported("autograd-function", f"{cls.__qualname__}.apply, whose {name} is no static method,")
    function, source = behind_once(cx, raw.__func__, class_source(cls, name)) or (raw.__func__, class_source(cls, name))
    return cx.call_real(function, source, args)


def run_forward(cx: Context, ctx: FunctionContext, args: list[Value]) -> Value:
    if cx.lookup(ctx.cls, "setup_context") is vars(of_torch.SingleLevelFunction)["setup_context"]:
        return static_method(cx, ctx.cls, "forward", [ctx, *args])
    result = static_method(cx, ctx.cls, "forward", args)
    static_method(cx, ctx.cls, "setup_context", [ctx, TupleValue(args), result])
    return result


def run_backward(cx: Context, ctx: FunctionContext, backward: Body, outputs: list[Value], count: int) -> list[Value]:
    """The gradients of `count` arguments."""
    with cx.recorder.mode:
        given = [backward.input(torch.empty_like(o.fake)) if isinstance(o, TensorValue) else NONE for o in outputs]
    with torch.no_grad(), backward.traced(), cx.overrides.modes.off():
        result = static_method(cx, ctx.cls, "backward", [ctx, *given])
    found = outputs_of(cx, result)
    plain = all(type(g) is TensorValue or isinstance(g, ConstantValue) and g.value is None for g in found)
    if len(found) < count or not plain or any(g.node.graph is not backward.graph for g in found if isinstance(g, TensorValue)):
        raise unsupported("autograd-function", f"{ctx.cls.__qualname__}.apply, whose backward gives what it got, or no gradient for each argument,")
    return found[:count]


def without_gradients(cx: Context, ctx: FunctionContext, args: list[Value]) -> Value:
    """Of arguments that require no gradients: forward alone, in the frame's graph."""
    before = torch.is_grad_enabled()
    cx.state(TorchModes).set_grad_mode(False)
    result = run_forward(cx, ctx, args)
    cx.state(TorchModes).set_grad_mode(before)
    if any(o in args for o in outputs_of(cx, result) if isinstance(o, TensorValue)):
        raise unsupported("autograd-function", f"{ctx.cls.__qualname__}.apply, which gives an argument back,")
    return result


@dataclass(frozen=True)
class Plan:
    """The graphs of a function, and what they take and give.

    forward: of the operands; gives `count` results, then what backward reads beside these. backward: of the gradients of the results, then what it reads:
    `saved` says which of operands, results and the rest. fixed: results without a gradient. slots: for each operand the gradient of it, None for none.
    once: the gradients have none themselves.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    count: int
    saved: list[int]
    fixed: list[int]
    slots: list[int | None]
    once: bool

    def operation(self, name: str) -> Callable[..., tuple]:
        backward = torch.autograd.function.once_differentiable(self.run_backward) if self.once else self.run_backward
        function = type(name, (torch.autograd.Function,), {"forward": staticmethod(self.run_forward), "backward": staticmethod(backward)})

        def apply(*operands: torch.Tensor) -> tuple:
            return function.apply(*operands)  # type: ignore[attr-defined]

        apply.__name__ = apply.__qualname__ = f"{name}_apply"
        return apply

    def run_forward(self, ctx: Any, *operands: torch.Tensor) -> tuple:
        made = self.forward.forward(*operands)
        held = (*operands, *made)
        ctx.save_for_backward(*(held[i] for i in self.saved))
        ctx.mark_non_differentiable(*(made[i] for i in self.fixed))
        return tuple(made[: self.count])

    def run_backward(self, ctx: Any, *grads: torch.Tensor) -> tuple:
        found = self.backward.forward(*grads, *ctx.saved_tensors)
        return tuple(None if slot is None else found[slot] for slot in self.slots)
