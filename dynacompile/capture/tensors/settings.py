"""torch.use_deterministic_algorithms and its relatives inside of a frame.

The settings are the process's: kernels read them while the graph runs. So all operations of one graph run under the same ones. What the frame sets
before its first operation, residual code sets before it calls the graph; what it sets after the last one, after that. Where an operation follows under
other settings than those before it, the graph ends. Where the graph raises what a block of the frame would have seen, the settings are as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ExitValue
from dynacompile.capture.values.rows import handles
from dynacompile.cpython.instructions import Handler
from dynacompile.ir.determinism import READERS, restore
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context, Frame
    from dynacompile.capture.values.writing import Writer
    from dynacompile.cpython.instructions import Instr

UNINITIALIZED = frozenset({torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted, "new_empty", "new_empty_strided", torch.Tensor.new_empty})
"""What gives memory that deterministic programs find filled."""


@dataclass(frozen=True)
class Call:
    """A change, as the frame made it. keywords: names of the last arguments."""

    function: Callable[..., Any]
    args: tuple[bool, ...]
    keywords: tuple[str, ...]


class Settings:
    """changed: the settings that are not as before the frame. used: those that the operations so far run under. first: calls made before these.
    is_seen: a block of the frame would see what one of the operations raises."""

    def __init__(self) -> None:
        self.enabled = torch.are_deterministic_algorithms_enabled()
        self.changed: dict[str, bool] = {}
        self.used: dict[str, bool] | None = None
        self.calls: list[Call] = []
        self.first = 0
        self.is_seen = False

    def read(self, cx: Context, name: str) -> bool:
        found = self.changed.get(name)
        if found is None:
            found = self.enabled if name == "enabled" else cx.flag(name_of(name), READERS[name]).constant()  # the first is part of GLOBAL_STATE
        return bool(found)

    def change(self, cx: Context, call: Call, **wanted: bool) -> None:
        for name, value in wanted.items():
            if self.read(cx, name) != value:
                if name in self.changed:
                    del self.changed[name]
                else:
                    self.changed[name] = value
        self.calls.append(call)
        cx.effects.outside += 1

    def use(self, frames: Sequence[Frame]) -> None:
        """An operation is recorded."""
        self.is_seen = self.is_seen or any(map(is_handled, frames))
        if self.used is None:
            self.used, self.first = dict(self.changed), len(self.calls)
        elif self.used != self.changed:
            raise unsupported("setting", self.calls[-1].function.__name__)

    def fills(self, cx: Context, target: Any) -> bool:
        """Whether what the operation gives is filled."""
        return (self.enabled or bool(self.changed)) and target in UNINITIALIZED and self.read(cx, "enabled") and self.read(cx, "fill")

    def restore(self, out: Writer, first: Instr) -> None:
        """Residual code behind the call of the graph, which begins with `first`: what it raises finds the settings as the frame leaves them, or where
        they stay changed, as before it."""
        last = out.instrs[-1]
        over = out.emit("JUMP_FORWARD", 0)
        label = len(out.instrs)
        assert self.used is not None
        if self.first < len(self.calls):
            self.replay(out, before=False)
        else:
            out.call_function(restore, [ConstantValue(tuple((name, not value) for name, value in self.used.items()))])
            out.emit("POP_TOP")
        out.emit("RERAISE", 0)
        over.target = out.emit("NOP")
        out.handlers.append(Handler(first, last, out.instrs[label], 0, False))

    def replay(self, out: Writer, before: bool) -> None:
        """The calls before the graph runs, or those after it."""
        for call in self.calls[: self.first] if before else self.calls[self.first :]:
            out.call_function(call.function, [ConstantValue(a) for a in call.args], call.keywords)
            out.emit("POP_TOP")


def is_handled(frame: Frame) -> bool:
    """Whether a block that may set something sees what the frame's instruction raises: all but those of managers that capture knows."""
    handler, depth = frame.decoded.handler_of(frame.current), len(frame.stack)
    while handler is not None:
        if handler.depth <= depth:  # else it cleans up after a handler
            depth = handler.depth
            if not depth or not isinstance(frame.stack[depth - 1], ExitValue):
                return True
        handler = frame.decoded.handler_of(handler.target)
    return False


def name_of(name: str) -> str:
    return {"warn_only": "torch.is_deterministic_algorithms_warn_only_enabled()", "fill": "torch.utils.deterministic.fill_uninitialized_memory"}[name]


def fill(cx: Context, made: Value) -> None:
    """As torch fills uninitialized memory."""
    fake = getattr(made, "fake", None)
    if not isinstance(fake, torch.Tensor):
        return
    if fake.requires_grad:
        raise unsupported("setting", "a tensor that is filled and requires gradients, by use_deterministic_algorithms")
    if fake.dtype is torch.bool:
        value: Any = True
    else:
        value = float("nan") if fake.is_floating_point() or fake.is_complex() else torch.iinfo(fake.dtype).max
    cx.op("call_method", "fill_", [made, ConstantValue(value)], {})


def flag_of(value: Value, function: str) -> bool:
    if not isinstance(value, ConstantValue) or type(value.value) is not bool:
        raise unsupported("would-raise", f"{function} of what is no bool")
    return value.value


def switch(function: Callable[..., Any], parameter: str) -> None:
    """A row for what turns deterministic algorithms on or off."""

    @handles(function)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = bind_arguments(function.__name__, [parameter, "warn_only"], args, kwargs, {"warn_only": ConstantValue(False)})
        if len(args) > 1:
            raise unsupported("would-raise", f"{function.__name__}() takes one positional argument")
        enabled, warn_only = (flag_of(value, function.__name__) for value in given)
        cx.state(Settings).change(cx, Call(function, (enabled, warn_only), ("warn_only",)), enabled=enabled, warn_only=warn_only)
        return ConstantValue(None)


switch(torch.use_deterministic_algorithms, "mode")
switch(of_torch.set_deterministic_algorithms, "mode")


@handles(of_torch.set_deterministic_fill_uninitialized_memory)
def set_fill(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = of_torch.set_deterministic_fill_uninitialized_memory
    value = flag_of(args[0], "fill_uninitialized_memory")
    cx.state(Settings).change(cx, Call(real, (value,), ()), fill=value)
    return ConstantValue(None)


def reading(name: str, *functions: Callable[..., Any]) -> None:
    @handles(*functions)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return ConstantValue(cx.state(Settings).read(cx, name))


reading("enabled", torch.are_deterministic_algorithms_enabled, READERS["enabled"])
reading("warn_only", torch.is_deterministic_algorithms_warn_only_enabled, READERS["warn_only"])
reading("fill", READERS["fill"])
