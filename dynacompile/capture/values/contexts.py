"""Context managers whose enter and exit capture performs itself, and those of the grad mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue, FunctionValue
from dynacompile.capture.values.rows import handles
from dynacompile.errors import Unsupported
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.context import Context
    from dynacompile.capture.writing import CallWriter, Writer


class EnteredByHand(Unsupported):
    """Residual code would have to make a manager in the state of one that was entered by no with statement: then Python is to enter it."""


def entered_by_hand(what: str) -> EnteredByHand:
    reason = unsupported("rebuild", f"{what}, which was entered by hand,")
    return EnteredByHand(reason.code, reason.reason, reason.hint)


class ContextValue(Value):
    """A manager whose enter and exit capture performs itself. by_hand: how often it was entered by no with statement."""

    by_hand = 0

    def enter(self, cx: Context) -> Value:
        raise NotImplementedError(type(self).__name__)

    def exit(self, cx: Context) -> None:
        raise NotImplementedError(type(self).__name__)

    def can_enter_again(self) -> bool:
        """Whether a block that is left after a break, and entered again by what follows, is as one that was not left."""
        return False

    def is_open(self) -> bool:
        """Whether it is entered, and has a state beside the grad mode."""
        return False

    def grad_modes(self) -> tuple[bool, bool] | None:
        """The grad mode outside of the block and at its begin; None for a manager that leaves it alone."""
        return None

    def rebuild_new(self, out: CallWriter) -> None:
        """Code that makes such a manager, to be entered at once."""
        self.rebuild(out)  # type: ignore[arg-type]

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__exit__":
            return ExitValue(self)
        if name == "__enter__":
            return EnterValue(self)
        return super().get_attr(cx, name)

    def rebuild_entered(self, out: Writer) -> None:
        """Residual code that makes the manager and enters it, and leaves it on the stack."""
        self.load(out)
        out.emit("COPY", 1)
        out.load_method("__enter__")
        out.call(0)
        out.emit("POP_TOP")

    def load(self, out: Writer) -> None:
        out.value(self)

    def latest(self, entered: list[Any]) -> Any:
        """What the last enter() noted of itself, for exit()."""
        if not entered:
            raise unsupported("context-manager", f"{self.describe()}, which was entered before the frame,")
        return entered.pop()

    def refuse_entered(self) -> None:
        """Of a manager that is entered by hand, residual code can't make one in that state."""
        if self.by_hand:
            raise entered_by_hand(self.describe())


class RepeatableContext(ContextValue):
    """A manager that decorates functions, too: each call of the function enters a manager of its own."""

    def again(self) -> ContextValue:
        """A manager like this one, not entered yet."""
        raise NotImplementedError(type(self).__name__)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
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

    def enter(self, cx: Context) -> Value:
        if self.cls is not torch.set_grad_enabled:
            self.before = torch.is_grad_enabled()
        switch(cx, self.mode)
        return ConstantValue(None)

    def exit(self, cx: Context) -> None:
        switch(cx, bool(self.before))

    def again(self) -> ContextValue:
        return GradModeContext(self.cls, self.mode)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.cls is torch.set_grad_enabled:
            raise unsupported("context-manager", "set_grad_enabled as a decorator inside the frame")
        return super().call(cx, args, kwargs)

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


class DecoratedValue(CallableValue):
    """A function that runs in a manager: `torch.no_grad()(function)`."""

    def __init__(self, context: RepeatableContext, function: Value):
        self.context, self.function = context, function

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
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

    def rebuild(self, out: Writer) -> None:
        with out.calling():
            out.value(self.context)
        out.value(self.function)
        out.call(1)


class EnterValue(CallableValue):
    def __init__(self, context: ContextValue):
        self.context = context

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not cx.manner.by_hand:
            raise unsupported("context-manager", f"{self.context.describe()}, entered by hand around a break,")
        self.context.by_hand += 1
        return self.context.enter(cx)


class ExitValue(CallableValue):
    """The bound __exit__ that a with statement keeps on the stack."""

    def __init__(self, context: ContextValue):
        self.context = context

    def describe(self) -> str:
        return f"{self.context.describe()}.__exit__"

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.context.exit(cx)
        self.context.by_hand = max(self.context.by_hand - 1, 0)
        return ConstantValue(None)

    def children(self) -> Sequence[Value]:
        return self.context.children()

    def rebuild(self, out: Writer) -> None:
        self.context.rebuild_entered(out)
        out.load_attr("__exit__")


def entered(manager: Any) -> Any:
    """The `__exit__` of a manager that is entered."""
    manager.__enter__()
    return manager.__exit__


@handles(entered)
def row_entered(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (manager,) = args
    if not isinstance(manager, ContextValue):
        raise unsupported("context-manager", manager.describe())
    manager.enter(cx)
    return ExitValue(manager)


def perform(cx: Context, function: Value, args: list[Value]) -> Value | None:
    """`type(manager).__enter__(manager)` or `__exit__`, of a manager that capture performs; None for other calls."""
    manager = args[0] if args else None
    name = function.real.__name__ if isinstance(function, FunctionValue) and function.real is not None else ""
    if isinstance(manager, ContextValue) and name in ("__enter__", "__exit__") and getattr(manager.pytype(), name) is function.identity():
        return manager.get_attr(cx, name).call(cx, args[1:], {})
    return None


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
    made = GradModeContext(torch.set_grad_enabled, bool(mode.truth(cx)), torch.is_grad_enabled())
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
    manager.set_attr(cx, "prev", ConstantValue(torch.is_grad_enabled()))
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
