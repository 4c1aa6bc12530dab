"""Tensors that wrap others: classes with `__tensor_flatten__` and `__torch_dispatch__`, of which DTensor is one.

A graph takes and gives the plain tensors inside of them. `Enter` makes a wrapper of plain tensors and `Leave` takes one apart; between the two, operations
are those of the wrapper, whose `__torch_dispatch__` runs while the graph is traced. So an ATen graph has the operations on plain tensors alone, and the
collectives among them. Autograd differentiates the operations on wrappers, as it does in eager: a gradient of a wrapper is a wrapper, with the metadata that
the formulas give it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from dynacompile.errors import Unsupported
from dynacompile.markers import TRACED_THROUGH
from dynacompile.ops.backward_steps import Step, Tracing
from dynacompile.ops.collectives import is_pending_class
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, TorchDispatchMode

Tensors = Sequence[torch.Tensor]
PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
DTENSORS = "torch.distributed.tensor"  # a module that takes a second to load: nothing here loads it


def is_dtensor_class(cls: type) -> bool:
    module: Any = sys.modules.get(DTENSORS)
    return cls is getattr(module, "DTensor", None)  # not there where nobody imports the module, nor yet where another thread does


def is_wrapper(value: object) -> bool:
    """Whether an object is a tensor that wraps others, of a class that graphs are traced through."""
    cls = type(value)
    return cls not in PLAIN and isinstance(value, torch.Tensor) and is_wrapper_class(cls)


def is_wrapper_class(cls: type) -> bool:
    return is_dtensor_class(cls) or cls in TRACED_THROUGH


@dataclass(frozen=True)
class Wrapping:
    """What a wrapper is beside the tensors inside of it. inner: their attributes, in order. context: equal for wrappers that differ in their tensors alone.
    size, stride: of the wrapper itself."""

    cls: type
    inner: tuple[str, ...]
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def rebuild(self, tensors: Tensors) -> torch.Tensor:
        """A wrapper of these tensors, without autograd history."""
        return self.maker()(tensors)

    def maker(self) -> Callable[[Tensors], torch.Tensor]:
        return kind_of(self.cls).maker(self)

    def text(self) -> str:
        return f"{self.cls.__qualname__}({self.context}, size={list(self.size)})"


@dataclass(frozen=True)
class Kind:
    """How wrappers of a class are taken apart and made. of: of a wrapper. maker: what makes them of tensors. tangent: how the gradient of such a wrapper is
    wrapped, where nothing else is known. is_like: whether a wrapper of the class is wrapped in a given way; coerce: it as one that is."""

    of: Callable[[torch.Tensor], Wrapping]
    maker: Callable[[Wrapping], Callable[[Tensors], torch.Tensor]]
    tangent: Callable[[Wrapping], Wrapping]
    is_like: Callable[[torch.Tensor, Wrapping], bool]
    coerce: Callable[[torch.Tensor, Wrapping], torch.Tensor]


def kind_of(cls: type) -> Kind:
    return DTENSOR if is_dtensor_class(cls) else BY_PROTOCOL


def wrapping_of(wrapper: torch.Tensor) -> Wrapping:
    return kind_of(type(wrapper)).of(wrapper)


def inner_of(wrapper: torch.Tensor, wrapping: Wrapping | None = None) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(wrapper, name) for name in (wrapping or wrapping_of(wrapper)).inner)


def leaves_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The plain tensors that a tensor is made of: itself, where it wraps none."""
    return inner_of(tensor) if is_wrapper(tensor) else (tensor,)


def has_wrappers(graph: torch.fx.GraphModule) -> bool:
    """Whether some value of a graph wraps others."""
    values = [value for node in graph.graph.nodes if (value := node.meta.get("val")) is not None]
    return any(map(is_wrapper, (t for value in values for t in tensors_in(value))))


def tensors_in(value: object) -> list[object]:
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (tuple, list)) else [value]


# any class, by torch's protocol


def protocol_of(wrapper: Any) -> Wrapping:
    names, context = wrapper.__tensor_flatten__()
    inner = tuple(name for name in names if isinstance(getattr(wrapper, name), torch.Tensor))
    others = tuple((name, getattr(wrapper, name)) for name in names if name not in inner)
    return Wrapping(type(wrapper), inner, (context, others), tuple(wrapper.shape), tuple(wrapper.stride()))


def maker_by_protocol(wrapping: Wrapping) -> Callable[[Tensors], torch.Tensor]:
    context, others = wrapping.context
    cls: Any = wrapping.cls

    def make(tensors: Tensors) -> torch.Tensor:
        return cls.__tensor_unflatten__({**dict(zip(wrapping.inner, tensors, strict=True)), **dict(others)}, context, wrapping.size, wrapping.stride)

    return make


