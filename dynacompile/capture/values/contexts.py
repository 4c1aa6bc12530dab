"""Context managers of torch that the graph can express: grad mode and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import Method, Value, bind_arguments, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Source

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


class RepeatableContext(ContextValue):
    """A manager that decorates functions, too: each call of the function enters a manager of its own."""

    def again(self) -> ContextValue:
        """A manager like this one, not entered yet."""
        raise NotImplementedError(type(self).__name__)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator."""
        if len(args) != 1 or kwargs or not isinstance(args[0], CallableValue):
            raise unsupported("context-manager", f"{self.describe()} as a decorator inside the frame")
        return DecoratedValue(self, args[0])


class GradModeContext(RepeatableContext):
    """torch.no_grad(), torch.enable_grad(), torch.set_grad_enabled(mode)."""

    def __init__(self, cls: type, mode: bool, before: bool | None = None):
        self.cls, self.mode, self.before = cls, mode, before

    def pytype(self) -> type:
        return self.cls

    def enter(self, cx: Trace) -> Value:
        if self.cls is not torch.set_grad_enabled:
            self.before = torch.is_grad_enabled()
        switch(cx, self.mode)
        return ConstantValue(None)

    def exit(self, cx: Trace) -> None:
        switch(cx, bool(self.before))

    def again(self) -> ContextValue:
        return GradModeContext(self.cls, self.mode)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.cls is torch.set_grad_enabled:
            raise unsupported("context-manager", "set_grad_enabled as a decorator inside the frame")
        return super().call(cx, args, kwargs)

    def rebuild(self, out: Builder) -> None:
        if self.cls is torch.set_grad_enabled:
            raise unsupported("rebuild", "torch.set_grad_enabled(...)")
        out.push_null()
        out.const(self.cls)
        out.call(0)


class DecoratedValue(CallableValue):
    """A function that runs in a manager: `torch.no_grad()(function)`."""

    def __init__(self, context: RepeatableContext, function: Value):
        self.context, self.function = context, function

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = self.context.again()
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


class AutocastContext(RepeatableContext):
    def __init__(self, device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, source: Source | None = None):
        self.arguments = (device, dtype, enabled, cache)
        self.active: list[tuple] = []
        self.source = source

    def again(self) -> ContextValue:
        return AutocastContext(*self.arguments)

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


class InferenceContext(RepeatableContext):
    """torch.inference_mode(mode) that starts inside the frame: nothing is recorded for gradients. The tensors that the graph makes are plain ones."""

    def __init__(self, mode: bool):
        self.mode = mode
        self.before: list[tuple[bool, bool]] = []

    def pytype(self) -> type:
        return torch.inference_mode

    def again(self) -> ContextValue:
        return InferenceContext(self.mode)

    def enter(self, cx: Trace) -> Value:
        if cx.inference and not self.mode:
            raise unsupported("context-manager", "torch.inference_mode(False) inside of inference mode")
        self.before.append((torch.is_grad_enabled(), cx.inference))
        cx.set_grad_mode(not self.mode)
        cx.inference = self.mode
        return ConstantValue(None)

    def exit(self, cx: Trace) -> None:
        grad, cx.inference = self.before.pop()
        cx.set_grad_mode(grad)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(torch.inference_mode)
        out.const(self.mode)
        out.call(1)


class NullContext(ContextValue):
    """contextlib.nullcontext, and managers that only observe (torch.profiler.record_function)."""

    def __init__(self, value: Value):
        self.value = value

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator that only observes."""
        if len(args) != 1 or kwargs or not isinstance(args[0], CallableValue):
            return super().call(cx, args, kwargs)
        return args[0]

    def pytype(self) -> type:
        return contextlib.nullcontext

    def get_attr(self, cx: Trace, name: str) -> Value:
        return self.value if name == "enter_result" else super().get_attr(cx, name)

    def enter(self, cx: Trace) -> Value:
        return self.value

    def exit(self, cx: Trace) -> None:
        return None

    def children(self) -> Sequence[Value]:
        return (self.value,)

    def rebuild(self, out: Builder) -> None:
        out.call_function(contextlib.nullcontext, [self.value])


class RecordContext(NullContext):
    """torch.profiler.record_function: it observes what runs, and capture records nothing of it."""

    def __init__(self, source: Source | None = None):
        super().__init__(ConstantValue(None))
        self.source = source

    def get_attr(self, cx: Trace, name: str) -> Value:
        return Method(self, name) if name == "_recreate_cm" else super().get_attr(cx, name)

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self if name == "_recreate_cm" else super().method(cx, name, args, kwargs)


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


def switch(cx: Trace, mode: bool) -> None:
    """torch._C._set_grad_enabled(mode), which torch-function modes are asked about."""
    if cx.overrides.call(torch._C._set_grad_enabled, [ConstantValue(mode)], {}) is None:
        cx.set_grad_mode(mode)


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
    switch(cx, made.mode)
    return made


@handles(torch.no_grad.__exit__, torch.enable_grad.__exit__, torch.set_grad_enabled.__exit__)
def leave_grad_mode(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a manager that was entered before the frame."""
    switch(cx, args[0].get_attr(cx, "prev").truth(cx))
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
    return RecordContext()


@wraps(torch.autograd.profiler.record_function)
def wrap_record_function(cx: Trace, real: Any, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return RecordContext(source)


@handles(torch.autograd.profiler.record_function.__enter__)
def enter_record_function(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0]


@handles(torch.autograd.profiler.record_function.__exit__)
def leave_record_function(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(None)


@wraps(torch.amp.autocast_mode.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast)
def wrap_autocast(cx: Trace, real: Any, source: Source) -> Value:
    """A manager that was made before the frame, such as the one that a decorated function holds."""
    cx.guard("TYPE", source, type(real))
    names = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    device, dtype, enabled, cache = (cx.child(real, source, name).constant() for name in names)
    return AutocastContext(device, dtype, enabled, cache, source)


@handles(torch.inference_mode)
def make_inference_mode(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mode,) = bind_arguments("inference_mode", ["mode"], args, kwargs, {"mode": ConstantValue(True)})
    if isinstance(mode, ConstantValue):
        return InferenceContext(mode.truth(cx))
    return InferenceContext(True).call(cx, [mode], {})


@handles(torch.inference_mode.clone)
def clone_inference_mode(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return InferenceContext(args[0].get_attr(cx, "mode").truth(cx))
