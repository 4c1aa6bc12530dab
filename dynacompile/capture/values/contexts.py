"""Context managers of torch that the graph can express: grad mode and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class ContextValue(Value):
    """A manager whose enter and exit capture performs itself."""

    def enter(self, cx: Trace) -> Value:
        raise NotImplementedError(type(self).__name__)

    def exit(self, cx: Trace) -> None:
        raise NotImplementedError(type(self).__name__)

    def truth(self, cx: Trace) -> bool:
        return True

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name == "__exit__":
            return ExitValue(self)
        if name == "__enter__":
            return EnterValue(self)
        return super().get_attr(cx, name)

    def rebuild_entered(self, out: Builder) -> None:
        """Residual code that makes the manager and enters it, and leaves it on the stack."""
        out.value(self)
        out.emit("COPY", 1)
        out.load_method("__enter__")
        out.call(0)
        out.emit("POP_TOP")


class GradModeContext(ContextValue):
    """torch.no_grad(), torch.enable_grad(), torch.set_grad_enabled(mode)."""

    def __init__(self, cls: type, mode: bool, before: bool | None = None):
        self.cls, self.mode, self.before = cls, mode, before

    def pytype(self) -> type:
        return self.cls

    def enter(self, cx: Trace) -> Value:
        if self.cls is not torch.set_grad_enabled:
            self.before = torch.is_grad_enabled()
        cx.set_grad_mode(self.mode)
        return ConstantValue(None)

    def exit(self, cx: Trace) -> None:
        cx.set_grad_mode(bool(self.before))

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator."""
        if len(args) != 1 or kwargs or not isinstance(args[0], CallableValue) or self.cls is torch.set_grad_enabled:
            raise unsupported("context-manager", f"{self.cls.__name__} as a decorator inside the frame")
        return DecoratedValue(self, args[0])

    def rebuild(self, out: Builder) -> None:
        if self.cls is torch.set_grad_enabled:
            raise unsupported("rebuild", "torch.set_grad_enabled(...)")
        out.push_null()
        out.const(self.cls)
        out.call(0)


class DecoratedValue(CallableValue):
    """A function that runs in a grad mode: `torch.no_grad()(function)`."""

    def __init__(self, context: GradModeContext, function: CallableValue):
        self.context, self.function = context, function

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = GradModeContext(self.context.cls, self.context.mode)
        context.enter(cx)
        try:
            result = self.function.call(cx, args, kwargs)
        except Raised:
            context.exit(cx)
            raise
        context.exit(cx)
        return result

    def children(self) -> Sequence[Value]:
        return (self.context, self.function)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.value(self.context)
        out.value(self.function)
        out.call(1)


class AutocastContext(ContextValue):
    def __init__(self, device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None):
        self.arguments = (device, dtype, enabled, cache)
        self.active: list[tuple] = []

    def pytype(self) -> type:
        return torch.amp.autocast_mode.autocast

    def enter(self, cx: Trace) -> Value:
        self.active.append(cx.enter_autocast(_enter_autocast, _exit_autocast, self.arguments))
        return self

    def exit(self, cx: Trace) -> None:
        cx.exit_autocast(self.active.pop())

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(torch.amp.autocast_mode.autocast)
        for argument in self.arguments:
            out.const(argument)
        out.call(4)


class NullContext(ContextValue):
    """contextlib.nullcontext, and managers that only observe (torch.profiler.record_function)."""

    def __init__(self, value: Value):
        self.value = value

    def pytype(self) -> type:
        return contextlib.nullcontext

    def enter(self, cx: Trace) -> Value:
        return self.value

    def exit(self, cx: Trace) -> None:
        return None

    def children(self) -> Sequence[Value]:
        return (self.value,)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(contextlib.nullcontext)
        out.value(self.value)
        out.call(1)


class EnterValue(CallableValue):
    def __init__(self, context: ContextValue):
        self.context = context

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.context.enter(cx)


class ExitValue(CallableValue):
    """The bound __exit__ that a with statement keeps on the stack."""

    def __init__(self, context: ContextValue):
        self.context = context

    def describe(self) -> str:
        return f"{self.context.describe()}.__exit__"

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.context.exit(cx)
        return ConstantValue(None)

    def children(self) -> Sequence[Value]:
        return self.context.children()

    def rebuild(self, out: Builder) -> None:
        self.context.rebuild_entered(out)
        out.load_attr("__exit__")


@handles(torch.no_grad, torch.autograd.grad_mode.no_grad)
def make_no_grad(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = GradModeContext(torch.no_grad, False)
    return made.call(cx, args, kwargs) if args else made


@handles(torch.enable_grad)
def make_enable_grad(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = GradModeContext(torch.enable_grad, True)
    return made.call(cx, args, kwargs) if args else made


@handles(torch.set_grad_enabled)
def make_set_grad(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mode,) = bind_arguments("set_grad_enabled", ["mode"], args, kwargs, {})
    made = GradModeContext(torch.set_grad_enabled, bool(mode.truth(cx)), torch.is_grad_enabled())
    cx.set_grad_mode(made.mode)
    return made


@handles(torch.no_grad.__exit__, torch.enable_grad.__exit__, torch.set_grad_enabled.__exit__)
def leave_grad_mode(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a manager that was entered before the frame."""
    cx.set_grad_mode(args[0].get_attr(cx, "prev").truth(cx))
    return ConstantValue(None)


@handles(torch._C._set_grad_enabled)
def set_grad_enabled(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.set_grad_mode(args[0].truth(cx))
    return ConstantValue(None)


@handles(torch.amp.autocast_mode.autocast)
def make_autocast(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = ConstantValue(None)
    bound = bind_arguments(
        "autocast", ["device_type", "dtype", "enabled", "cache_enabled"], args, kwargs, {"dtype": none, "enabled": ConstantValue(True), "cache_enabled": none}
    )
    return AutocastContext(*(b.constant() for b in bound))


def device_autocast(cls: type, device: str, default: torch.dtype) -> None:
    @handles(cls)
    def row(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        defaults: dict[str, Value | None] = {"enabled": ConstantValue(True), "dtype": ConstantValue(default), "cache_enabled": ConstantValue(True)}
        enabled, dtype, cache = (
            b.constant() for b in bind_arguments("autocast", ["enabled", "dtype", "cache_enabled"], args, kwargs, defaults) if b is not None
        )
        return AutocastContext(device, dtype, enabled, cache)


device_autocast(torch.cuda.amp.autocast, "cuda", torch.float16)
device_autocast(torch.cpu.amp.autocast, "cpu", torch.bfloat16)


@handles(contextlib.nullcontext)
def make_nullcontext(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = bind_arguments("nullcontext", ["enter_result"], args, kwargs, {"enter_result": ConstantValue(None)})
    return NullContext(value)


@handles(torch.autograd.profiler.record_function)
def make_record_function(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NullContext(ConstantValue(None))


@handles(torch.inference_mode)
def make_inference_mode(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("context-manager", "torch.inference_mode")