def coerce_by_protocol(wrapper: Any, wanted: Wrapping) -> torch.Tensor:
    hook = getattr(wrapper, "__coerce_same_metadata_as_tangent__", None)
    made = None if hook is None else hook(wanted.context[0])
    if made is None:
        raise RuntimeError(f"a gradient is a {wrapping_of(wrapper).text()}, and a compiled backward takes a {wanted.text()}")
    return made


def is_like_by_protocol(wrapper: torch.Tensor, wanted: Wrapping) -> bool:
    return protocol_of(wrapper).context == wanted.context


BY_PROTOCOL = Kind(protocol_of, maker_by_protocol, lambda wrapping: wrapping, is_like_by_protocol, coerce_by_protocol)


# DTensor: all but the local tensor is in its spec


@dataclass(frozen=True)
class Placed:
    """What a DTensor's spec says, by the names of its fields."""

    kind: Any
    values: tuple[tuple[str, Any], ...]

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]

    def __str__(self) -> str:
        return f"{self['placements']} on {self['mesh']}"

    def spec(self) -> Any:
        return self.kind(**dict(self.values))


def placed_of(wrapper: Any) -> Wrapping:
    spec = wrapper._spec
    values = tuple((field.name, getattr(spec, field.name)) for field in fields(spec) if field.init)
    return Wrapping(type(wrapper), ("_local_tensor",), Placed(type(spec), values), tuple(wrapper.shape), tuple(wrapper.stride()))


def placed_maker(wrapping: Wrapping) -> Callable[[Tensors], torch.Tensor]:
    cls: Any = wrapping.cls
    spec = wrapping.context.spec()  # as torch's own operations do, all that are made so have one spec
    return lambda tensors: cls.__new__(cls, tensors[0], spec, requires_grad=False)


def tangent_placed(wrapping: Wrapping) -> Wrapping:
    """Of a DTensor that is yet to be reduced the gradient is a replicated one, as torch's own operations give it."""
    placed, module = wrapping.context, sys.modules[DTENSORS]
    if not any(p.is_partial() for p in placed["placements"]):
        return wrapping
    placements = tuple(module.Replicate() if p.is_partial() else p for p in placed["placements"])  # type: ignore[attr-defined]
    values = tuple((name, placements if name == "placements" else value) for name, value in placed.values)
    return replace(wrapping, context=replace(placed, values=values))


def is_placed_alike(wrapper: Any, wanted: Wrapping) -> bool:
    spec = wrapper._spec
    return spec.placements == wanted.context["placements"] and spec.mesh == wanted.context["mesh"]


def coerce_placed(wrapper: Any, wanted: Wrapping) -> torch.Tensor:
    return wrapper.redistribute(wanted.context["mesh"], wanted.context["placements"])


DTENSOR = Kind(placed_of, placed_maker, tangent_placed, is_placed_alike, coerce_placed)


class InPlaceOfTracing(TorchDispatchMode):
    """A mode where torch's own for tracing would stand, so that torch's collectives are waited for at once, and DTensor, which asks fakes what an operation
    gives, takes it off meanwhile. Arithmetic on symbolic numbers comes to such a mode, too: it is done, and is no part of what is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._mode_key = of_torch.proxy_mode_key

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own wrapper around every dispatch is for its compiler, not for ours."""
        return False

    def __sym_dispatch__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)


def ask_unseen() -> None:
    """Has DTensor ask fakes, of the sizes of all ranks together, what an operation gives, without the modes that record: what they run is no part of a
    program. torch 2.11 does not do so by itself, 2.13 does. Taking the modes away harms nobody, so it is done once and for good."""
    if DTENSORS not in sys.modules:
        return
    propagator: Any = of_torch.ShardingPropagator
    ask = getattr(propagator, "_propagate_tensor_meta_non_cached", None)
    if ask is None or disable_proxy_modes_tracing.__name__ in ask.__code__.co_names:
        return

    def asked(self: Any, schema: Any) -> Any:
        with disable_proxy_modes_tracing():
            return ask(self, schema)

    propagator._propagate_tensor_meta_non_cached = asked


def let_go_of_masks(wrappers: Iterable[object]) -> None:
    """A placement may hold a mask between an operation and the reduction of its result, and torch keeps placements for later operations: what a trace has left
    there is taken away."""
    for wrapper in wrappers:
        for placement in wrapper._spec.placements if is_dtensor_class(type(wrapper)) else ():  # type: ignore[attr-defined]
            buffer = getattr(placement, "mask_buffer", None)
            if buffer is not None and (isinstance(buffer.data, FakeTensor) or buffer.data is not None and of_torch.is_functional_tensor(buffer.data)):
                buffer.data, buffer.refcount = None, 0


