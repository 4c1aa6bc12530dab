"""Context managers of torch that the graph can express, or that change nothing in it: autocast, inference mode and disable_saved_tensors_hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, bind_arguments, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ContextValue, RepeatableContext
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Attr, Source
from dynacompile.private import of_python, of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class AutocastContext(RepeatableContext):
    def __init__(self, device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, source: Source | None = None):
        self.arguments = (device, dtype, enabled, cache)
        self.active: list[tuple] = []
        self.source = source

    def again(self) -> ContextValue:
        return AutocastContext(*self.arguments)

    def pytype(self) -> type:
        return torch.amp.autocast_mode.autocast

    def enter(self, cx: Context) -> Value:
        self.active.append(cx.state(TorchModes).enter_autocast(of_torch.enter_autocast, of_torch.exit_autocast, self.arguments))
        return self

    def exit(self, cx: Context) -> None:
        cx.state(TorchModes).exit_autocast(self.latest(self.active))

    def opens(self) -> int:
        return int(bool(self.active))

    def can_enter_again(self) -> bool:
        return True

    def rebuild(self, out: Writer) -> None:
        self.refuse_entered()
        out.callee(torch.amp.autocast_mode.autocast)
        for argument in self.arguments:
            out.const(argument)
        out.call(4)


class InferenceContext(RepeatableContext):
    """torch.inference_mode(mode) that starts inside the frame: nothing is recorded for gradients. What is made in it are inference tensors."""

    enters_each_step = True

    def __init__(self, mode: bool):
        self.mode = mode
        self.before: list[tuple[bool, bool]] = []

    def pytype(self) -> type:
        return torch.inference_mode

    def again(self) -> ContextValue:
        return InferenceContext(self.mode)

    def enter(self, cx: Context) -> Value:
        modes = cx.state(TorchModes)
        before = modes.is_grad_enabled(), modes.inference
        modes.set_inference(self.mode)
        modes.set_grad_mode(not self.mode)
        self.before.append(before)
        return ConstantValue(None)

    def exit(self, cx: Context) -> None:
        grad, before = self.latest(self.before)
        cx.state(TorchModes).set_inference(before)
        cx.state(TorchModes).set_grad_mode(grad)

    def opens(self) -> int:
        return int(self.mode) - int(self.before[-1][1]) if self.before else 0

    def can_enter_again(self) -> bool:
        return True

    def grad_modes(self) -> tuple[bool, bool] | None:
        return self.before[-1][0], not self.mode

    def rebuild(self, out: Writer) -> None:
        self.refuse_entered()
        out.callee(torch.inference_mode)
        out.const(self.mode)
        out.call(1)


class WithoutSavedHooks(RepeatableContext):
    """torch.autograd.graph.disable_saved_tensors_hooks(message). That there are none as the frame begins is guarded, and what would set one is refused."""

    def __init__(self, message: str):
        self.message = message

    def pytype(self) -> type:
        return of_python.GeneratorContextManager

    def again(self) -> ContextValue:
        return WithoutSavedHooks(self.message)

    def enter(self, cx: Context) -> Value:
        if cx.flag("hooks of saved tensors", has_saved_hooks).constant():
            raise unsupported("would-raise", "disable_saved_tensors_hooks() where there are some")
        cx.state(TorchModes).without_hooks.append(self.message)
        return ConstantValue(None)

    def exit(self, cx: Context) -> None:
        cx.state(TorchModes).without_hooks.pop()

    def can_enter_again(self) -> bool:
        return True

    def rebuild(self, out: Writer) -> None:
        self.refuse_entered()
        out.callee(torch.autograd.graph.disable_saved_tensors_hooks)
        out.const(self.message)
        out.call(1)


def has_saved_hooks() -> bool:
    return of_torch.top_saved_tensors_hooks(True) is not None


@handles(of_torch.saved_tensors_hooks_message)
def saved_hooks_message(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    messages = cx.state(TorchModes).without_hooks
    return ConstantValue(messages[-1]) if messages else cx.flag("the message for hooks of saved tensors", of_torch.saved_tensors_hooks_message)


@handles(of_torch.saved_tensors_hooks_are_enabled)
def saved_hooks_are_enabled(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    disabled = bool(cx.state(TorchModes).without_hooks)
    return ConstantValue(False) if disabled else cx.flag("hooks of saved tensors are enabled", of_torch.saved_tensors_hooks_are_enabled)


@handles(torch.autograd.graph.disable_saved_tensors_hooks)
def make_without_saved_hooks(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (message,) = bind_arguments("disable_saved_tensors_hooks", ["error_message"], args, kwargs, {})
    if message.pytype() is not str:
        raise unsupported("would-raise", f"disable_saved_tensors_hooks({message.describe()})")
    return WithoutSavedHooks(message.constant())


@handles(torch.amp.autocast_mode.autocast)
def make_autocast(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = ConstantValue(None)
    bound = bind_arguments(
        "autocast", ["device_type", "dtype", "enabled", "cache_enabled"], args, kwargs, {"dtype": none, "enabled": ConstantValue(True), "cache_enabled": none}
    )
    return AutocastContext(*(b.constant() for b in bound))


def device_autocast(cls: type, device: str, default: torch.dtype) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        defaults: dict[str, Value | None] = {"enabled": ConstantValue(True), "dtype": ConstantValue(default), "cache_enabled": ConstantValue(True)}
        enabled, dtype, cache = (
            b.constant() for b in bind_arguments("autocast", ["enabled", "dtype", "cache_enabled"], args, kwargs, defaults) if b is not None
        )
        return AutocastContext(device, dtype, enabled, cache)


device_autocast(torch.cuda.amp.autocast, "cuda", torch.float16)
device_autocast(torch.cpu.amp.autocast, "cpu", torch.bfloat16)


@wraps(torch.amp.autocast_mode.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast)
def wrap_autocast(cx: Context, real: Any, source: Source) -> Value:
    """A manager that was made before the frame, such as the one that a decorated function holds."""
    cx.guard("TYPE", source, type(real))
    names = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    device, dtype, enabled, cache = (cx.wrap(getattr(real, name), Attr(source, name)).constant() for name in names)
    return AutocastContext(device, dtype, enabled, cache, source)


@handles(torch.inference_mode)
def make_inference_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mode,) = bind_arguments("inference_mode", ["mode"], args, kwargs, {"mode": ConstantValue(True)})
    if isinstance(mode, ConstantValue):
        return InferenceContext(mode.truth(cx))
    return InferenceContext(True).call(cx, [mode], {})


@handles(torch.inference_mode.clone)
def clone_inference_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return InferenceContext(args[0].get_attr(cx, "mode").truth(cx))


@handles(torch.inference_mode.__enter__, torch.inference_mode.__exit__)
def enter_or_leave_inference_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """By hand, as contextlib.ExitStack does it."""
    manager = args[0]
    if not isinstance(manager, InferenceContext):
        raise unsupported("context-manager", manager.describe())
    return manager.get_attr(cx, "__enter__" if len(args) == 1 else "__exit__").call(cx, args[1:], kwargs)
