"""torch.no_grad, torch.enable_grad and torch.set_grad_enabled, as managers, decorators and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ContextValue, EnterValue, ExitValue, RepeatableContext
from dynacompile.capture.values.rows import handles
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import CallWriter, Writer


class GradModeContext(RepeatableContext):
    """torch.no_grad(), torch.enable_grad(), torch.set_grad_enabled(mode)."""

    enters_each_step = True

    def __init__(self, cls: type, mode: bool, before: bool | None = None):
        self.cls, self.mode, self.before = cls, mode, before

    def pytype(self) -> type:
        return self.cls

    def enter(self, cx: Context) -> Value:
        if self.cls is not torch.set_grad_enabled or self.before is None:
            self.before = cx.state(TorchModes).is_grad_enabled()
        switch(cx, self.mode)
        return ConstantValue(None)

    def exit(self, cx: Context) -> None:
        switch(cx, bool(self.before))

    def again(self) -> ContextValue:
        return GradModeContext(self.cls, self.mode)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = super().call(cx, args, kwargs)
        if self.cls is torch.set_grad_enabled:  # which has set the mode when it was made
            switch(cx, bool(self.before))
        return made

    def can_enter_again(self) -> bool:
        return True

    def grad_modes(self) -> tuple[bool, bool] | None:
        return bool(self.before), self.mode

    def rebuild(self, out: Writer) -> None:
        if not self.by_hand and self.cls is not torch.set_grad_enabled:
            self.rebuild_new(out)
            return
        out.callee(object.__new__)  # set_grad_enabled(mode) would set the mode
        out.const(self.cls)
        out.call(1)
        for name, value in (("prev", bool(self.before)), ("mode", self.mode)):
            out.emit("COPY", 1)
            out.const(value)
            out.emit("SWAP", 2)
            out.store_attr(name)

    def rebuild_new(self, out: CallWriter) -> None:
        out.callee(self.cls)
        if self.cls is torch.set_grad_enabled:
            out.const(self.mode)
        out.call(int(self.cls is torch.set_grad_enabled))

    load = rebuild_new


def switch(cx: Context, mode: bool) -> None:
    """torch._C._set_grad_enabled(mode), which torch-function modes are asked about."""
    if cx.overrides.call(of_torch.set_grad_enabled, [ConstantValue(mode)], {}) is None:
        cx.state(TorchModes).set_grad_mode(mode)


@handles(torch.no_grad, torch.autograd.grad_mode.no_grad)
def make_no_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = GradModeContext(torch.no_grad, False)
    return made.call(cx, args, kwargs) if args else made


@handles(torch.enable_grad)
def make_enable_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = GradModeContext(torch.enable_grad, True)
    return made.call(cx, args, kwargs) if args else made


@handles(torch.set_grad_enabled)
def make_set_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mode,) = bind_arguments("set_grad_enabled", ["mode"], args, kwargs, {})
    made = GradModeContext(torch.set_grad_enabled, bool(mode.truth(cx)), cx.state(TorchModes).is_grad_enabled())
    switch(cx, made.mode)
    return made


@handles(torch.set_grad_enabled.__enter__)
def enter_set_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], ContextValue):
        return EnterValue(args[0]).call(cx, [], {})
    switch(cx, args[0].get_attr(cx, "mode").truth(cx))
    return ConstantValue(None)


@handles(torch.no_grad.__enter__)
def enter_no_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a manager that was made before the frame."""
    return enter_grad_mode(cx, args[0], False)


@handles(torch.enable_grad.__enter__)
def enter_enable_grad(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return enter_grad_mode(cx, args[0], True)


def enter_grad_mode(cx: Context, manager: Value, mode: bool) -> Value:
    if isinstance(manager, ContextValue):
        return EnterValue(manager).call(cx, [], {})
    manager.set_attr(cx, "prev", ConstantValue(cx.state(TorchModes).is_grad_enabled()))
    switch(cx, mode)
    return ConstantValue(None)


@handles(torch.no_grad.__exit__, torch.enable_grad.__exit__, torch.set_grad_enabled.__exit__)
def leave_grad_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a manager that was entered before the frame."""
    if isinstance(args[0], ContextValue):
        return ExitValue(args[0]).call(cx, args[1:], kwargs)
    switch(cx, args[0].get_attr(cx, "prev").truth(cx))
    return ConstantValue(None)


@handles(of_torch.set_grad_enabled)
def set_grad_enabled(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.state(TorchModes).set_grad_mode(args[0].truth(cx))
    return ConstantValue(None)


@handles(torch.is_grad_enabled)
def is_grad_enabled(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(cx.state(TorchModes).is_grad_enabled())