# where wrappers begin and end in a graph


class Entered(torch.autograd.Function):
    """A wrapper of tensors that the graph is given. Writes to it write these."""

    @staticmethod
    def forward(ctx: Any, step: Enter, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.step = step
        return step.wrapping.rebuild([t.detach() for t in tensors])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        step: Enter = ctx.step
        return (None, *((None,) * len(step.wrapping.inner) if grad is None else step.caught(grad)))


class Enter(Step):
    """Makes a wrapper of plain tensors. wrapping: of the wrapper; grad: of its gradient, which the formulas decide, and grad_parts: the sizes of the tensors
    inside of that, which need not be those of the wrapper's own: set where the graph is differentiated."""

    __name__ = __qualname__ = "enter_wrapper"

    def __init__(self, wrapping: Wrapping):
        self.wrapping = wrapping
        self.grad: Wrapping | None = None
        self.grad_parts: tuple[tuple[int, ...], ...] = ()
        self.sizes: Sequence[tuple[int, ...]] = ()
        self.catching: dict[int, torch.Tensor] | None = None
        self._make_grad: Callable[[Tensors], torch.Tensor] | None = None

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        return Entered.apply(self, *tensors)  # type: ignore[no-any-return]

    def traced(self, args: tuple, tracing: Tracing) -> torch.Tensor:
        self.catching, self.sizes = {}, [tuple(t.shape) for t in args]
        return self(*args)

    def caught(self, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors inside of a gradient, where the graph is differentiated: whoever does that takes them from `catching`, as autograd would refuse some."""
        if not is_wrapper(grad):
            raise Unsupported("no-gradient", f"the gradient of a {self.wrapping.cls.__qualname__} is a {type(grad).__qualname__}")
        self.grad, self._make_grad = wrapping_of(grad), None
        parts = inner_of(grad, self.grad)
        if len(parts) != len(self.wrapping.inner):
            raise Unsupported("no-gradient", f"the gradient of a {self.wrapping.cls.__qualname__} has other parts than it")
        self.grad_parts = tuple(tuple(part.shape) for part in parts)
        if self.catching is None:
            return parts
        self.catching.update(enumerate(parts))
        return tuple(part.new_zeros(sizes) for part, sizes in zip(parts, self.sizes, strict=True))

    def gradient(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient of the wrapper, of what a compiled backward gives for the tensors inside."""
        here = next((t for t in tensors if t is not None), None)
        if here is None or self.grad is None:
            return None
        if self._make_grad is None:
            self._make_grad = self.grad.maker()
        return self._make_grad([torch.zeros_like(here) if t is None else t for t in tensors])


class Left(torch.autograd.Function):
    """The plain tensors of a wrapper, as new tensors over the same memory."""

    @staticmethod
    def forward(ctx: Any, step: Leave, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.step = step
        return tuple(map(retaken, inner_of(wrapper, step.wrapping)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.step.tangent.rebuild(grads)


def settled(tensor: Any) -> torch.Tensor:
    """A plain tensor; of the result of a collective that is under way, what it is once that has ended."""
    return tensor.trigger_wait() if is_pending_class(type(tensor)) else tensor


def begun(tensor: Any) -> torch.Tensor:
    """A plain tensor; of the result of a collective that is under way, the tensor that is being written: its values are not to be read."""
    return tensor.elem if is_pending_class(type(tensor)) else tensor


def retaken(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory and value, as a tensor that is no view."""
    if not of_torch.is_functional_tensor(tensor):
        return tensor.detach()
    of_torch.functionalize_sync(tensor)
    return of_torch.to_functional_tensor(of_torch.from_functional_tensor(tensor))


class Leave(Step):
    """Takes a wrapper apart: a tuple of the tensors inside. tangent: how the gradient of the wrapper that a compiled backward takes is wrapped."""

    __name__ = __qualname__ = "leave_wrapper"

    def __init__(self, wrapping: Wrapping):
        self.wrapping = wrapping
        self.make = wrapping.maker()
        self.tangent = kind_of(wrapping.cls).tangent(wrapping)

    def __call__(self, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return Left.apply(self, wrapper)  # type: ignore[no-any-return]

    def traced(self, args: tuple, tracing: Tracing) -> tuple[torch.Tensor, ...]:
        return self(*args)

    def taken_apart(self, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors of a gradient that a backward pass brings."""
        if not is_wrapper(grad):
            raise RuntimeError(f"the gradient of a {self.wrapping.cls.__qualname__} is a {type(grad).__qualname__}")
        kind = kind_of(self.wrapping.cls)
        if not kind.is_like(grad, self.tangent):
            grad = kind.coerce(grad, self.tangent)
        return tuple(map(settled, inner_of(grad, self.tangent)))
